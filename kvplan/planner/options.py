"""Configurations with everything a decision asks for: cost, capacity, what binds, headroom, the loss of a machine."""

from __future__ import annotations

import math
from typing import Any

from kvplan.planner.answer import Loss, Option, Point, Simulated, Times
from kvplan.planner.request import PlanRequest
from kvplan.planner.search import Candidate, Found, Search, Searched
from kvplan.planner.service import Latency
from kvplan.planner.verify import Verified, Verifier
from kvplan.units import seconds


class Options:
    """Builds the options of one plan."""

    def __init__(self, request: PlanRequest, search: Search, verifier: Verifier) -> None:
        self.request, self.search, self.verifier = request, search, verifier

    def ranked(self, searched: Searched, good: list[Verified], most: int) -> tuple[Option, ...]:
        """One option for each kind of hardware, cheapest first: simulated, or estimated where no run settled it.

        A shape whose simulation failed on what the estimate thought enough is left out.
        """
        by_shape = {item.shape: item for item in searched.found}
        chosen: dict[tuple[object, ...], tuple[Candidate, Found, Verified | None]] = {}
        for verified in good:
            candidate = verified.candidate
            chosen.setdefault(candidate.shape.key[:8], (candidate, by_shape[candidate.shape], verified))
        tried = {item.candidate.shape.key[:8] for item in self.verifier.done.values() if item is not None}
        estimates = [
            self.search.candidate(item, item.enough, self.search.latency(item, item.enough, self.search.planned))
            for item in searched.found
            if item.enough is not None and (item.shape.key[:8] not in tried or not item.shape.simulated)
        ]
        for candidate in sorted(estimates, key=lambda item: item.order):
            chosen.setdefault(candidate.shape.key[:8], (candidate, by_shape[candidate.shape], None))
        rows = sorted(chosen.values(), key=lambda row: (row[0].cost_per_hour, row[2] is None, row[0].order))
        kept = rows[:most]
        first = next((row for row in rows if row[2] is not None), None)
        if first is not None and first not in kept:
            kept = [*kept[: most - 1], first]
        return tuple(self.option(rank + 1, *row, kept[0][0]) for rank, row in enumerate(kept))

    def nearest(self, searched: Searched, most: int) -> tuple[Option, ...]:
        """What comes closest to the limits where nothing meets them."""
        rows: list[tuple[float, Candidate, Found, Verified | None]] = []
        for verified in self.verifier.done.values():
            if verified is not None and verified.missed:
                found = next(item for item in searched.found if item.shape == verified.candidate.shape)
                rows.append((_worst(verified.missed), verified.candidate, found, verified))
        for found in (*searched.found, *searched.closest):
            replicas = found.nearest_at or found.enough or self.search.replica_counts(found.shape)[-1]
            latency = self.search.latency(found, replicas, self.search.planned)
            missed = {**self.search.misses(found, replicas), **found.nearest}
            rows.append((_worst(missed), self.search.candidate(found, replicas, latency), found, None))
        rows.sort(key=lambda row: (round(row[0], 6), row[3] is None, row[1].order))
        kept, seen = [], set()
        for _, candidate, found, verified in rows:
            if candidate.shape.key[:8] not in seen:
                seen.add(candidate.shape.key[:8])
                kept.append((candidate, found, verified))
        first = kept[0][0] if kept else None
        return tuple(self.option(rank + 1, *row, first) for rank, row in enumerate(kept[:most]))

    def option(
        self, rank: int, candidate: Candidate, found: Found, verified: Verified | None, first: Candidate | None
    ) -> Option:
        """One candidate with its figures."""
        shape, room, replicas = candidate.shape, found.room, candidate.replicas
        latency = candidate.estimated or self.search.latency(found, replicas, self.search.planned)
        demand, growth = self.search.demand, self.search.growth(found, replicas)
        rate = self._rate(found, replicas)
        asked = float(demand.users) if demand.users is not None else (demand.rate or 0.0)
        missed = verified.missed if verified is not None else {**self.search.misses(found, replicas), **found.nearest}
        estimated = _times(latency)
        times = estimated if verified is None else self._simulated_times(verified)
        return Option(
            rank=rank,
            name=f"{replicas} x ({f'{shape.model}: ' if len(self.request.models) > 1 else ''}{shape.words()})",
            model=shape.model,
            engine=shape.engine,
            gpu=shape.gpu,
            replicas=replicas,
            gpus=candidate.gpus,
            machines=candidate.nodes,
            tensor_parallel=shape.tensor,
            pipeline_parallel=shape.pipeline,
            data_parallel=shape.data,
            decode_context_parallel=shape.decode_context,
            expert_parallel=shape.expert,
            kv_cache_dtype=shape.kv_cache_dtype,
            block_size=room.block_size,
            max_num_batched_tokens=room.batched,
            max_num_seqs=room.seqs,
            max_model_len=room.max_model_len,
            cost_per_hour=candidate.cost_per_hour,
            cost_per_million_output_tokens=_per_million(candidate.cost_per_hour, rate * demand.output),
            cost_per_million_tokens=_per_million(candidate.cost_per_hour, rate * (demand.output + demand.prompt)),
            starts_at_worst=room.sure,
            kv_capacity_tokens=room.capacity_tokens * replicas * shape.data,
            concurrent_requests=found.service.concurrent * replicas,
            capacity=growth * asked,
            headroom=growth - 1.0,
            load=latency.load,
            binds=self._binds(found, replicas, growth),
            meets=not missed,
            misses={name: by for name, by in missed.items() if math.isfinite(by)},
            basis="estimated" if verified is None else "simulated",
            times=times,
            estimated=estimated,
            loss=self._loss(found, replicas, verified),
            command=room.command,
            simulated=None if verified is None else simulated(verified.document, verified.scenario),
            why_not=self._why_not(candidate, first, missed, verified is not None),
        )

    def _rate(self, found: Found, replicas: int) -> float:
        planned = self.search.planned
        if planned.users is None:
            return planned.rate or 0.0
        return found.service.throughput(planned.users, planned.think, replicas)

    def _simulated_times(self, verified: Verified) -> Times:
        if verified.document["stability"] != "stable":
            return Times(None, None, None)
        latency, place = verified.document["latency"], self.request.slo.quantile
        return Times(latency["ttft_s"][place], latency["tpot_s"][place], latency["e2e_s"][place])

    def _binds(self, found: Found, replicas: int, growth: float) -> str:
        """What gives way first when the demand grows past the capacity."""
        demand = self.search.demand.scaled(max(growth, 0.01) * 1.02)
        latency = self.search.latency(found, replicas, demand)
        missed = latency.misses(self.request.slo)
        full = found.service.slots >= found.room.seqs / found.shape.pipeline
        where = "max_num_seqs" if full else "KV blocks"
        at_slots = latency.batch >= 0.95 * found.service.slots * found.service.streams
        limits = [name for name in missed if name != "stability"]
        if limits and latency.stable:
            return f"{limits[0]}{f' ({where})' if at_slots else ''}"
        return where if at_slots and found.service.slots < found.room.seqs else "step time"

    def _loss(self, found: Found, replicas: int, verified: Verified | None) -> Loss:
        lost = min(replicas, self.search.lost_replicas(found, replicas))
        left = replicas - lost
        if left < 1:
            return Loss(lost, 0, 0.0, False, Times(None, None, None), "estimated")
        latency = self.search.latency(found, left, self.search.demand)
        carries = self.search.growth(found, left)
        if verified is not None and verified.after_loss is not None:
            after = verified.after_loss
            latencies, place = after["latency"], self.request.slo.quantile
            times = Times(*(latencies[f"{name}_s"][place] for name in ("ttft", "tpot", "e2e")))
            return Loss(lost, left, carries, verified.meets, times, "simulated")
        return Loss(lost, left, carries, not latency.misses(self.request.slo), _times(latency), "estimated")

    def _why_not(self, candidate: Candidate, first: Candidate | None, missed: dict[str, float], simulated: bool) -> str:
        """Why this is not the first."""
        if missed:
            worst = max(missed, key=lambda name: missed[name])
            return f"misses {worst} by {missed[worst]:.2f}x" if missed[worst] > 1.0 else f"misses {worst}"
        if first is None or candidate is first:
            return ""
        more = candidate.cost_per_hour - first.cost_per_hour
        if more > 0:
            return f"costs {more:,.2f} an hour more"
        return "same cost, more GPUs" if candidate.gpus > first.gpus else "same cost, not simulated" * (not simulated)

    def front(self, searched: Searched, good: list[Verified], steps: int) -> tuple[Point, ...]:
        """Configurations that none beats in both cost and time to first token, rising in cost."""
        points = []
        for item in good:
            times = self._simulated_times(item)
            if times.ttft_s is not None and times.tpot_s is not None:
                points.append(_point(item.candidate, times.ttft_s, times.tpot_s, True))
        for found in searched.found:
            if found.enough is None:
                continue
            counts = [count for count in self.search.replica_counts(found.shape) if count >= found.enough]
            for count in counts[:steps]:
                if (*found.shape.key, count) in self.verifier.done:  # a simulation has said more
                    continue
                latency = self.search.latency(found, count, self.search.planned)
                points.append(_point(self.search.candidate(found, count), latency.ttft, latency.tpot, False))
        return pareto(points)

    def verdict(self, ranked: tuple[Option, ...], nearest: tuple[Option, ...], currency: str) -> str:
        """The answer in one sentence."""
        if ranked:
            best = next((item for item in ranked if item.basis == "simulated"), ranked[0])
            times = ", ".join(
                f"{name} {seconds(value)}"
                for name, value in (("TTFT", best.times.ttft_s), ("TPOT", best.times.tpot_s))
                if value is not None
            )
            return (
                f"Rent {best.gpus} x {best.gpu}: {best.name} for {best.cost_per_hour:,.2f} {currency} an hour; "
                f"{self.request.slo.quantile} {times} ({best.basis})."
            )
        if nearest:
            closest = nearest[0]
            missed = ", ".join(f"{name} by {by:.2f}x" for name, by in closest.misses.items()) or "the limits"
            return f"Nothing within the limits serves this; the nearest is {closest.name}, which misses {missed}."
        return "Nothing that was searched starts with these lengths; see why below."


