"""`kvplan audit` and `kvplan evidence` from the command line: output, exit codes, errors in one sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_audit.log_text import vllm_cases, vllm_log

CASES = {case["id"]: case for case in vllm_cases()}
Cli = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str], Path]:
    def write(case: str) -> Path:
        path = tmp_path / f"{case}.log"
        path.write_text(vllm_log(CASES[case]))
        return path

    return write


def test_a_log_is_explained(kvplan_cli: Cli, log: Callable[[str], Path]) -> None:
    ran = kvplan_cli("audit", log("v1-qwen3-235b-fp8-4xl40s-ep"), "--gpu", "l40s", "--explain")
    assert ran.code == 1
    for text in ("238,208", "10.65 GiB", "graphs-outside-share", "blocks // groups", "CUDA graphs", "line 5"):
        assert text in ran.out
    assert ran.err == ""
    assert max(len(line) for line in ran.out.splitlines() if line.startswith("|")) <= 80


def test_exit_codes(kvplan_cli: Cli, log: Callable[[str], Path], tmp_path: Path) -> None:
    clean = log("lm-qwen3-8b-h100")
    assert kvplan_cli("audit", clean).code == 0
    assert kvplan_cli("audit", clean, "--fail-on", "note").code == 1
    assert kvplan_cli("audit", log("v1-qwen25-32b-awq-24gb"), "--fail-on", "error").code == 1
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 99)
    for name in ("empty.log", "binary.log", "missing.log", "."):
        ran = kvplan_cli("audit", tmp_path / name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_stdin(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(vllm_log(CASES["lm-qwen3-8b-h100"]).encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    ran = kvplan_cli("audit", "-", "--json")
    assert json.loads(ran.out)["model"] == "qwen3-8b"


def test_two_logs(kvplan_cli: Cli, log: Callable[[str], Path]) -> None:
    first, second = log("mla-kimi-k2-thinking-tp8"), log("mla-kimi-k2-thinking-tp8-dcp8")
    ran = kvplan_cli("audit", first, second)
    assert ran.code == 0
    assert "decode_context_parallel_size" in ran.out
    assert json.loads(kvplan_cli("audit", first, second, "--json").out)["command"] == "audit-difference"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "LOG"),
        (("a", "b", "c"), "LOG"),
        (("x.log", "--server", "http://localhost:1"), "--server"),
        (("LOG", "--fail-on", "never"), "--fail-on"),
        (("LOG", "--set", "novalue"), "--set"),
        (("LOG", "--run", "9"), "--run"),
        (("LOG", "--gpu", "h1000000"), "--gpu"),
        (("LOG", "--model", "no-such-model"), "model"),
        (("LOG", "--engine", "nothing"), "--engine"),
        (("LOG", "--plan", "nothing.json"), "nothing.json"),
    ],
)
def test_bad_usage_is_one_sentence(
    kvplan_cli: Cli, log: Callable[[str], Path], arguments: tuple[str, ...], said: str
) -> None:
    path = log("lm-qwen3-8b-h100")
    ran = kvplan_cli("audit", *(path if word == "LOG" else word for word in arguments))
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_what_the_log_lacks_can_be_given(kvplan_cli: Cli, log: Callable[[str], Path]) -> None:
    path = log("lm-qwen3-8b-h100")
    path.write_text(path.read_text().replace("Qwen/Qwen3-8B", "/models/mine"))
    assert json.loads(kvplan_cli("audit", path, "--json").out)["checks"] == []
    ran = kvplan_cli("audit", path, "--json", "--model", "qwen3-8b", "-tp", "1", "--set", "max_num_seqs=64")
    answer = json.loads(ran.out)
    assert {check["verdict"] for check in answer["checks"]} == {"within rounding"}
    assert answer["settings"]["max_num_seqs"] == 64


def test_the_record_from_the_command_line(kvplan_cli: Cli, log: Callable[[str], Path], tmp_path: Path) -> None:
    assert "lm-qwen3-8b-h100" in kvplan_cli("evidence", "list").out
    ran = kvplan_cli("evidence", "run", "--only", "lm-")
    assert ran.code == 0
    assert "3 cases" in ran.out
    folder = tmp_path / "cases"
    added = kvplan_cli("evidence", "add", log("lm-qwen3-8b-h100"), "--id", "mine", "--dir", folder)
    assert added.code == 0
    outcome = json.loads(kvplan_cli("evidence", "run", "--dir", folder, "--json").out)["outcomes"][0]
    assert (outcome["id"], outcome["verdict"], outcome["held"]) == ("mine", "within rounding", True)
