"""Kept blocks outside the pool: a store of bounded size behind a link that concurrent transfers share fairly.

A cache comes back only for an exact prefix match. Loads overlap with the steps of other requests; the one that waits
for its blocks starts when they are there. Moving out does not hold up a step: links carry both directions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
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
class Store:
    """One tier: `capacity` blocks kept in order of use, behind a link. `pinned` bounds the bytes under way, None where
    nothing does."""

    name: str
    capacity: int
    block_bytes: int
    link: Link
    write_through: bool = True
    pinned: int | None = None
    stored_blocks: int = 0
    moved_out: int = 0
    moved_in: int = 0
    loads: int = 0
    under_way: dict[int, int] = field(default_factory=dict)
    _held: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)

    def put(self, key: Hashable, blocks: int) -> list[tuple[Hashable, int]]:
        """Keep the first `blocks` blocks of `key`; returns the least recently used keys that had to make room."""
        held = self._held.pop(key, 0)
        grown = max(held, blocks)
        self.stored_blocks += grown - held
        self.moved_out += grown - held
        self._held[key] = grown
        dropped = []
        while self.stored_blocks > self.capacity:
            gone, count = self._held.popitem(last=False)
            self.stored_blocks -= count
            dropped.append((gone, count))
        return dropped

    def holds(self, key: Hashable) -> int:
        """Leading blocks of `key` that are kept here."""
        return self._held.get(key, 0)

    def use(self, key: Hashable) -> None:
        """Mark `key` as used now."""
        self._held.move_to_end(key)

    def admits(self, blocks: int) -> bool:
        """Whether a load of `blocks` may begin: the pinned buffers have room, or nothing else uses them."""
        taken = sum(self.under_way.values())
        return self.pinned is None or not taken or (taken + blocks) * self.block_bytes <= self.pinned


class Tiers:
    """One replica's tiers, the nearest first, and the loads under way. What one drops goes to the next where that one
    keeps what is evicted above it; a load takes each block from the nearest tier that has it."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self.loading: dict[int, Request] = {}

    def finished(self, key: Hashable, blocks: int) -> None:
        """A request that ended leaves `blocks` blocks of `key`."""
        for place, store in enumerate(self.stores):
            if store.write_through:
                self._put(place, key, blocks)

    def evicted(self, key: Hashable, left: int, count: int) -> None:
        """The pool gave up `count` blocks of `key`, after the first `left`."""
        if not self.stores[0].write_through:
            self._put(0, key, left + count)

    def _put(self, place: int, key: Hashable, blocks: int) -> None:
        dropped = self.stores[place].put(key, blocks)
        below = place + 1
        if below < len(self.stores) and not self.stores[below].write_through:
            for gone, count in dropped:
                self._put(below, gone, count)

    def beyond(self, request: Request, extents: list[Extent], hits: int, block: int, limit: int) -> list[int]:
        """Blocks from each store that continue the run of `hits` resident ones, over at most `limit` tokens."""
        counts = [0] * len(self.stores)
        room = limit // block
        left, start = room - hits, 0
        for index, (key, end) in enumerate(zip(request.keys, request.ends, strict=True)):
            size = end // block - start
            have = extents[index].blocks if index < len(extents) else 0
            for place, store in enumerate(self.stores):
                more = min(min(store.holds(key), size) - have, left)
                if more > 0:
                    store.use(key)
                    counts[place] += more
                    have, left = have + more, left - more
            start += size
            if have < size or start >= room:
                break
        return counts

    def admits(self, counts: Sequence[int]) -> bool:
        """Whether so many blocks of each store may be loaded now."""
        return all(store.admits(count) for store, count in zip(self.stores, counts, strict=True) if count)

    def begin(self, now: int, request: Request, counts: Sequence[int]) -> None:
        """Start loading for `request`, from all its tiers at once."""
        self.loading[request.id] = request
        for store, count in zip(self.stores, counts, strict=True):
            if count:
                store.loads += 1
                store.moved_in += count
                store.under_way[request.id] = count
                store.link.start(now, request.id, count * store.block_bytes)

    def done(self, now: int) -> list[Request]:
        """Requests all of whose blocks are there."""
        for store in self.stores:
            for number in store.link.ended(now):
                store.under_way.pop(number, None)
        arrived = sorted(n for n in self.loading if not any(n in store.under_way for store in self.stores))
        return [self.loading.pop(number) for number in arrived]

    def next_time(self) -> int:
        """When the next load ends if no other begins; FOREVER when none is under way."""
        return min(store.link.next_time() for store in self.stores)
