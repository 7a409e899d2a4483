"""Requests from laws and from traces, one by one. Equal seeds give equal requests, whatever the engine does."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from kvplan.errors import InputError
from kvplan.performance.reads import TICKS
from kvplan.simulator.request import UNSET, Request
from kvplan.simulator.scenario import Arrivals, Law, Scenario, Workload
from kvplan.simulator.traces import Trace, open_trace


def sampler(law: Law, random: Random) -> Callable[[], float]:
    """A function that draws from `law`."""
    draw = _draw(law, random)
    if law.least == 0 and law.most is None:
        return draw
    most = math.inf if law.most is None else law.most
    return lambda: min(max(draw(), law.least), most)


def _draw(law: Law, random: Random) -> Callable[[], float]:
    match law.kind:
        case "constant":
            value = law.value or 0.0
            return lambda: value
        case "uniform":
            low, high = law.low or 0.0, law.high or 0.0
            return lambda: low + (high - low) * random.random()
        case "exponential":
            rate = 1 / (law.mean or 1.0)
            return lambda: random.expovariate(rate)
        case "gamma":
            cv, mean = law.cv or 1.0, law.mean or 1.0
            return lambda: random.gammavariate(1 / cv**2, mean * cv**2)
        case "lognormal":
            sigma = math.sqrt(math.log(1 + (law.cv or 1.0) ** 2))
            mu = math.log(law.mean or 1.0) - sigma**2 / 2
            return lambda: random.lognormvariate(mu, sigma)
        case "empirical":
            points = law.points or ()
            shares = [share for _, share in points]
            return lambda: points[min(bisect_left(shares, random.random()), len(points) - 1)][0]


def whole(draw: Callable[[], float]) -> Callable[[], int]:
    """Draws rounded to tokens, at least one."""
    return lambda: max(1, round(draw()))


def arrival_gaps(arrivals: Arrivals, random: Random) -> Iterator[float]:
    """Seconds between arrivals, without end."""
    rate = arrivals.rate or 1.0
    match arrivals.kind:
        case "poisson":
            while True:
                yield random.expovariate(rate)
        case "constant":
            while True:
                yield 1 / rate
        case "gamma":
            cv = arrivals.cv or 1.0
            while True:
                yield random.gammavariate(1 / cv**2, cv**2 / rate)
        case "at_once":
            while True:
                yield 0.0
        case "on_off":
            yield from _on_off(arrivals, random)
        case "closed":
            raise AssertionError("closed arrivals follow from finished requests")


def _on_off(arrivals: Arrivals, random: Random) -> Iterator[float]:
    """Poisson at `rate` while on and `rate_off` while off; both phases have exponential lengths."""
    on, left, gap = True, random.expovariate(1 / (arrivals.mean_on or 1.0)), 0.0
    while True:
        rate = (arrivals.rate or 0.0) if on else arrivals.rate_off
        wait = random.expovariate(rate) if rate else math.inf
        if wait < left:
            left -= wait
            yield gap + wait
            gap = 0.0
        else:
            gap += left
            on = not on
            mean = arrivals.mean_on if on else arrivals.mean_off
            left = random.expovariate(1 / (mean or 1.0))


class Synthetic:
    """Requests drawn from the laws of a workload; sessions and closed loops continue when one finishes."""

    def __init__(self, workload: Workload, seed: int, duration: float | None) -> None:
        assert workload.arrivals is not None
        self.workload, self.arrivals = workload, workload.arrivals
        names = ("arrivals", "lengths", "service", "sessions", "prefix")
        streams = {name: Random(f"{seed}/{name}") for name in names}  # noqa: S311 (a simulation, no secrets)
        self._random = streams
        self._prompt = whole(sampler(workload.prompt, streams["lengths"])) if workload.prompt else lambda: 1
        self._output = whole(sampler(workload.output, streams["lengths"])) if workload.output else lambda: 1
        self._service = sampler(workload.service, streams["service"]) if workload.service else None
        self._think = sampler(self.arrivals.think, streams["arrivals"]) if self.arrivals.think else (lambda: 0.0)
        sessions = workload.sessions
        self._turns = whole(sampler(sessions.turns, streams["sessions"])) if sessions else None
        self._idle = sampler(sessions.idle, streams["sessions"]) if sessions else None
        self._open: dict[int, tuple[int, tuple[Hashable, ...], tuple[int, ...], int]] = {}
        self._limit = workload.requests if workload.requests is not None else 1 << 60
        self._until = round(duration * TICKS) if duration is not None else 1 << 120
        self._made = 0
        self._weights = list(workload.priorities)
        self.feeds_back = sessions is not None or self.arrivals.kind == "closed"

    def stream(self) -> Iterator[Request]:
        """Requests (or first turns) in order of arrival."""
        if self.arrivals.kind == "closed":
            for _ in range(self.arrivals.users or 1):
                if self._made < self._limit:
                    yield self._new(0)
            return
        clock = 0.0
        for gap in arrival_gaps(self.arrivals, self._random["arrivals"]):
            clock += gap
            arrival = round(clock * TICKS)
            if self._made >= self._limit or arrival >= self._until:
                return
            first = self._new(arrival)
            yield first
            # vLLM serves n answers as n requests (vllm/v1/engine/parallel_sampling.py): full blocks of the prompt are
            # shared, the last one is each branch's own from the start, so nothing is ever copied on write.
            for _ in range(self.workload.branches - 1):
                if self._made < self._limit:
                    branch = replace(first, id=self._made, output=self._output(), held=[])
                    self._made += 1
                    yield branch

    def _new(self, arrival: int) -> Request:
        number = self._made
        self._made += 1
        prompt, output = self._prompt(), self._output()
        keys: tuple[Hashable, ...] = ()
        ends: tuple[int, ...] = ()
        shared = self.workload.shared_prefix
        if shared is not None:
            group = self._random["prefix"].randrange(shared.groups)
            keys, ends = (("prefix", group),), (shared.tokens,)
            prompt += shared.tokens
        request = Request(number, arrival, prompt, output)
        if self._weights:
            classes = range(len(self._weights))
            request.priority = self._random["lengths"].choices(classes, self._weights)[0]
        if self._service is not None:
            request.service = round(self._service() * TICKS)
        if self._turns is not None:
            request.session = number
            self._open[number] = (self._turns() - 1, keys, ends, 0)
            self._speak(request)
        elif keys or self.workload.branches > 1:
            request.keys, request.ends = (*keys, ("own", number)), (*ends, prompt)
        return request

    def _speak(self, request: Request) -> None:
        """Give a turn the names of its stretches and remember the conversation as it will be after it."""
        session = request.session
        left, keys, ends, turn = self._open[session]
        keys = (*keys, (session, turn, "prompt"), (session, turn, "output"))
        ends = (*ends, request.prompt, request.prompt + request.output)
        request.keys, request.ends, request.turn = keys, ends, turn
        self._open[session] = (left, keys, ends, turn + 1)

    def after(self, request: Request) -> Request | None:
        """The request that follows a finished or refused one."""
        if request.session != UNSET:
            return self._next_turn(request)
        if self.arrivals.kind != "closed" or self._made >= self._limit:
            return None
        when = (request.finished if request.refused is None else request.arrival) + round(self._think() * TICKS)
        return self._new(when) if when < self._until else None

    def _next_turn(self, request: Request) -> Request | None:
        assert self._idle is not None
        left, keys, ends, turn = self._open[request.session]
        if left <= 0 or request.refused is not None or self._made >= self._limit:
            del self._open[request.session]
            return self._next_user(request)
        number = self._made
        self._made += 1
        when = request.finished + round(self._idle() * TICKS)
        following = Request(number, when, ends[-1] + self._prompt(), self._output(), priority=request.priority)
        following.session = request.session
        self._open[request.session] = (left - 1, keys, ends, turn)
        self._speak(following)
        return following

    def _next_user(self, request: Request) -> Request | None:
        if self.arrivals.kind != "closed" or self._made >= self._limit:
            return None
        when = max(request.finished, request.arrival) + round(self._think() * TICKS)
        return self._new(when) if when < self._until else None


class Recorded:
    """The rows of a trace as requests."""

    feeds_back = False

    def __init__(self, trace: Trace, scale_rate: float, duration: float | None, keys: bool) -> None:
        self.trace, self.scale_rate, self.keys = trace, scale_rate, keys
        self.until = math.inf if duration is None else duration

    def stream(self) -> Iterator[Request]:
        """Requests in file order."""
        block = self.trace.block_size or 1
        for number, row in enumerate(self.trace.rows()):
            arrival = row.arrival / self.scale_rate
            if arrival >= self.until:
                return
            request = Request(number, round(arrival * TICKS), row.prompt, max(1, row.output))
            if self.keys and row.keys is not None:
                request.keys = row.keys
                request.ends = (*range(block, row.prompt, block), row.prompt)
            yield request

    def after(self, request: Request) -> Request | None:
        return None


def build_source(scenario: Scenario, folder: Path) -> Synthetic | Recorded:
    """The source of a scenario's requests; a trace's relative path is looked up in `folder`."""
    workload = scenario.workload
    if workload.trace is None:
        return Synthetic(workload, scenario.seed, scenario.duration)
    asked = workload.trace
    path = Path(asked.path)
    trace = open_trace(
        path if path.is_absolute() else folder / path, asked.format, asked.time_unit, asked.block_size, asked.limit
    )
    if not trace.path.is_file():
        raise InputError(f"workload.trace.path: found no file {trace.path}, expected a trace")
    return Recorded(trace, asked.scale_rate, scenario.duration, scenario.engine.enable_prefix_caching is not False)
