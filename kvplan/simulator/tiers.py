"""Kept blocks outside the pool: a store of bounded size behind a link that concurrent transfers share fairly.

A cache comes back only for an exact prefix match. Loads overlap with the steps of other requests; the one that waits
for its blocks starts when they are there. Moving out does not hold up a step: links carry both directions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvplan.performance.reads import TICKS
from kvplan.simulator.request import FOREVER, Request

if TYPE_CHECKING:
    from kvplan.simulator.pool import Extent


class Link:
    """A link of `bandwidth` bytes/s: a transfer of n bytes takes latency + n / bandwidth alone, and twice as long in
    its second part beside another one."""

    def __init__(self, bandwidth: float, latency: float = 0.0) -> None:
        self._per_tick = bandwidth / TICKS
        self._latency = round(latency * TICKS)
        self._coming: list[tuple[int, int, float]] = []
        self._active: dict[int, float] = {}
        self._now = 0

    def start(self, now: int, number: int, size: float) -> None:
        """Begin moving `size` bytes as transfer `number`."""
        self._advance(now)
        self._coming.append((now + self._latency, number, size))
        self._coming.sort()
        self._advance(now)

    def next_time(self) -> int:
        """When the next transfer ends if no other begins; FOREVER when none is under way."""
        now, active, coming = self._now, dict(self._active), list(self._coming)
        while active or coming:
            if not active:
                now = max(now, coming[0][0])
            else:
                end = now + self._ticks(min(active.values()), len(active))
                if not coming or end <= coming[0][0]:
                    return end
                moved = (coming[0][0] - now) * self._per_tick / len(active)
                active = {number: left - moved for number, left in active.items()}
                now = coming[0][0]
            _, number, size = coming.pop(0)
            active[number] = size
        return FOREVER

    def ended(self, now: int) -> list[int]:
        """Transfers that have ended by `now`, in order of their numbers."""
        self._advance(now)
        done = sorted(number for number, left in self._active.items() if left <= 1e-6)
        for number in done:
            del self._active[number]
        return done

    def drop(self, number: int) -> None:
        """Forget a transfer."""
        self._active.pop(number, None)
        self._coming = [entry for entry in self._coming if entry[1] != number]

    def _ticks(self, size: float, sharing: int) -> int:
        return max(0, -int(-size * sharing / self._per_tick // 1))

    def _advance(self, now: int) -> None:
        while self._coming and self._coming[0][0] <= now:
            begin, number, size = self._coming.pop(0)
            self._flow(begin)
            self._active[number] = size
        self._flow(now)

    def _flow(self, until: int) -> None:
        while self._now < until:
            moving = {number: left for number, left in self._active.items() if left > 1e-6}
            if not moving:
                break
            end = min(until, self._now + max(1, self._ticks(min(moving.values()), len(moving))))
            moved = (end - self._now) * self._per_tick / len(moving)
            for number, left in moving.items():
                rest = left - moved
                self._active[number] = rest if rest > 1e-6 else 0.0
            self._now = end
        self._now = max(self._now, until)


@dataclass
class TierState:
    """One replica's tier: `capacity` blocks kept in order of use, and loads under way."""

    name: str
    capacity: int
    block_bytes: int
    link: Link
    write_through: bool = True
    stored_blocks: int = 0
    moved_out: int = 0
    moved_in: int = 0
    loads: int = 0
    loading: dict[int, Request] = field(default_factory=dict)
    _held: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)

    def put(self, key: Hashable, blocks: int) -> None:
        """Keep the first `blocks` blocks of `key`, dropping the least recently used keys when full."""
        held = self._held.pop(key, 0)
        grown = max(held, blocks)
        self.stored_blocks += grown - held
        self.moved_out += grown - held
        self._held[key] = grown
        while self.stored_blocks > self.capacity:
            _, gone = self._held.popitem(last=False)
            self.stored_blocks -= gone

    def evicted(self, key: Hashable, left: int, count: int) -> None:
        """The pool gave up `count` blocks of `key`, after the first `left`."""
        if not self.write_through:
            self.put(key, left + count)

    def beyond(self, request: Request, extents: list[Extent], hits: int, block: int, limit: int) -> int:
        """Blocks that continue the run of `hits` resident ones, over at most `limit` tokens."""
        room = limit // block
        start = found = 0
        for index, (key, end) in enumerate(zip(request.keys, request.ends, strict=True)):
            size = end // block - start
            resident = extents[index].blocks if index < len(extents) else 0
            if resident < size:
                held = min(self._held.get(key, 0), size)
                if held <= resident:
                    break
                self._held.move_to_end(key)
                found += held - resident
                if held < size:
                    break
            start += size
            if start >= room:
                break
        return max(0, min(found, room - hits))

    def begin(self, now: int, request: Request, blocks: int) -> None:
        """Start loading `blocks` blocks for `request`."""
        self.loads += 1
        self.moved_in += blocks
        self.loading[request.id] = request
        self.link.start(now, request.id, blocks * self.block_bytes)

    def done(self, now: int) -> list[Request]:
        """Requests whose blocks are there."""
        return [self.loading.pop(number) for number in self.link.ended(now)]
