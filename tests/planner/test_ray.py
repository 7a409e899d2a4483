"""The same study on a real local Ray cluster of two workers, one of them killed in the middle."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.errors import InputError
from kvplan.planner.sweep.cells import columns_of
from kvplan.planner.sweep.run import sweep
from kvplan.planner.sweep.store import Store
from kvplan.planner.sweep.study import Study, load_study

pytestmark = pytest.mark.ray
SIMULATE: dict[str, Any] = {
    "command": "simulate",
    "base": {
        "step_time": {"kind": "affine", "base": 0.002, "per_sequence": 0.0001},
        "engine": {"num_blocks": 500, "max_num_batched_tokens": 2048},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 1}, "requests": 2000, "prompt": 100,
            "output": {"kind": "exponential", "mean": 60},
        },
    },
    "grid": {"rate": [2, 4], "max-num-seqs": [4, 16], "seed": list(range(8))},
}  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(SIMULATE, sort_keys=False))
    return load_study(path)


def ray_workers() -> list[int]:
    """Processes of Ray that run a part now; Ray names them after their task."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and b"ray::answer_part" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_killed_ray_worker_loses_no_cell(tmp_path: Path, study: Study) -> None:
    pytest.importorskip("ray", reason="needs ray: pip install 'kvplan-llm[ray]'")
    with Store(tmp_path / "here", study, columns_of(study), "csv") as store:
        sweep(study, store, workers=1)
        here = store.finish().read_bytes()
    killed: list[int] = []

    def progress(done: int, total: int) -> None:
        if done >= 4 and not killed and (running := ray_workers()):
            os.kill(running[0], signal.SIGKILL)
            killed.append(running[0])

    with Store(tmp_path / "ray", study, columns_of(study), "csv") as store:
        sweep(study, store, engine="ray", workers=2, progress=progress)
        there = store.finish().read_bytes()
    assert killed
    assert there == here


def test_an_address_that_does_not_answer_is_said_soon(tmp_path: Path, study: Study) -> None:
    pytest.importorskip("ray", reason="needs ray: pip install 'kvplan-llm[ray]'")
    with (
        Store(tmp_path / "out", study, columns_of(study), "csv") as store,
        pytest.raises(InputError, match=r"found no Ray cluster at 127\.0\.0\.1:1"),
    ):
        sweep(study, store, engine="ray", address="127.0.0.1:1")


def test_without_ray_the_extra_is_named(tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        Store(tmp_path / "out", study, columns_of(study), "csv") as store,
        pytest.raises(InputError, match=r"kvplan-llm\[ray\]"),
    ):
        sweep(study, store, engine="ray")
