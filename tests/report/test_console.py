"""Tables and prose: as wide as the terminal or COLUMNS says, unbroken and without trailing blanks elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvplan.spec.resolve import registry
from tests.conftest import Ran

Cli = Callable[..., Ran]
COMMANDS = [("models", "list"), ("gpus", "list"), ("estimate", "llama-3.1-70b", "--ctx", "128k", "--explain")]


@pytest.mark.parametrize("args", COMMANDS)
@pytest.mark.parametrize("columns", ["80", "100"])
def test_columns_are_respected(
    kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = kvplan_cli(*args).out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("args", COMMANDS)
def test_no_terminal_breaks_no_line(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]) -> None:
    monkeypatch.delenv("COLUMNS")
    lines = kvplan_cli(*args).out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    if args[0] == "estimate":
        assert lines[0].endswith("tokens (bf16).")
        assert any(line.startswith("- size is *needed*") and line.endswith("an engine reserves more") for line in lines)


def test_ids_are_never_broken(kvplan_cli: Cli) -> None:
    words = {line.split()[0] for line in kvplan_cli("models", "list").out.splitlines() if line.strip()}
    assert set(registry().ids()) <= words
