"""What planning costs: a search over 50,000 candidates, and an estimate grid of 1,000,000 cells.

`python -m benchmarks.planner` prints wall and CPU seconds; exit code 1 where a limit is missed.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvplan.planner.plan import plan
from kvplan.planner.request import PlanRequest
from kvplan.planner.sweep.cells import columns_of
from kvplan.planner.sweep.run import sweep
from kvplan.planner.sweep.store import Store
from kvplan.planner.sweep.study import Study

SEARCH_SECONDS, GRID_SECONDS = 10.0, 20.0
CANDIDATES, CELLS = 50_000, 1_000_000
GPUS = ("h100", "h200", "b200", "a100-80gb", "a100-40gb", "l40s", "rtx-4090", "mi300x", "l4", "a10g")

REQUEST: dict[str, Any] = {
    "models": ["llama-3.1-70b", "llama-3.1-8b"],
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 20},
        "prompt": {"kind": "lognormal", "mean": 3000, "cv": 1, "most": 30000},
        "output": {"kind": "lognormal", "mean": 300, "cv": 1, "most": 2000},
    },
    "slo": {"ttft": "2s", "tpot": "80ms"},
    "gpus": GPUS,
    "search": {
        "tensor_parallel": [1, 2, 4, 8],
        "pipeline_parallel": [1, 2],
        "max_num_batched_tokens": [2048, 4096, 8192],
        "max_num_seqs": [128, 256],
    },
    "max_gpus": 80,
    "finalists": 0,
}
STUDY = Study(
    "estimate",
    {"gpu": "h100"},
    (
        ("model", ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "gemma-3-27b", "gpt-oss-120b")),
        ("kv_cache_dtype", ("auto", "fp8")),
        ("num_gpus", (1, 2, 4, 8)),
        ("batch", (1, 8, 64, 256, 1024)),
        ("ctx", tuple(range(1024, 1024 + 25 * 5000, 25))),
    ),
    ".",
)


def measured(work: Callable[[], int]) -> tuple[int, float, float]:
    """What `work` counts, its wall seconds, and the CPU seconds of this process and its children."""
    start, cpu = time.perf_counter(), _cpu()
    count = work()
    return count, time.perf_counter() - start, _cpu() - cpu


def _cpu() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def search() -> int:
    """Candidates of one search without simulations."""
    return plan(PlanRequest.model_validate(REQUEST)).candidates


def grid() -> int:
    """Cells of one estimate sweep on two processes, results on disk."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), STUDY, columns_of(STUDY), "csv") as store:
        sweep(STUDY, store, workers=2)
        store.finish()
    return STUDY.cells


def main() -> int:
    """Run both and print a line each."""
    failed = False
    for name, work, least, limit in (
        ("search", search, CANDIDATES, SEARCH_SECONDS),
        ("estimate grid", grid, CELLS, GRID_SECONDS),
    ):
        count, wall, cpu = measured(work)
        ok = count >= least and wall <= limit
        failed |= not ok
        print(f"{name}: {count:,} in {wall:.1f} s, {cpu:.1f} s of CPU (limit {limit:g} s): {'ok' if ok else 'MISSED'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
