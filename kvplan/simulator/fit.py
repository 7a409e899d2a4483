"""One constant from a measured run: the scale of the step time, fitted on its first requests and tried on all."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from kvplan.errors import InputError, show
from kvplan.files import read_text
from kvplan.performance.reads import TICKS
from kvplan.simulator.build import build
from kvplan.simulator.request import Request
from kvplan.simulator.scenario import Scenario

COLUMNS = ("input_tokens", "output_tokens", "arrival_s", "first_token_s", "last_token_s")
ROUNDS = 4


@dataclass(frozen=True)
class Timed:
    """What one request was measured (or simulated) to take, in seconds; `end` counts from the first arrival."""

    output: int
    ttft: float
    tpot: float | None
    end: float


def read_measured(path: Path) -> list[Timed]:
    """Read a measured run: a CSV with COLUMNS among its columns, one row a request in order of arrival.

    Raises InputError naming the line that is wrong.
    """
    reader = csv.DictReader(StringIO(read_text(path)))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{path}: line 1: found no column {missing[0]}, expected {','.join(COLUMNS)}")
    rows = []
    for number, row in enumerate(reader, start=2):
        try:
            output = int(row["output_tokens"])
            arrival, first, last = (float(row[name]) for name in ("arrival_s", "first_token_s", "last_token_s"))
        except (TypeError, ValueError):
            raise InputError(f"{path}: line {number}: found {show(dict(row))}, expected numbers") from None
        if not (math.isfinite(arrival) and arrival <= first <= last < math.inf) or output < 1:
            raise InputError(
                f"{path}: line {number}: found times out of order, expected arrival <= first <= last token"
            )
        rows.append(_timed(output, arrival, first, last))
    if not rows:
        raise InputError(f"{path}: found no request, expected at least one")
    return rows


def _timed(output: int, arrival: float, first: float, last: float) -> Timed:
    return Timed(output, first - arrival, (last - first) / (output - 1) if output > 1 else None, last)


def _mean_tpot(rows: Sequence[Timed]) -> float:
    values = [row.tpot for row in rows if row.tpot is not None]
    if not values:
        raise InputError("--fit: found no request with more than one output token, expected some to fit on")
    return fmean(values)


def fit_scale(scenario: Scenario, path: Path, measured: Path, count: int) -> dict[str, Any]:
    """Fit `step_time.scale` so that the mean TPOT of the first `count` requests is the measured one.

    The scenario's workload is replaced by the measured run's own arrivals and lengths. Returns the scale and, over the
    whole run, both sides and the relative error of throughput, mean TPOT and mean TTFT.
    """
    rows = read_measured(measured)
    wanted = _mean_tpot(rows[:count])
    data = scenario.model_dump(mode="python", exclude_unset=True)
    trace = {"path": str(measured.resolve()), "format": "csv", "time_unit": "s"}
    scale = scenario.step_time.scale
    simulated = _simulate(data, trace, scale, path)
    for _ in range(ROUNDS):
        found = _mean_tpot(simulated[:count])
        if abs(found / wanted - 1) < 1e-4:
            break
        scale *= wanted / found
        simulated = _simulate(data, trace, scale, path)
    if len(simulated) != len(rows):
        raise InputError(f"{measured}: found {len(rows) - len(simulated)} requests that the scenario can't serve")
    return {
        "schema_version": 1,
        "command": "simulate --fit",
        "scale": scale,
        "fitted_on": min(count, len(rows)),
        "requests": len(rows),
        **_compare("output_tokens_per_s", _throughput(rows), _throughput(simulated)),
        **_compare("tpot_mean_s", _mean_tpot(rows), _mean_tpot(simulated)),
        **_compare("ttft_mean_s", fmean(row.ttft for row in rows), fmean(row.ttft for row in simulated)),
    }


def _throughput(rows: Sequence[Timed]) -> float:
    return sum(row.output for row in rows) / max(row.end for row in rows)


def _compare(name: str, measured: float, simulated: float) -> dict[str, Any]:
    return {name: {"measured": measured, "simulated": simulated, "error": simulated / measured - 1}}


def _simulate(data: dict[str, Any], trace: dict[str, Any], scale: float, path: Path) -> list[Timed]:
    step = {**data.get("step_time", {}), "scale": scale}
    scenario = Scenario.model_validate({**data, "workload": {"trace": trace}, "step_time": step, "duration": None})
    built = build(scenario, path.parent)
    done: list[Request] = []
    built.metrics.on_request = done.append
    built.simulation.run()
    if built.simulation.partial:  # a fit on half a run is none
        raise KeyboardInterrupt
    served = sorted((request for request in done if request.refused is None), key=lambda request: request.id)
    return [
        _timed(request.output, request.arrival / TICKS, request.first_token / TICKS, request.finished / TICKS)
        for request in served
    ]
