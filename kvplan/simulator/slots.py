"""A replica whose requests hold one of c slots for a given time: the queueing theorist's server, on the same loop."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from kvplan.simulator.request import FOREVER, Request

if TYPE_CHECKING:
    from kvplan.simulator.engine import Observer


class SlotEngine:
    """`slots` servers and one queue of at most `queue_limit` requests; slots don't slow each other.

    `now` is when something happens next: the earliest end of a service.
    """

    def __init__(self, slots: int, observer: Observer, queue_limit: int | None = None, replica: int = 0) -> None:
        self.slots, self.observer, self.queue_limit, self.replica = slots, observer, queue_limit, replica
        self.waiting: deque[Request] = deque()
        self.finished: list[Request] = []
        self.now = 0
        self.busy_ticks = 0
        self._ends: list[tuple[int, int, Request]] = []

    @property
    def busy(self) -> bool:
        """Whether a slot is taken."""
        return bool(self._ends)

    @property
    def load(self) -> int:
        """Requests that wait or are served."""
        return len(self.waiting) + len(self._ends)

    def submit(self, request: Request) -> bool:
        """Serve, queue or refuse a request at its arrival."""
        request.replica = self.replica
        if len(self._ends) < self.slots:
            self._serve(request, request.arrival)
            return True
        if self.queue_limit is not None and len(self.waiting) >= self.queue_limit:
            request.refused = "no free slot"
            self.observer.event("refused", request.arrival, request, self.replica)
            return False
        self.waiting.append(request)
        return True

    def earliest_change(self) -> int:
        """No request can finish here before this time."""
        return self._ends[0][0] if self._ends else FOREVER

    def advance(self, limit: int) -> None:
        """End the next service and begin that of the first in the queue."""
        end, _, request = heapq.heappop(self._ends)
        request.first_token = request.finished = end
        request.generated = request.output
        self.finished.append(request)
        if self.waiting:
            self._serve(self.waiting.popleft(), end)
        if self._ends:
            self.now = self._ends[0][0]

    def _serve(self, request: Request, start: int) -> None:
        request.admitted = start
        self.busy_ticks += request.service
        heapq.heappush(self._ends, (start + request.service, request.id, request))
        self.now = self._ends[0][0]
