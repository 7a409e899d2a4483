"""From shapes to configurations: how many replicas each needs, at what cost, and which can't do it at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator, find
from kvplan.performance.factors import find_factors
from kvplan.performance.step import ModelStep, model_step
from kvplan.planner.demand import Demand
from kvplan.planner.prices import Offer
from kvplan.planner.request import PlanRequest
from kvplan.planner.room import Room, Rooms, rank_plan
from kvplan.planner.service import Latency, Service, Work, work_of
from kvplan.planner.space import Shape
from kvplan.record import record
from kvplan.spec.resolve import LoadedModel

#: A candidate is ruled out for good only when it misses with this share of the demand: closed forms are averages.
SLACK = 0.9
#: Nor when the estimate at SLACK of the demand misses a limit by no more than this factor.
LOOSE = 1.5
MOST_GROWTH = 64.0


@record
class Candidate:
    """A shape on so many replicas; `gpus` are what is rented. `estimated` are latencies at the planned demand."""

    shape: Shape
    replicas: int
    gpus: int
    nodes: int
    cost_per_hour: float
    estimated: Latency | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """Cheapest first; ties by fewer GPUs, then by load, then by name."""
        load = self.estimated.load if self.estimated is not None else 0.0
        return self.cost_per_hour, self.gpus, round(load, 9), self.shape.key, self.replicas


@dataclass
class Found:
    """One shape that starts: `least` replicas can't be ruled out, `enough` meet everything by the estimate."""

    shape: Shape
    room: Room
    service: Service
    offer: Offer
    least: int | None = None
    enough: int | None = None
    nearest: dict[str, float] = field(default_factory=dict)
    nearest_at: int = 0


@dataclass
class Searched:
    """All that the search knows. `candidates` counts shapes times replica counts; `lost` says why shapes fell out."""

    candidates: int
    shapes: int
    found: list[Found]
    removed: Counter[str]
    lost: Counter[str]
    examples: dict[str, str]
    closest: list[Found]


