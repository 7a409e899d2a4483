"""The event loop: arrivals, replicas and what finished requests bring about, in order of (time, kind, id)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Protocol

from kvplan.simulator.engine import Engine
from kvplan.simulator.metrics import Metrics
from kvplan.simulator.moves import evacuate
from kvplan.simulator.request import FOREVER, Request


class Replica(Protocol):
    """What the loop asks of a replica. `now` is the next time at which it acts."""

    now: int
    finished: list[Request]

    @property
    def waiting(self) -> Sized: ...
    @property
    def busy(self) -> bool: ...
    @property
    def load(self) -> int: ...
    def submit(self, request: Request) -> bool: ...
    def advance(self, limit: int) -> None: ...
    def earliest_change(self) -> int: ...


class Source(Protocol):
    """Where requests come from: a stream in order of arrival, and those that a finished one brings about."""

    feeds_back: bool

    def stream(self) -> Iterator[Request]: ...
    def after(self, request: Request) -> Request | None: ...


Route = Callable[[Request, Sequence[Replica]], int]
#: Called for a request that one replica has finished: the next place it must go, and when; None when it is done.
Handover = Callable[[Request], tuple[int, Request] | None]


class Simulation:
    """Drives replicas from a source until both are empty. `lose` is (time, replica): that one goes down then.

    After an interruption `partial` is set and the metrics hold what was measured so far.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        source: Source,
        metrics: Metrics,
        route: Route,
        handover: Handover | None = None,
        lose: tuple[int, int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.replicas, self.source, self.metrics = replicas, source, metrics
        self.route, self.handover, self.progress = route, handover, progress
        self.lose = lose
        self.alive = list(replicas)
        self.partial = False
        self._stream = source.stream()
        self._heap: list[tuple[int, int, Request, bool]] = []
        self._coming: Request | None = None

    def run(self) -> None:
        """Run to the end; KeyboardInterrupt ends it early and marks the result partial."""
        try:
            self._coming = next(self._stream, None)
            if len(self.replicas) == 1 and self.handover is None and self.lose is None:
                self._one(self.replicas[0])
            else:
                self._many()
        except KeyboardInterrupt:
            self.partial = True

    def _next_time(self) -> int:
        time = self._coming.arrival if self._coming is not None else FOREVER
        return min(time, self._heap[0][0]) if self._heap else time

    def _pop(self) -> tuple[int, Request, bool]:
        """The next arrival: (time, request, whether it is handed over and not new)."""
        coming, heap = self._coming, self._heap
        if coming is not None and (not heap or (coming.arrival, coming.id) <= heap[0][:2]):
            self._coming = next(self._stream, None)
            return coming.arrival, coming, False
        time, _, request, moved = heapq.heappop(heap)
        return time, request, moved

    def _one(self, replica: Replica) -> None:
        progress, beat = self.progress, 0
        while True:
            time = self._next_time()
            if not replica.busy:
                if time == FOREVER:
                    return
                replica.now = max(replica.now, time)
            while time <= replica.now:
                self._submit(self._pop()[1], 0)
                time = self._next_time()
            if replica.busy:
                replica.advance(time)
                if replica.finished:
                    self._collect(replica)
            if progress is not None:
                beat += 1
                if beat % 512 == 0:
                    progress(self.metrics.finished, replica.now)

    def _many(self) -> None:
        replicas, beat = self.replicas, 0
        while True:
            time = self._next_time()
            busy = [replica for replica in replicas if replica.busy]
            if not busy and time == FOREVER:
                return
            first = min(busy, key=lambda replica: replica.now) if busy else None
            if self.lose is not None and min(time, first.now if first is not None else FOREVER) >= self.lose[0]:
                self._lose(*self.lose)
                continue
            if first is None or time <= first.now:
                moment, request, moved = self._pop()
                target = replicas[request.replica] if moved else self.alive[self.route(request, self.alive)]
                place = replicas.index(target)
                if not target.busy:
                    target.now = max(target.now, moment)
                if moved:
                    target.submit(request)
                else:
                    self._submit(request, place)
                continue
            limit = min(time, self.lose[0]) if self.lose is not None else time
            if self.source.feeds_back or self.handover is not None:
                for other in busy:
                    if other is not first:
                        limit = min(limit, other.earliest_change())
            first.advance(max(limit, first.now + 1))
            self._collect(first)
            beat += 1
            if self.progress is not None and beat % 512 == 0:
                self.progress(self.metrics.finished, first.now)

    def _submit(self, request: Request, place: int) -> None:
        replica, metrics = self.replicas[place], self.metrics
        request.replica = place
        metrics.arrive(request, len(replica.waiting))
        if not replica.submit(request):
            metrics.refuse(request)
            self._follow(request, request.arrival)

    def _lose(self, time: int, place: int) -> None:
        """Replica `place` is gone at `time`; its requests start anew on the others."""
        self.lose = None
        gone = self.replicas[place]
        self.alive.remove(gone)
        assert isinstance(gone, Engine)
        for request in evacuate(gone):
            target = self.alive[self.route(request, self.alive)]
            if not target.busy:
                target.now = max(target.now, time)
            self.metrics.event("moved", time, request, place)
            target.submit(request)

    def _collect(self, replica: Replica) -> None:
        for request in replica.finished:
            moved = self.handover(request) if self.handover is not None else None
            if moved is not None:
                heapq.heappush(self._heap, (moved[0], moved[1].id, moved[1], True))
                continue
            self.metrics.finish(request)
            self._follow(request, request.finished)
        replica.finished.clear()

    def _follow(self, request: Request, when: int) -> None:
        if not self.source.feeds_back:
            return
        following = self.source.after(request)
        if following is not None:
            following.arrival = max(following.arrival, when)
            heapq.heappush(self._heap, (following.arrival, following.id, following, False))
