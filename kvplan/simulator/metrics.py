"""What is measured, as it happens and in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.performance.reads import TICKS
from kvplan.simulator.request import Request
from kvplan.simulator.sketch import Sketch

if TYPE_CHECKING:
    from kvplan.simulator.engine import Engine

SERIES_POINTS = 2_000


@dataclass(frozen=True)
class Slos:
    """Limits in seconds a request must meet to count as good; None where there is none."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def met(self, ttft: float, tpot: float, e2e: float) -> bool:
        """Whether a request with these times is within all limits."""
        pairs = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        return all(limit is None or time <= limit for limit, time in pairs)


class Trend:
    """How the queue, and all that is in the system, grow over the arrivals: straight lines, and whether they explain
    what was found."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self.largest = 0
        self._sums = [0, 0, 0]
        self._points: list[tuple[int, int, int]] = []  # arrival's number and time, requests in the system
        self._every = 1

    def add(self, waiting: int, present: int, time: int) -> None:
        """One arrival at `time` that finds `waiting` requests waiting and `present` in the system."""
        x = self.count
        self.count += 1
        self.last = waiting
        self.largest = max(self.largest, waiting)
        sums = self._sums
        sums[0] += waiting
        sums[1] += x * waiting
        sums[2] += waiting * waiting
        if x % self._every == 0:
            self._points.append((x, time, present))
            if len(self._points) >= SERIES_POINTS:
                self._points = self._points[::2]
                self._every *= 2

    def label(self, residence: float) -> str:
        """stable, backlogged (a queue is left that isn't growing steadily) or overloaded (it grows with time);
        `residence` is the mean ticks of a request in the system.

        Overloaded: the line of those waiting rises by more than 2 % of a request an arrival, explains over half of the
        variance and ends above ten; or the line of those in the system does so over the second half of the arrivals,
        explains over 0.8 of it and rises by a quarter and twenty requests. The latter is only called a backlog in a run
        too short to tell it from filling up: arrivals over less than three times `residence`.
        """
        n = self.count
        if n < 20:
            return "stable"
        sum_y, sum_xy, sum_yy = self._sums
        slope, explained = _line(n, n * (n - 1) // 2, (n - 1) * n * (2 * n - 1) // 6, sum_y, sum_xy, sum_yy)
        span = self._points[-1][1] - self._points[0][1]
        if self.last > 10 and slope > 0.02 and explained > 0.5:
            return "overloaded" if span else "backlogged"
        if self._fills_up():
            return "overloaded" if span >= 3 * residence else "backlogged"
        left = self.last > 10 and self.last > 3 * (sum_y / n) and self.last > 0.01 * n
        return "backlogged" if left else "stable"

    def _fills_up(self) -> bool:
        points = self._points[len(self._points) // 2 :]
        if self.count < 100:
            return False
        xs, ys = [x for x, _, _ in points], [present for _, _, present in points]
        slope, explained = _line(
            len(xs), sum(xs), sum(x * x for x in xs), sum(ys),
            sum(x * y for x, y in zip(xs, ys, strict=True)), sum(y * y for y in ys),
        )  # fmt: skip
        rise = slope * (xs[-1] - xs[0])
        return slope > 0.02 and explained > 0.8 and rise > max(20.0, 0.25 * (sum(ys) / len(ys) - rise / 2))


def _line(n: int, sum_x: int, sum_xx: int, sum_y: int, sum_xy: int, sum_yy: int) -> tuple[float, float]:
    """Slope of the least-squares line, and the share of the variance that it explains."""
    var_x, cov, var_y = n * sum_xx - sum_x**2, n * sum_xy - sum_x * sum_y, n * sum_yy - sum_y**2
    return (cov / var_x, cov * cov / (var_x * var_y)) if var_x and var_y else (0.0, 0.0)


class Metrics:
    """The observer of a whole run, over all replicas. `warmup` finished requests are left out of the distributions."""

    def __init__(self, slos: Slos, warmup: int = 0) -> None:
        self.slos, self.warmup = slos, warmup
        self.ttft, self.tpot, self.itl = Sketch(), Sketch(), Sketch()
        self.e2e, self.queue = Sketch(), Sketch()
        self.trend = Trend()
        self.arrived = self.finished = self.good = self.waited = 0
        self.refused: Counter[str] = Counter()
        self._refusals = 0
        self.prompt_tokens = self.output_tokens = self.hit_tokens = self.tier_tokens = 0
        self.hit_series: list[tuple[int, int, int]] = [(0, 0, 0)]
        self._hit_every = 1
        self.hit_shares = Sketch()
        self.preemptions = self.recomputed = 0
        self.first_arrival: int | None = None
        self.last_finish = 0
        self.sojourn = 0
        self.steps_taken = 0
        self.decode_steps = 0
        self.batch_ticks = 0
        self.busy_ticks = 0
        self.pool_ticks = 0
        self.stored_ticks = 0
        self.peak_used = 0
        self.peak_batch = 0
        self.bound = Counter[str]()
        self.series: list[tuple[float, int, int, int]] = []
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self.on_request: Callable[[Request], None] | None = None
        self._every = 1
        self._samples = 0

    # -- the observer of an engine ---------------------------------------------------------------------------------

    def steps(
        self, engine: Engine, start: int, decoding: int, count: int, first: int, last: int, held: tuple[int, int, int]
    ) -> None:
        """`count` steps from `start` to the engine's `now` with `decoding` members each."""
        ticks = engine.now - start
        used, stored, running = held
        self.steps_taken += count
        if decoding:
            self.decode_steps += count
            self.itl.add_ramp(first / TICKS, last / TICKS, count, decoding)
        self.batch_ticks += ticks * running
        self.busy_ticks += ticks
        self.pool_ticks += ticks * used
        self.stored_ticks += ticks * stored
        if used > self.peak_used:
            self.peak_used = used
        if decoding > self.peak_batch:
            self.peak_batch = decoding
        if engine.waiting:
            self.bound[engine.blocked_on or "token budget"] += ticks
        self._samples += 1
        if self._samples >= self._every:
            self._samples = 0
            self.series.append((engine.now / TICKS, used, running, len(engine.waiting)))
            if len(self.series) >= SERIES_POINTS:
                self.series = self.series[::2]
                self._every *= 2

    def event(self, kind: str, time: int, request: Request, replica: int) -> None:
        """One thing that happened to one request."""
        if kind == "preempted":
            self.preemptions += 1
        if self.on_event is not None:
            self.on_event({"time_s": time / TICKS, "kind": kind, "request": request.id, "replica": replica})

    # -- the observer of the run -----------------------------------------------------------------------------------

    def arrive(self, request: Request, waiting: int) -> None:
        """A request arrives and finds `waiting` others waiting."""
        self.arrived += 1
        if self.first_arrival is None:
            self.first_arrival = request.arrival
        self.trend.add(waiting, self.arrived - 1 - self.finished - self._refusals, request.arrival)
        self.event("arrived", request.arrival, request, request.replica)

    def refuse(self, request: Request) -> None:
        """A request that can't be served at all, for `request.refused`."""
        self.refused[request.refused or "refused"] += 1
        self._refusals += 1
        if self.on_request is not None:
            self.on_request(request)

    def finish(self, request: Request) -> None:
        """A request is done."""
        self.finished += 1
        sojourn = request.finished - request.arrival
        self.sojourn += sojourn
        if request.finished > self.last_finish:
            self.last_finish = request.finished
        self.prompt_tokens += request.prompt
        self.output_tokens += request.output
        self.hit_tokens += request.hit_tokens
        self.tier_tokens += request.tier_tokens
        self.recomputed += request.recomputed
        if self.finished % self._hit_every == 0:
            self.hit_series.append((self.finished, self.hit_tokens + self.tier_tokens, self.prompt_tokens))
            if len(self.hit_series) > 2 * SERIES_POINTS:
                self.hit_series = self.hit_series[::2]
                self._hit_every *= 2
        if request.admitted > request.arrival:
            self.waited += 1
        if self.finished > self.warmup:
            ttft = (request.first_token - request.arrival) / TICKS
            tpot = (request.finished - request.first_token) / TICKS / max(1, request.output - 1)
            e2e = sojourn / TICKS
            self.ttft.add(ttft)
            if request.output > 1:
                self.tpot.add(tpot)
            self.e2e.add(e2e)
            self.queue.add((request.admitted - request.arrival) / TICKS)
            self.hit_shares.add((request.hit_tokens + request.tier_tokens) / request.prompt if request.prompt else 0.0)
            if self.slos.met(ttft, tpot, e2e):
                self.good += 1
        if self.on_request is not None:
            self.on_request(request)

    @property
    def stability(self) -> str:
        """stable, backlogged or overloaded, as Trend.label says."""
        return self.trend.label(self.sojourn / self.finished if self.finished else 0.0)

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last departure."""
        return max(0, self.last_finish - (self.first_arrival or 0)) / TICKS

    def late_hits(self) -> tuple[int, int]:
        """Hit and prompt tokens of the second half of the finished requests, to one in 4,000 of them."""
        before = [point for point in self.hit_series if point[0] <= self.finished // 2][-1]
        return self.hit_tokens + self.tier_tokens - before[1], self.prompt_tokens - before[2]

    @property
    def measured(self) -> int:
        """Finished requests after the warm-up."""
        return max(0, self.finished - self.warmup)