class Search:
    """One search. Deterministic: the same request gives the same answer."""

    def __init__(
        self, request: PlanRequest, models: dict[str, LoadedModel], demand: Demand,
        offered: tuple[tuple[Accelerator, Offer], ...],
    ) -> None:  # fmt: skip
        self.request, self.models, self.demand = request, models, demand
        self.offers = {device.slug: offer for device, offer in offered}
        self.planned = demand.scaled(1.0 + request.headroom)
        self.rooms = Rooms(request, models, demand)
        self._steps: dict[tuple[object, ...], tuple[ModelStep, Work]] = {}

    def run(
        self, shapes: list[Shape], removed: Counter[str], total: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Searched:  # fmt: skip
        """Memory first, then the roofline and queues."""
        self.rooms.fill(shapes, progress)
        answer = Searched(0, total, [], removed, Counter(), {}, [])
        for shape in shapes:
            answer.candidates += len(self.replica_counts(shape))
            self._one(shape, answer)
        return answer

    def _one(self, shape: Shape, answer: Searched) -> None:
        room = self.rooms.of(shape)
        if room.refused is not None:
            self._lose(answer, shape, f"memory: {_kind(room.refused)}", room.refused)
            return
        if room.max_model_len < self.demand.longest:
            said = f"holds requests of {room.max_model_len:,} tokens at most, {self.demand.longest:,} are asked for"
            self._lose(answer, shape, "the longest request", said)
            return
        counts = self.replica_counts(shape)
        if not counts:
            self._lose(answer, shape, "max_gpus or replicas", "no replica count is left")
            return
        try:
            service = self.service(shape, room)
        except InputError as error:
            self._lose(answer, shape, "no step time", str(error))
            return
        found = Found(shape, room, service, self.offers[shape.gpu])
        found.least = _first(counts, lambda count: self._possible(found, count))
        found.enough = _first(counts, lambda count: self._meets(found, count))
        if found.least is None:
            found.nearest_at = counts[-1]
            found.nearest = self.misses(found, counts[-1]) or {"capacity": 1.0}
            worst = max(found.nearest, key=lambda name: found.nearest[name])
            words = "an endless queue" if worst == "stability" else worst
            self._lose(answer, shape, f"limit: {words}", f"misses {worst} with {counts[-1]} replicas")
            answer.closest.append(found)
            return
        cost = self.candidate(found, found.enough or found.least).cost_per_hour
        if self.request.max_cost_per_hour is not None and cost > self.request.max_cost_per_hour:
            found.nearest, found.nearest_at = {"cost": cost / self.request.max_cost_per_hour}, found.least
            self._lose(answer, shape, "limit: max_cost_per_hour", f"costs {cost:,.2f} an hour")
            answer.closest.append(found)
            return
        answer.found.append(found)

    @staticmethod
    def _lose(answer: Searched, shape: Shape, why: str, example: str) -> None:
        answer.lost[why] += 1
        answer.examples.setdefault(why, f"{shape.words()}: {example}")

    def replica_counts(self, shape: Shape) -> tuple[int, ...]:
        """The replica counts to try, rising, within max_gpus."""
        most = self.request.max_gpus // shape.gpus
        asked = self.request.search.replicas
        return tuple(range(1, most + 1)) if asked is None else tuple(sorted(c for c in set(asked) if c <= most))

    def service(self, shape: Shape, room: Room) -> Service:
        """The closed-form service of a shape. Raises InputError for a model or device without the figures."""
        key = (shape.model, shape.gpu, shape.tensor, shape.kv_cache_dtype)
        if key not in self._steps:
            device = find(shape.gpu)
            factors = find_factors(device.slug, self.request.step_time)
            step = model_step(rank_plan(self.models[shape.model], shape), device, factors, shape.tensor)
            self._steps[key] = step, work_of(step, self.demand, self.request.slo.share)
        step, work = self._steps[key]
        pooled = self.request.routing == "least_loaded"
        return Service(shape, room, step, work, self.demand, self.request.slo, pooled)

    def candidate(self, found: Found, replicas: int, estimated: Latency | None = None) -> Candidate:
        """The configuration of a shape on so many replicas."""
        shape, offer = found.shape, found.offer
        gpus = -(-shape.gpus * replicas // offer.unit) * offer.unit
        return Candidate(shape, replicas, gpus, self.machines(found, replicas), gpus * offer.per_gpu_hour, estimated)

    def machines(self, found: Found, replicas: int) -> int:
        """Machines that the replicas lie on: as few as hold them, two at least where one may be lost."""
        shape, offer = found.shape, found.offer
        if shape.gpus > offer.per_node:
            return -(-shape.gpus // offer.per_node) * replicas
        packed = -(-replicas // (offer.per_node // shape.gpus))
        return max(packed, min(2, replicas)) if self.request.redundancy == "n-1" else packed

    def lost_replicas(self, found: Found, replicas: int) -> int:
        """Replicas that go when one machine does, the fullest of machines that are filled evenly."""
        if found.shape.gpus > found.offer.per_node:
            return 1
        return -(-replicas // self.machines(found, replicas))

    def latency(self, found: Found, replicas: int, demand: Demand) -> Latency:
        """What the estimate says of `demand` over so many replicas."""
        return self._latency(found, replicas, demand, 1.0)

    @staticmethod
    def _latency(found: Found, replicas: int, demand: Demand, factor: float) -> Latency:
        if demand.users is not None:
            return found.service.closed(demand.users * factor, demand.think, replicas)
        return found.service.open((demand.rate or 0.0) * factor, replicas)

    def misses(self, found: Found, replicas: int) -> dict[str, float]:
        """Limits that the estimate misses at the planned demand, and after the loss of a machine where that counts."""
        missed = self.latency(found, replicas, self.planned).misses(self.request.slo)
        if self.request.redundancy == "n-1":
            left = replicas - self.lost_replicas(found, replicas)
            if left < 1:
                return {**missed, "loss of a machine": math.inf}
            after = self.latency(found, left, self.demand).misses(self.request.slo)
            missed.update({f"{name} after the loss of a machine": by for name, by in after.items()})
        return missed

    def _meets(self, found: Found, replicas: int) -> bool:
        return not self.misses(found, replicas)

    def _possible(self, found: Found, replicas: int) -> bool:
        """Whether a bound leaves a chance: what this rules out, no simulation is to save."""
        if not self._bounded(found, replicas, self.planned):
            return False
        if self.request.redundancy != "n-1":
            return True
        left = replicas - self.lost_replicas(found, replicas)
        return left >= 1 and self._bounded(found, left, self.demand)

    def _bounded(self, found: Found, replicas: int, demand: Demand) -> bool:
        service, limits = found.service, self.request.slo
        if limits.ttft is not None and service.least_ttft() * SLACK > limits.ttft:
            return False
        if limits.tpot is not None and service.least_tpot() * SLACK > limits.tpot:
            return False
        if demand.users is None and (demand.rate or 0.0) * SLACK > service.bound() * replicas:
            return False
        if demand.users is not None and demand.think == 0 and demand.users > service.most * service.streams * replicas:
            return False
        eased = self._latency(found, replicas, demand, SLACK)
        return all(by <= LOOSE for by in eased.misses(limits).values())

    def growth(self, found: Found, replicas: int) -> float:
        """How many times the demand (not the planned one) the replicas carry within every limit, by the estimate."""
        low, high = 0.0, 1.0
        while high < MOST_GROWTH and self._carries(found, replicas, high):
            low, high = high, high * 2
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self._carries(found, replicas, middle) else (low, middle)
        return low

    def _carries(self, found: Found, replicas: int, factor: float) -> bool:
        return not self._latency(found, replicas, self.demand, factor).misses(self.request.slo)


def _first(counts: tuple[int, ...], holds: Callable[[int], bool]) -> int | None:
    """The first of rising counts that `holds`, which more replicas never undo; None for none."""
    if not counts or not holds(counts[-1]):
        return None
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(counts[middle]) else (middle + 1, high)
    return counts[low]


def _kind(refusal: str) -> str:
    """Refusals without their numbers, so that equal ones count together."""
    if "not even one token" in refusal or "no token fits" in refusal or "no block fits" in refusal:
        return "weights leave no room for a cache"
    if "tokens needs" in refusal:
        return "one request doesn't fit"
    return "the engine refuses it"
