"""How fast a replica serves, without simulating it: the step time of `kvplan.performance` and queues in closed form.

    decode step      D(b) = fixed(b) + reads of b sequences at the workload's mean context
    prefill of one   P(b) = fresh / q x (fixed(b + q) - fixed(b)) + its attention,  q = the budget left beside b
    decoding at once b = rate x output x D(b) / (1 - rate x P(b)),  time per output token D(b) / (1 - rate x P(b))
    greatest rate    1 / (P(b) + max(output / b, fresh / q) x fixed(b) + output / b x reads(b)) at the most b

A replica of several pipeline stages or data ranks counts as that many engines side by side, each with its share of
the slots: one more micro-batch in flight a stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.performance.reads import TICKS
from kvplan.performance.step import ModelStep
from kvplan.planner import queueing
from kvplan.planner.demand import Demand, Row, squared_variation
from kvplan.planner.request import Limits
from kvplan.planner.room import Room
from kvplan.planner.space import Shape
from kvplan.record import record

#: Rows that stand for all when attention of prefills is averaged.
TYPICAL = 64
STEPS = 40
#: Deviations of a Poisson number of requests beyond which a few in 10^5 arrivals find all slots taken.
SPARE = 5.0


@record
class Latency:
    """Times in seconds at the asked quantile, and what the replica is at: `load` is the share of its greatest rate."""

    ttft: float
    tpot: float
    e2e: float
    batch: float
    load: float
    stable: bool

    def misses(self, limits: Limits) -> dict[str, float]:
        """Limits that aren't met, each with the factor by which it is missed; `stability` for an endless queue."""
        found = {
            name: getattr(self, name) / limit for name, limit in limits.given().items() if getattr(self, name) > limit
        }
        if not self.stable:
            found["stability"] = max(self.load, 1.0)
        return found


@dataclass(frozen=True)
class Work:
    """The workload as one step model sees it: attention of a mean prefill and a mean sequence's reads, in seconds."""

    output: float
    fresh: float
    prefill: float
    reads: float
    tail_fresh: int
    tail_prefill: float
    tail_output: int
    short_output: int
    first_reads: float
    variation: float


