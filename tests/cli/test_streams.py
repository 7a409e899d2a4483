"""stdout in a pipe, full, closed, in a narrow encoding: always an answer or one sentence, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]
ESTIMATE = ("estimate", "llama-3.1-8b", "--ctx", "1k")


def run(*args: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kvplan", *args], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("args", [ESTIMATE, (*ESTIMATE, "--json"), ("--help",), ("models", "show", "llama-3.1-8b")])
def test_a_reader_that_left_ends_the_process_by_sigpipe(args: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    ran = run(*args, stdout=write)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", [ESTIMATE, (*ESTIMATE, "--json")])
def test_a_full_stdout_is_one_sentence(args: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    ran = run(*args, stdout=full)
    os.close(full)
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"kvplan: stdout: can't be written (") and ran.stderr.count(b"\n") == 1


@pytest.mark.parametrize("args", [ESTIMATE, (*ESTIMATE, "--json"), ("models", "show", "llama-3.1-8b")])
def test_a_closed_stdout_is_one_sentence(args: tuple[str, ...]) -> None:
    command = " ".join([sys.executable, "-m", "kvplan", *args, ">&-"])
    ran = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"kvplan: stdout: can't be written (it is closed)") and ran.stderr.count(b"\n") == 1


def test_a_narrow_encoding_writes_characters_out(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
              "num_key_value_heads": 1, "_name_or_path": "mod\u00e8le\u4e00"}  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    plain = run("estimate", str(path), "--ctx", "1k", PYTHONIOENCODING="ascii")
    assert (plain.returncode, plain.stderr) == (0, b"")
    assert plain.stdout.startswith(rb"mod\xe8le\u4e00 needs")
    document = run("estimate", str(path), "--ctx", "1k", "--json", PYTHONIOENCODING="latin-1")
    assert json.loads(document.stdout)["model"]["id"] == "mod\u00e8le\u4e00"


@pytest.mark.parametrize("args", [(), ("models",), ("gpus",)])
def test_bare_commands_print_help_and_nothing_else(kvplan_cli: Cli, args: tuple[str, ...]) -> None:
    ran = kvplan_cli(*args)
    assert "Usage" in ran.out and ran.err == ""


def test_what_the_system_refuses_is_one_sentence(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", "model\ndir")

    monkeypatch.setattr("kvplan.spec.resolve.resolve_model", refuse)
    ran = kvplan_cli(*ESTIMATE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("kvplan: model dir: can't be used (Permission denied)") and ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["x" * 300, "x" * 100_000, "a/" * 3000, "\udc80", "a\nb"])
def test_odd_names_are_one_sentence(kvplan_cli: Cli, name: str) -> None:
    for text in (name, f"{name}.json"):
        ran = kvplan_cli("estimate", text, "--ctx", "1k")
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.rstrip("\n").isprintable() and len(ran.err) < 5000
