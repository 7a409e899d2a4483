"""Shared fixtures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvplan.cli.main import main


@dataclass(frozen=True)
class Ran:
    """What one run of the command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def kvplan_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `kvplan ARGS` in this process, as the console script would, on a narrow terminal without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("KVPLAN_MODEL_PATH", raising=False)

    def run(*args: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["kvplan", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        code = caught.value.code
        return Ran(code if isinstance(code, int) else 0, output.out, output.err)

    return run
