"""Simulation of finalists: the scenario of a configuration, and the cheapest-first search that proves the best."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.planner.demand import TRACE_ROWS, Demand
from kvplan.planner.request import Limits, PlanRequest
from kvplan.planner.room import Rooms
from kvplan.planner.search import Candidate, Found, Search
from kvplan.record import record
from kvplan.simulator.scenario import parse_scenario
from kvplan.simulator.study import run

FEWEST, MOST = 600, 20_000
SECONDS = 240.0
CYCLES = 6
EACH_REPLICA, MEASURED = 50, 20
#: More of a closed loop are too many to simulate.
MOST_USERS = 20_000


@record
class Verified:
    """A simulated configuration: the scenario, the document `kvplan simulate` prints for it, and what it misses.

    `after_loss` is the document of the same with a machine lost, where redundancy asks for it.
    """

    candidate: Candidate
    scenario: dict[str, Any]
    document: dict[str, Any]
    missed: dict[str, float]
    after_loss: dict[str, Any] | None = None

    @property
    def meets(self) -> bool:
        return not self.missed


class Verifier:
    """Runs the simulator for candidates, each once, within a budget of runs."""

    def __init__(
        self, request: PlanRequest, search: Search, folder: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self.request, self.search, self.folder, self.progress = request, search, folder, progress
        self.runs = 0
        self.done: dict[tuple[object, ...], Verified | None] = {}

    def check(self, found: Found, replicas: int) -> Verified | None:
        """Simulate a shape on so many replicas; None where the scenario can't be built."""
        candidate = self.search.candidate(found, replicas, self.search.latency(found, replicas, self.search.planned))
        key = (*candidate.shape.key, replicas)
        if key not in self.done:
            self.done[key] = self._simulate(found, candidate)
        return self.done[key]

    @property
    def left(self) -> int:
        """Runs that the budget still has."""
        return self.request.simulations - self.runs

    def _simulate(self, found: Found, candidate: Candidate) -> Verified | None:
        demand = self.search.planned
        scenario = scenario_of(self.request, self.search.rooms, candidate, demand, self.folder)
        try:
            document = self._run(scenario)
        except InputError:  # the simulator's own engine model refuses a pool at its edge
            return None
        missed = misses(document, self.request.slo)
        after = None
        if self.request.redundancy == "n-1":
            left = candidate.replicas - self.search.lost_replicas(found, candidate.replicas)
            if left < 1:
                return Verified(candidate, scenario, document, {**missed, "loss of a machine": math.inf})
            fewer = scenario_of(self.request, self.search.rooms, candidate, self.search.demand, self.folder, left)
            after = self._run(fewer)
            worse = misses(after, self.request.slo)
            missed |= {f"{name} after the loss of a machine": by for name, by in worse.items()}
        return Verified(candidate, scenario, document, missed, after)

    def _run(self, scenario: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        if self.progress is not None:
            self.progress(self.runs, self.request.simulations)
        document = run(parse_scenario(scenario, "plan"), self.folder / "plan.yaml")
        if document["partial"]:
            raise KeyboardInterrupt
        return document

    def best(self, found: list[Found]) -> tuple[list[Verified], int]:
        """Configurations that meet every limit in simulation, cheapest first, and how many shapes might yet be cheaper.

        Each run takes, of the shapes that could still be cheaper than the best so far, the one that the estimate likes
        most, on as many replicas as stay cheaper. What fails there fails on fewer replicas too, so that one run settles
        a shape; what passes is the new best. With 0 shapes left the first is the cheapest there is.
        """
        able = [item for item in found if item.shape.simulated]
        failed = dict.fromkeys((item.shape for item in able), 0)
        best: Verified | None = None
        while True:
            trials = [trial for item in able if (trial := self._trial(item, failed[item.shape], best)) is not None]
            if not trials or self.left <= 0:
                break
            item, replicas = min(trials, key=self._promise)
            checked = self.check(item, replicas)
            if checked is not None and checked.meets:
                best = checked if best is None or self._order(checked) < self._order(best) else best
            else:
                failed[item.shape] = replicas if checked is not None else 1 << 30
        good = [item for item in self.done.values() if item is not None and item.meets]
        good.sort(key=self._order)
        return good, len(trials)

    def _trial(self, found: Found, failed: int, best: Verified | None) -> tuple[Found, int] | None:
        """A shape on the most replicas that would still be the best, None where none could."""
        least = max(found.least or 1, failed + 1)
        counts = [count for count in self.search.replica_counts(found.shape) if count >= least]
        if best is not None:
            counts = [count for count in counts if self._rank(found, count) < self._order(best)]
            return (found, counts[-1]) if counts else None
        wanted = max(found.enough or found.least or 1, int(failed * 1.25))
        at = next((count for count in counts if count >= wanted), None)
        return None if at is None else (found, at)

    def _promise(self, trial: tuple[Found, int]) -> tuple[object, ...]:
        """What the estimate misses, least first; then the cheapest."""
        found, replicas = trial
        missed = self.search.misses(found, replicas)
        return max(missed.values(), default=0.0), self._rank(found, replicas)

    def _order(self, verified: Verified) -> tuple[object, ...]:
        return verified.candidate.order

    def _rank(self, found: Found, replicas: int) -> tuple[object, ...]:
        latency = self.search.latency(found, replicas, self.search.planned)
        return self.search.candidate(found, replicas, latency).order

    def _by_estimate(self, found: list[Found]) -> list[Found]:
        """One shape of each hardware that is enough by the estimate, the cheapest first."""
        able = [item for item in found if item.enough is not None and item.shape.simulated]
        able.sort(key=lambda item: self._rank(item, item.enough or 1))
        first: dict[tuple[object, ...], Found] = {}
        for item in able:
            first.setdefault(item.shape.key[:6], item)
        return list(first.values())

    def _enough(self, found: Found) -> Verified | None:
        """Simulate from the estimate's count upwards until it meets every limit, four times at most."""
        count = found.enough
        for _ in range(4):
            checked = self.check(found, count) if count is not None and self.left > 0 else None
            if checked is None or count is None:
                return None
            if checked.meets:
                return checked
            least = max(count + 1, int(count * 1.25))
            count = next((later for later in self.search.replica_counts(found.shape) if later >= least), None)
        return None

    def more(self, found: list[Found], good: list[Verified]) -> list[Verified]:
        """Further finalists on other hardware, the cheapest by the estimate first."""
        taken = {item.candidate.shape.key[:6] for item in good}
        finalists = list(good)
        for item in self._by_estimate(found):
            if len(taken) >= self.request.finalists or self.left <= 0:
                break
            if item.shape.key[:6] in taken:
                continue
            checked = self._enough(item)
            if checked is not None:
                finalists.append(checked)
                taken.add(item.shape.key[:6])
        return sorted(finalists, key=self._order)


def scenario_of(
    request: PlanRequest, rooms: Rooms, candidate: Candidate, demand: Demand, folder: Path,
    replicas: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The scenario of a candidate under a demand, ready for `kvplan simulate`."""
    shape, room = candidate.shape, rooms.of(candidate.shape)
    factor = 1.0
    if demand.users is None and rooms.demand.rate:
        factor = (demand.rate or 0.0) / rooms.demand.rate
    engine: dict[str, Any] = {
        "version": room.version,
        "max_model_len": room.max_model_len,
        "max_num_seqs": room.seqs,
        "max_num_batched_tokens": room.batched,
        "kv_cache_memory": room.available_bytes,
        "kv_cache_dtype": shape.kv_cache_dtype,
        "enable_prefix_caching": "prefix-caching" not in request.forbid,
    }
    if shape.block_size is not None:
        engine["block_size"] = shape.block_size
    count = replicas or candidate.replicas
    requests = _requests(request, demand)
    if request.requests is None and demand.recorded is None:
        requests = max(requests, EACH_REPLICA * count)
    warmup = min(2 * demand.users, requests // 2) if demand.users is not None else min(requests // 10, 1000)
    limits = {name: getattr(request.slo, name) for name in ("ttft", "tpot", "e2e")}
    return {
        "name": f"{count} x {shape.words()}",
        "model": shape.model,
        "hardware": {"gpu": shape.gpu, "tensor_parallel": shape.tensor},
        "engine": engine,
        "step_time": {"kind": request.step_time},
        "workload": _workload(request, demand, factor, requests, folder),
        "replicas": count,
        "routing": request.routing,
        "slo": {name: limit for name, limit in limits.items() if limit is not None},
        "seed": request.seed,
        "warmup_requests": warmup,
    }


def _requests(request: PlanRequest, demand: Demand) -> int:
    """Enough of them for a steady p99: some cycles of every user, or some minutes of arrivals."""
    if demand.recorded is not None:
        return demand.recorded
    if request.requests is not None:
        return request.requests
    if demand.users is not None:
        return max(FEWEST, min(max(MOST, 3 * demand.users), CYCLES * demand.users))
    return max(FEWEST, min(MOST, round((demand.rate or 0.0) * SECONDS)))


def _workload(request: PlanRequest, demand: Demand, factor: float, requests: int, folder: Path) -> dict[str, Any]:
    workload: dict[str, Any] = request.workload.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if "trace" in workload:
        trace = workload["trace"]
        path = Path(trace["path"])
        trace["path"] = str(path if path.is_absolute() else (folder / path).resolve())
        trace["limit"] = min(trace.get("limit", TRACE_ROWS), TRACE_ROWS)
        trace["scale_rate"] = trace.get("scale_rate", 1.0) * factor
        return workload
    arrivals = workload["arrivals"]
    if demand.users is not None:
        arrivals["users"] = demand.users
    else:
        for name in ("rate", "rate_off"):
            if name in arrivals:
                arrivals[name] *= factor
    workload["requests"] = requests
    return workload


def misses(document: dict[str, Any], limits: Limits) -> dict[str, float]:
    """Limits that a simulated run misses, each with the factor; `stability` and `unservable` for what no percentile
    is quoted of."""
    if document["stability"] != "stable":
        return {"stability": 1.0}
    if document["requests"]["measured"] < MEASURED:
        return {"requests measured": MEASURED / max(1, document["requests"]["measured"])}
    if document["requests"]["unservable"]:
        return {"unservable": float(sum(document["requests"]["unservable"].values()))}
    found = {}
    for name, limit in limits.given().items():
        time = document["latency"][f"{name}_s"][limits.quantile]
        if time > limit:
            found[name] = time / limit
    return found
