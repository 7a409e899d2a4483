"""What all commands have in common: help within 80 columns, their exit codes in it, --json, --quiet, NO_COLOR."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvplan.cli.main import command
from tests.conftest import Ran

Cli = Callable[..., Ran]
#: these write a file, offer a service or print YAML
WITHOUT_JSON = {"evidence add", "models import", "models index", "report", "serve", "mcp"}


def paths(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in getattr(found, "commands", ()):
        yield from paths(found.commands[name], (*path, name))


ALL = sorted(paths(command()))
ANSWERS = [path for path in ALL if path and not any(other[: len(path)] == path != other for other in ALL)]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_80_columns_without_colours_and_ends_with_exit_codes(
    kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    done = kvplan_cli(*path, "--help")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out
    assert re.search(r"Exit codes: 0 [^│╰]*$", done.out)


@pytest.mark.parametrize("path", ANSWERS, ids=" ".join)
def test_what_answers_has_json(path: tuple[str, ...]) -> None:
    found: Any = command()
    for name in path:
        found = found.commands[name]
    spellings = {spelling for param in found.params for spelling in param.opts}
    assert ("--json" in spellings) == (" ".join(path) not in WITHOUT_JSON)


@pytest.mark.parametrize(
    ("name", "fits"), [("estimate", True), ("audit", False), ("check", False), ("gpus show", False)]
)
def test_exit_codes_are_the_command_s_own(kvplan_cli: Cli, name: str, fits: bool) -> None:
    assert ("1 does not fit" in kvplan_cli(*name.split(), "--help").out) == fits


def test_quiet_leaves_the_answer_and_the_warnings(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_QUIET", "")
    question = ("compare", "llama-3.1-70b", "qwen3-8b", "--ctx", "128k")
    assert kvplan_cli("--quiet", *question).out == kvplan_cli(*question).out
    monkeypatch.setenv("KVPLAN_QUIET", "")
    loud = kvplan_cli("explain", "llama-3.1-8b", "--ctx", "8k").out
    quiet = kvplan_cli("--quiet", "explain", "llama-3.1-8b", "--ctx", "8k").out
    assert "Assumptions" in loud
    assert "Assumptions" not in quiet
    assert loud.startswith(quiet.rstrip("\n"))


@pytest.mark.parametrize(
    ("shell", "words", "found"),
    [
        ("bash", {"COMP_WORDS": "kvplan do", "COMP_CWORD": "1"}, "doctor"),
        ("bash", {"COMP_WORDS": "kvplan estimate llama-3.1-7", "COMP_CWORD": "2"}, "llama-3.1-70b"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "kvplan gpus show h20"}, "h200"),
        ("fish", {"_TYPER_COMPLETE_ARGS": "kvplan do", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "doctor"),
    ],
)
def test_a_shell_completes_commands_models_and_gpus(shell: str, words: dict[str, str], found: str) -> None:
    environment = {**os.environ, **words, "_KVPLAN_COMPLETE": f"complete_{shell}"}
    # Completion goes by the program's name, as the console script has it.
    script = "import sys; sys.argv[0] = 'kvplan'; from kvplan.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert found in done.stdout, done.stderr