def _worst(missed: dict[str, float]) -> float:
    return max(missed.values(), default=0.0)


def _times(latency: Latency) -> Times:
    values = (latency.ttft, latency.tpot, latency.e2e)
    return Times(*(value if math.isfinite(value) else None for value in values))


def _per_million(cost_per_hour: float, tokens_per_second: float) -> float:
    return cost_per_hour / (tokens_per_second * 3600) * 1e6 if tokens_per_second else 0.0


def _point(candidate: Candidate, ttft: float, tpot: float, is_simulated: bool) -> Point:
    return Point(
        f"{candidate.replicas} x ({candidate.shape.words()})", candidate.shape.gpu, candidate.replicas, candidate.gpus,
        candidate.cost_per_hour, ttft, tpot, "simulated" if is_simulated else "estimated",
    )  # fmt: skip


def pareto(points: list[Point]) -> tuple[Point, ...]:
    """The points that none beats in cost and in time to first token, rising in cost.

    A dearer point must answer a fiftieth sooner: less is within what the estimate is off by.
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda item: (item.cost_per_hour, item.ttft_s, item.tpot_s, item.name)):
        if math.isfinite(point.ttft_s) and (not front or point.ttft_s < 0.98 * front[-1].ttft_s):
            front.append(point)
    return tuple(front)


def simulated(document: dict[str, Any], scenario: dict[str, Any]) -> Simulated:
    """The figures of a simulation that an option quotes, as the document has them."""
    latency, throughput = document["latency"], document["throughput"]
    return Simulated(
        document["stability"], latency["ttft_s"], latency["tpot_s"], latency["e2e_s"], latency["queue_s"],
        document["goodput"], throughput["requests_per_s"], throughput["output_tokens_per_s"],
        document["pool"]["mean_use"], document["preemptions"], document["binding"]["resource"], scenario,
    )  # fmt: skip
