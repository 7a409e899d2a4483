"""A workload as the few figures that closed forms ask for, drawn from the very laws and traces that are simulated."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from random import Random

from kvplan.errors import InputError
from kvplan.planner.request import PlanRequest
from kvplan.record import record
from kvplan.simulator.scenario import Arrivals, Scenario, Workload
from kvplan.simulator.workload import arrival_gaps, build_source, sampler, whole

SAMPLES = 2_000
#: Requests of a trace that are planned for and simulated.
TRACE_ROWS = 20_000


@record
class Row:
    """One request: tokens of the prompt, those of them that an earlier request had, and tokens of the answer."""

    prompt: int
    reused: int
    output: int


@record
class Demand:
    """What is asked of all replicas together.

    `rate` in requests a second of an open workload, `users` and `think` (seconds) of a closed one. `bursts` is the
    squared coefficient of variation of the gaps between arrivals. `rows` are requests as they come, `recorded` the
    number of requests of a trace, None for laws.
    """

    rate: float | None
    users: int | None
    think: float
    bursts: float
    rows: tuple[Row, ...]
    recorded: int | None = None

    @cached_property
    def prompt(self) -> float:
        return statistics.fmean(row.prompt for row in self.rows)

    @cached_property
    def fresh(self) -> float:
        """Prompt tokens that must be computed."""
        return statistics.fmean(row.prompt - row.reused for row in self.rows)

    @cached_property
    def output(self) -> float:
        return statistics.fmean(row.output for row in self.rows)

    @cached_property
    def longest(self) -> int:
        """The most tokens that a request has stored at its end."""
        return max(row.prompt + row.output for row in self.rows)

    def fresh_quantile(self, share: float) -> int:
        """Prompt tokens to compute that a `share` of the requests doesn't exceed."""
        return nearest_rank([row.prompt - row.reused for row in self.rows], share)

    def output_quantile(self, share: float) -> int:
        """Output tokens that a `share` of the requests doesn't exceed."""
        return nearest_rank([row.output for row in self.rows], share)

    def scaled(self, factor: float) -> Demand:
        """The same requests, `factor` times as many of them."""
        rate = None if self.rate is None else self.rate * factor
        users = None if self.users is None else max(1, math.ceil(round(self.users * factor, 6)))
        return Demand(rate, users, self.think, self.bursts, self.rows, self.recorded)


def nearest_rank(values: Sequence[int], share: float) -> int:
    """The smallest value that at least a `share` of all doesn't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def squared_variation(values: Sequence[float]) -> float:
    """Variance over the squared mean, 0 for fewer than two values."""
    mean = statistics.fmean(values)
    return statistics.pvariance(values, mean) / mean**2 if len(values) > 1 and mean > 0 else 0.0


def demand_of(request: PlanRequest, folder: Path) -> Demand:
    """The demand of a plan. Raises InputError for a trace that can't be read."""
    workload, cached = request.workload, "prefix-caching" not in request.forbid
    if workload.trace is not None:
        return _recorded(request, folder, cached)
    assert workload.arrivals is not None
    rows = tuple(itertools.islice(_rows(workload, request.seed, cached), SAMPLES))
    arrivals = workload.arrivals
    turns = _turns(workload, request.seed)
    if arrivals.kind == "closed":
        think = _mean(sampler(arrivals.think, Random("think"))) if arrivals.think is not None else 0.0  # noqa: S311
        if workload.sessions is not None:
            idle = _mean(sampler(workload.sessions.idle, Random("idle")))  # noqa: S311
            think = (think + idle * (turns - 1)) / turns
        return Demand(None, arrivals.users, think, 1.0, rows)
    return Demand(_rate(arrivals) * turns, None, 0.0, _bursts(arrivals), rows)


def _mean(draw: object) -> float:
    return statistics.fmean(draw() for _ in range(SAMPLES))  # type: ignore[operator]


def _rate(arrivals: Arrivals) -> float:
    rate = arrivals.rate or 1.0
    if arrivals.kind != "on_off":
        return rate
    on, off = arrivals.mean_on or 1.0, arrivals.mean_off or 1.0
    return (rate * on + arrivals.rate_off * off) / (on + off)


def _bursts(arrivals: Arrivals) -> float:
    """From drawn gaps; a law that names its own needs none."""
    if arrivals.kind in ("poisson", "constant"):
        return 1.0 if arrivals.kind == "poisson" else 0.0
    if arrivals.kind == "gamma":
        return (arrivals.cv or 1.0) ** 2
    gaps = list(itertools.islice(arrival_gaps(arrivals, Random("gaps")), 10 * SAMPLES))  # noqa: S311
    return squared_variation(gaps)


def _turns(workload: Workload, seed: int) -> float:
    if workload.sessions is None:
        return 1.0
    return _mean(whole(sampler(workload.sessions.turns, Random(f"{seed}/turns"))))  # noqa: S311


def _rows(workload: Workload, seed: int, cached: bool) -> Iterator[Row]:
    """Requests as the simulator draws them; a conversation's turns follow each other."""
    assert workload.prompt is not None
    assert workload.output is not None
    random = Random(f"{seed}/lengths")  # noqa: S311 (the simulator's own stream)
    prompt, output = whole(sampler(workload.prompt, random)), whole(sampler(workload.output, random))
    shared = workload.shared_prefix.tokens if workload.shared_prefix is not None else 0
    sessions = workload.sessions
    turns = whole(sampler(sessions.turns, Random(f"{seed}/turns"))) if sessions is not None else lambda: 1  # noqa: S311
    while True:
        said = shared
        for _ in range(turns()):
            asked, answered = prompt(), output()
            yield Row(said + asked, said if cached else 0, answered)
            said += asked + answered


def _recorded(request: PlanRequest, folder: Path, cached: bool) -> Demand:
    scenario = Scenario.model_validate(
        {"workload": request.workload.model_dump(), "step_time": {"kind": "constant_step", "base": 1.0},
         "engine": {"num_blocks": 1}}
    )  # fmt: skip
    seen: set[Hashable] = set()
    rows, arrivals = [], []
    for item in itertools.islice(build_source(scenario, folder).stream(), TRACE_ROWS):
        arrivals.append(item.arrival / 10**18)
        reused = 0
        for key, end in zip(item.keys, item.ends, strict=False):
            if key not in seen:
                break
            reused = end
        seen.update(item.keys)
        rows.append(Row(item.prompt, min(reused, item.prompt - 1) if cached else 0, item.output))
    span = arrivals[-1] - arrivals[0] if len(arrivals) > 1 else 0.0
    if span <= 0:
        raise InputError("workload.trace: found no two arrivals at different times, expected a trace with a rate")
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    step = max(1, len(rows) // SAMPLES)
    return Demand((len(rows) - 1) / span, None, 0.0, squared_variation(gaps), tuple(rows[::step]), len(rows))
