"""kvplan's own capacity.yaml holds, and would notice a wrong figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

ROOT = Path(__file__).parents[2]


def test_it_holds(kvplan_cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ran = kvplan_cli("check", "capacity.yaml", "--no-cache", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["counts"]["fail"], document["counts"]["error"]) == (0, 0, 0)
    assert document["counts"]["pass"] >= 14
    assert "kvplan check capacity.yaml" in (ROOT / ".ci" / "run").read_text()
