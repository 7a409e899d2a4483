"""Every deployment file of tests/evidence/manifests, checked on one GPU: only what their notes call wrong fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

FOLDER = Path(__file__).parents[1] / "evidence" / "manifests"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.name != "expected.yaml")
# expected.yaml: a budget below the length without chunks, and a flag that left in 0.18.0.
FAILS = {"02-k8s-vllm-serve-pairs.yaml": "unchunked-budget", "04-k8s-dollar-paren-configmap.yaml": "removed-flag"}


@pytest.mark.parametrize("name", FILES)
def test_each_file(kvplan_cli: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(FOLDER)
    gpu = ("--gpu", "mi300x") if "amd" in name or "rocm" in name else ("--gpu", "h200")
    ran = kvplan_cli("check", "--manifest", name, *gpu, "--no-cache", "--json")
    verdicts = json.loads(ran.out)["verdicts"]
    failed = {each["rule"] for each in verdicts if each["status"] == "fail"}
    assert failed == ({FAILS[name]} if name in FAILS else set()), verdicts
    assert ran.code == (1 if failed else 0)
    assert any(each["metric"] == "fits" and each["status"] == "pass" for each in verdicts)
