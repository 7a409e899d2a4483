"""The decoding sequences of one replica, as sums: their reads, their blocks by residue, who ends or changes next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvplan.simulator.laws import Growth, Layout
from kvplan.simulator.request import FOREVER, UNSET, Request

if TYPE_CHECKING:
    from kvplan.performance.step import StepTime


class Batch:
    """Sequences that gain one token in every step. `step` counts the steps taken so far.

    `reads` are the ticks of decode attention in the next step, `slope` what each further step adds. `stored_tokens` and
    `expected_tokens` are what the members hold and are still to write.
    """

    def __init__(self, layout: Layout, step_time: StepTime) -> None:
        self.layout, self.step_time = layout, step_time
        self.growth = Growth(layout)
        self.step = 0
        self.size = 0
        self.reads = 0
        self.slope = 0
        self.stored_tokens = 0
        self.expected_tokens = 0
        self._knee_points = tuple(sorted({*self.growth.knees, *(knee - 1 for knee in step_time.reads.knees)}))
        self._finish: list[tuple[int, int, Request]] = []
        self._knees: list[tuple[int, int, Request]] = []
        self._joins = 0

    def pace(self) -> tuple[int, int]:
        """What a step of this batch alone costs beside its reads, and the least its reads take."""
        size = self.size
        return self.step_time.fixed(size, size, size), self.step_time.least(size)

    def stored(self, request: Request) -> int:
        """Tokens that a member has in the cache now."""
        return min(request.base + self.step - request.joined, request.cap)

    def join(self, request: Request) -> None:
        """Let a prefilled request decode from the next step on."""
        step, stored, reads = self.step, request.stored, self.step_time.reads
        request.joined, request.base = step, stored
        request.last_step = step + request.output - request.generated
        self.size += 1
        self.reads += reads.ticks(min(stored + 1, request.cap))
        self._joins += 1
        request.order = self._joins
        heapq.heappush(self._finish, (request.last_step, self._joins, request))
        if stored < request.cap:
            self.slope += reads.slope(stored + 1)
            self.growth.change(step, stored, 1)
            knee = next((point for point in self._knee_points if point > stored), FOREVER)
            knee = min(knee, request.cap)
            if knee < FOREVER:
                heapq.heappush(self._knees, (step + knee - stored, self._joins, request))
        self.stored_tokens += stored
        self.expected_tokens += request.output - request.generated

    def leave(self, request: Request) -> None:
        """Take a member out; its counters are brought up to date."""
        done, base, reads = self.step - request.joined, request.base, self.step_time.reads
        request.stored = self.stored(request)
        self.size -= 1
        self.reads -= reads.ticks(min(base + 1, request.cap))
        if base < request.cap:
            slope = reads.slope(base + 1)
            self.slope -= slope
            self.reads -= done * slope
            self.growth.change(request.joined, base, -1)
        request.own_blocks += self.layout.at_rest(request.stored) - self.layout.at_rest(base)
        request.generated += done
        request.last_step = UNSET
        self.stored_tokens -= base + done
        self.expected_tokens -= request.output - request.generated

    def steps_to_change(self) -> int:
        """Steps until a member ends or changes its rhythm."""
        finish = self._finish
        while finish and finish[0][2].last_step != finish[0][0]:
            heapq.heappop(finish)
        change = finish[0][0] if finish else FOREVER
        if self._knees and self._knees[0][0] < change:
            change = self._knees[0][0]
        return change - self.step

    def run(self, count: int) -> Iterator[Request]:
        """Take `count` steps, at most steps_to_change(); yields the members that end, already taken out."""
        self.step += count
        self.reads += count * self.slope
        self.stored_tokens += count * self.size
        self.expected_tokens -= count * self.size
        finish, knees = self._finish, self._knees
        while finish and finish[0][0] <= self.step:
            at, _, request = heapq.heappop(finish)
            if request.last_step == at:
                self.leave(request)
                yield request
        while knees and knees[0][0] <= self.step:
            _, joined, request = heapq.heappop(knees)
            if request.last_step != UNSET and request.order == joined:
                self.leave(request)
                self.join(request)
