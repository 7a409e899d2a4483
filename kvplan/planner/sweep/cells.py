"""One part of a study as columns, whatever its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, KvplanError
from kvplan.planner.sweep.grid import COLUMNS, Columns, Grid
from kvplan.planner.sweep.study import Study

SIMULATED = (
    "stability", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2e_p99_s", "queue_p99_s", "goodput",
    "requests_per_s", "output_tokens_per_s", "hit_rate_tokens", "preemptions", "mean_use", "binding",
)  # fmt: skip
PLANNED = (
    "meets", "name", "gpu", "gpus", "replicas", "tensor_parallel", "kv_cache_dtype", "cost_per_hour",
    "cost_per_million_output_tokens", "ttft_s", "tpot_s", "e2e_s", "basis", "headroom", "binds", "simulations",
)  # fmt: skip


def columns_of(study: Study) -> tuple[str, ...]:
    """The columns of a study's results: the cell, its inputs, its figures, and why it has none."""
    if study.command == "estimate":
        return COLUMNS
    figures = SIMULATED if study.command == "simulate" else tuple(f"plan_{name}" for name in PLANNED)
    return ("cell", *study.names, *figures, "error")


class Cells:
    """Answers the parts of one study. Made once in each worker."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._grid = Grid(study) if study.command == "estimate" else None

    def part(self, number: int) -> Columns:
        """The columns of one part; a cell that can't be answered has its sentence in `error`."""
        if self._grid is not None:
            return self._grid.part(number)
        rows = [self._row(cell) for cell in self.study.span(number)]
        return {name: [row.get(name) for row in rows] for name in columns_of(self.study)}

    def _row(self, cell: int) -> dict[str, Any]:
        values = self.study.values(cell)
        row: dict[str, Any] = {"cell": cell, **values, "error": None}
        try:
            row |= self._simulated(values) if self.study.command == "simulate" else self._planned(values)
        except KvplanError as error:
            row["error"] = str(error)
        return row

    def _simulated(self, values: dict[str, Any]) -> dict[str, Any]:
        from kvplan.simulator.study import changed, run

        path = Path(self.study.folder) / "study.yaml"
        document = run(changed(self.study.base, path, list(values.items())), path)
        if document["partial"]:
            raise KeyboardInterrupt
        latency, throughput = document["latency"], document["throughput"]
        found = {"stability": document["stability"], "goodput": document["goodput"], **throughput}
        for name in ("ttft", "tpot", "e2e", "queue"):
            found |= {f"{name}_{place}_s": latency[f"{name}_s"][place] for place in ("p50", "p99")}
        found |= {
            "hit_rate_tokens": document["prefix_cache"]["hit_rate_tokens"],
            "preemptions": document["preemptions"],
            "mean_use": document.get("pool", {}).get("mean_use"),
            "binding": document["binding"]["resource"],
        }
        return found

    def _planned(self, values: dict[str, Any]) -> dict[str, Any]:
        from kvplan.planner.documents import check_document
        from kvplan.planner.plan import plan
        from kvplan.planner.request import PlanRequest

        document = json.loads(json.dumps(self.study.base, default=str))
        for name, value in values.items():
            _set(document, name, value)
        answer = plan(check_document(document, PlanRequest, "study"), folder=Path(self.study.folder))
        rows = answer.options or answer.nearest
        found: dict[str, Any] = {"plan_meets": bool(answer.options), "plan_simulations": answer.simulations}
        if rows:
            best = next((row for row in rows if row.basis == "simulated"), rows[0])
            times = {"ttft_s": best.times.ttft_s, "tpot_s": best.times.tpot_s, "e2e_s": best.times.e2e_s}
            for name in PLANNED:
                if f"plan_{name}" not in found:
                    found[f"plan_{name}"] = times[name] if name in times else getattr(best, name)
        return found


def _set(document: dict[str, Any], name: str, value: Any) -> None:
    """Set `slo.ttft` or `workload.arrivals.users` in a plan document."""
    *folders, leaf = name.split(".")
    place = document
    for folder in folders:
        place = place.setdefault(folder, {})
        if not isinstance(place, dict):
            raise InputError(f"grid: found {name!r}, expected a setting inside a mapping")
    place[leaf] = value