def work_of(step: ModelStep, demand: Demand, share: float) -> Work:
    """Average a demand under a step model; `share` is the quantile that counts."""
    ordered = sorted(demand.rows, key=lambda row: (row.prompt - row.reused, row.prompt))
    rows = ordered[:: max(1, len(ordered) // TYPICAL)]
    attention = [step.prefill([_chunk(row)]) / TICKS for row in rows]
    prefill = sum(attention) / len(rows)
    per_token = step.fixed(2048, 1, 0) / TICKS / 2048
    lasts = [time + (row.prompt - row.reused) * per_token for time, row in zip(attention, rows, strict=True)]
    weight = sum(row.output for row in demand.rows)
    reads = sum(row.output * step.reads.ticks(row.prompt + row.output // 2) for row in demand.rows) / weight / TICKS
    tail = demand.fresh_quantile(share)
    worst = next((row for row in ordered if row.prompt - row.reused >= tail), ordered[-1])
    return Work(
        demand.output, demand.fresh, prefill, reads, tail, step.prefill([_chunk(worst)]) / TICKS,
        demand.output_quantile(share), demand.output_quantile(0.25),
        step.reads.ticks(min(row.prompt for row in demand.rows)) / TICKS, squared_variation(lasts),
    )  # fmt: skip


def _chunk(row: Row) -> tuple[int, int]:
    return row.reused, row.prompt - row.reused


class Service:
    """One replica of a shape under one workload."""

    def __init__(
        self, shape: Shape, room: Room, step: ModelStep, work: Work, demand: Demand, limits: Limits, pooled: bool
    ) -> None:
        self.shape, self.step, self.work, self.demand, self.limits = shape, step, work, demand, limits
        self.pooled = pooled
        self.streams = shape.pipeline * shape.data
        self.budget, self.seqs = room.batched, room.seqs
        self.slots = max(1.0, min(room.seqs / shape.pipeline, room.holds / shape.pipeline))
        self.most = max(1.0, min(room.seqs / shape.pipeline, room.most / shape.pipeline))
        self.concurrent = self.slots * self.streams
        self._saturation: float | None = None

    def decode(self, batch: float) -> float:
        """Seconds of a step in which `batch` sequences decode."""
        count = max(1, round(batch))
        fixed = self.step.fixed(count, count, count) / TICKS
        return fixed + max(self.step.least(count) / TICKS, batch * self.work.reads)

    def _prefill(self, batch: float) -> tuple[float, float]:
        """What the prefill of one request adds to the steps it is in, and how many those are."""
        count = max(0, round(batch))
        room = max(1, self.budget - count)
        chunk = max(1, min(room, round(self.work.fresh)))
        base = self.step.fixed(count, count, count) if count else 0
        extra = (self.step.fixed(count + chunk, count + 1, count) - base) / TICKS
        steps = self.work.fresh / chunk
        return steps * extra + self.work.prefill, self.work.fresh / room

    def greatest_rate(self, batch: float) -> float:
        """Requests a second of one stream with at most `batch` decoding at once."""
        count = max(1, round(batch))
        extra, mixed = self._prefill(batch)
        decoding = self.work.output / batch
        fixed = self.step.fixed(count, count, count) / TICKS
        reads = self.decode(batch) - fixed
        return 1.0 / (extra + max(decoding, mixed) * fixed + decoding * reads)

    @property
    def saturation(self) -> float:
        """The greatest rate of the whole replica."""
        if self._saturation is None:
            self._saturation = self.streams * self.greatest_rate(self.slots)
        return self._saturation

    def bound(self) -> float:
        """An upper bound of the replica's rate, from bytes before blocks."""
        return self.streams * max(self.greatest_rate(self.most), self.greatest_rate(self.slots))

    def least_ttft(self) -> float:
        """A lower bound of the quantile's time to first token: that prompt alone on an idle replica."""
        return self._alone(self.work.tail_fresh, 0) + self.work.tail_prefill

    def least_tpot(self) -> float:
        """A lower bound of the time per output token: one sequence alone, at the shortest prompt."""
        fixed = self.step.fixed(1, 1, 1) / TICKS
        return fixed + max(self.step.least(1) / TICKS, self.work.first_reads)

    def _alone(self, fresh: float, batch: float) -> float:
        count = max(0, round(batch))
        room = max(1, self.budget - count)
        whole, rest = divmod(round(fresh), room)
        base = self.decode(batch) - self.step.fixed(count, count, count) / TICKS if count else 0.0
        full = self.step.fixed(room + count, count + 1, count) / TICKS + base if whole else 0.0
        last = self.step.fixed(rest + count, count + 1, count) / TICKS + base if rest else 0.0
        return whole * full + last

    def open(self, rate: float, replicas: int) -> Latency:
        """Latencies at `rate` requests a second over `replicas` of them."""
        load = rate / replicas / self.saturation
        if load >= 1.0:
            return Latency(math.inf, math.inf, math.inf, self.slots * self.streams, load, False)
        return self._latency(rate / replicas / self.streams, load, replicas)

    def closed(self, users: float, think: float, replicas: int) -> Latency:
        """Latencies with `users` of a closed loop over `replicas`, each thinking `think` seconds after an answer."""
        own = users / replicas / self.streams
        rate = self._closed_rate(own, think)
        load = rate * self.streams / self.saturation
        beyond = max(0.0, own - rate * (think + self._response(rate)))
        found = self._latency(rate, load, replicas, beyond / rate if rate else 0.0)
        resident = think > 0 or own <= max(self.slots, 1.0)
        load = max(load, own / self.slots) if think == 0 else load
        return Latency(found.ttft, found.tpot, found.e2e, found.batch, load, resident)

    def throughput(self, users: float, think: float, replicas: int) -> float:
        """Requests a second that `users` of a closed loop make over `replicas`."""
        streams = self.streams * replicas
        return self._closed_rate(users / streams, think) * streams

    def _closed_rate(self, own: float, think: float) -> float:
        """The rate at which thinking and answers take up all users of one stream (N = X (Z + R))."""
        low, high = 0.0, self.saturation / self.streams
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if middle * (think + self._response(middle)) < own else (low, middle)
            if high - low < 1e-6 * high:
                break
        return low

    def _batch(self, rate: float) -> float:
        """Sequences that decode at once on one stream, the fixed point of the head of this file."""
        low, high = 0.0, self.slots
        for _ in range(STEPS):
            middle = (low + high) / 2
            left = 1.0 - rate * self._prefill(middle)[0]
            if left <= 0 or rate * self.work.output * self.decode(middle) / left > middle:
                low = middle
            else:
                high = middle
            if high - low < 1e-3:
                break
        return high

    def _stretch(self, rate: float, batch: float) -> float:
        """How much longer a decode step seems because prefills share the steps."""
        return 1.0 / max(1e-3, 1.0 - rate * self._prefill(batch)[0])

    def _response(self, rate: float) -> float:
        batch = self._batch(rate)
        tpot = self.decode(batch) * self._stretch(rate, batch)
        return self._alone(self.work.fresh, batch) + self.work.prefill + self.work.output * tpot

    def _latency(self, rate: float, load: float, replicas: int, waited: float | None = None) -> Latency:
        """Latencies at `rate` a stream.

        Behind a router that picks the least loaded, replicas share one queue for slots, and partly one for prefills.
        """
        share, work, batch = self.limits.share, self.work, self._batch(rate)
        extra, mixed = self._prefill(batch)
        stretch = self._stretch(rate, batch)
        deviations = {0.5: 0.0, 0.9: 1.28, 0.99: 2.33}[share]
        crowd = min(self.slots, batch + deviations * math.sqrt(batch))
        mean_tpot = self.decode(batch) * stretch
        # Prefills that fall into a short answer: their number varies as a Poisson's.
        pushed = math.sqrt(rate * mean_tpot * extra**2 * (1.0 + work.variation) / max(1, work.short_output))
        tpot = self.decode(crowd) * stretch + deviations * pushed
        one = self._alone(work.fresh, batch) + work.prefill
        worst = self._alone(work.tail_fresh, batch) + work.tail_prefill
        lines = replicas * self.streams if self.pooled else 1
        bursts, service = self.demand.bursts, one + work.output * mean_tpot
        # A prefill holds the steps it is in, decodes and all; several short ones share a step.
        queue = min(rate * (extra + mixed * self.decode(batch)), 0.99)
        if waited is None:
            servers = max(1, int(self.slots)) * lines
            busy = rate * service * lines
            if busy >= servers:
                return Latency(math.inf, math.inf, math.inf, batch * self.streams, max(load, busy / servers), False)
            # With so many slots to spare nobody waits, and Erlang's recursion over thousands of slots is saved.
            spare = busy + SPARE * math.sqrt(busy) < servers
            waited = 0.0 if spare else queueing.ggc_wait_quantile(share, servers, busy, service, bursts, 1.0)
        sooner, later = (self._first(share, servers, queue, one, worst) for servers in (lines, 1))
        # The router counts requests, not the tokens they still compute: the more prompts differ, the less it helps.
        weight = (1.0 + min(1.0, work.variation)) / 2.0
        ttft = waited + later**weight * sooner ** (1.0 - weight) + self.decode(batch) / 2
        return Latency(ttft, tpot, ttft + work.tail_output * mean_tpot, batch * self.streams, load, True)

    def _first(self, share: float, servers: int, queue: float, one: float, worst: float) -> float:
        """Wait for prefills before one's own, and one's own: a long prompt after a mean wait, or the reverse."""
        bursts, variation = self.demand.bursts, self.work.variation
        tail = queueing.ggc_wait_quantile(share, servers, queue * servers, one, bursts, variation)
        mean = queueing.ggc_wait(servers, queue * servers, one, bursts, variation)
        if self.demand.users is not None:  # a closed loop has no more in line than there are users
            tail, mean = min(tail, self.slots * one), min(mean, self.slots * one)
        return max(worst + mean, one + tail)
