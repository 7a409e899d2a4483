"""The pool's blocks: free ones, those of running sequences, and full blocks kept for prompts that begin alike.

Blocks of one stretch of a prompt (an *extent*, named by a chained key) are kept together: they are used as a whole and
evicted from their tail, block by block. Only full blocks are kept, and a hit never covers the last token of a prompt,
which must be computed (vllm/v1/core/kv_cache_manager.py). Content that two sequences compute at once is kept once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Literal, TypeAlias

from kvplan.simulator.request import Request

Policy: TypeAlias = Literal["lru", "fifo", "lfu"]


class Extent:
    """Kept blocks of one key: `blocks` of its leading blocks are resident, `users` sequences hold them."""

    __slots__ = ("blocks", "born", "grower", "key", "stamp", "users", "uses")

    def __init__(self, key: Hashable, born: int) -> None:
        self.key = key
        self.blocks = 0
        self.users = 0
        self.uses = 0
        self.born = born
        self.stamp = 0
        self.grower: Request | None = None


class Pool:
    """Blocks as counts. `free` hold nothing, `idle` hold kept blocks that no sequence uses; both can be taken.

    Blocks that hold nothing go first, then idle ones in the order of `policy`. `on_evict(key, first, count)` is told of
    each run of evicted blocks.
    """

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        policy: Policy = "lru",
        last_to_first: bool = True,
        on_evict: Callable[[Hashable, int, int], None] | None = None,
    ) -> None:
        self.total = blocks
        self.free = blocks
        self.idle = 0
        self.evicted = 0
        self._block = block_tokens
        self._policy = policy
        self._last_to_first = last_to_first
        self._on_evict = on_evict
        self._extents: dict[Hashable, Extent] = {}
        self._recent: OrderedDict[Extent, None] = OrderedDict()
        self._ranked: list[tuple[int, int, int, Extent]] = []
        self._clock = 0

    @property
    def available(self) -> int:
        """Blocks that a sequence can take."""
        return self.free + self.idle

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.free - self.idle

    def take(self, count: int) -> None:
        """Take `count` blocks, evicting idle ones when the free ones don't suffice. The caller checked `available`."""
        if count > self.free:
            self._evict(count - self.free)
        self.free -= count

    def give(self, count: int) -> None:
        """Give back `count` blocks that hold nothing worth keeping."""
        self.free += count

    def settle(self, net: int) -> None:
        """Take `net` blocks, or give back as many when it is negative."""
        if net > 0:
            self.take(net)
        elif net:
            self.give(-net)

    def match(self, request: Request, limit: int) -> tuple[list[Extent], int]:
        """Extents and blocks of the longest leading run that is resident, over at most `limit` tokens."""
        found: list[Extent] = []
        blocks, room, start = 0, limit // self._block, 0
        for key, end in zip(request.keys, request.ends, strict=True):
            size = end // self._block - start
            if not size:
                continue
            extent = self._extents.get(key)
            if extent is None or blocks >= room:
                break
            found.append(extent)
            blocks += extent.blocks
            if extent.blocks < size:
                break
            start += size
        return found, min(blocks, room)

    def idle_blocks(self, extents: list[Extent]) -> int:
        """How many blocks of `extents` count as available now."""
        return sum(extent.blocks for extent in extents if not extent.users)

    def hold(self, request: Request, extents: list[Extent]) -> None:
        """Let `request` use `extents`; they stop being available."""
        for extent in extents:
            if not extent.users:
                self.idle -= extent.blocks
                self._recent.pop(extent, None)
                extent.stamp = 0
            extent.users += 1
            extent.uses += 1
            request.held.append(extent)
        if extents:
            last = extents[-1]
            request.registered = request.keys.index(last.key)
            if last.grower is None:
                last.grower = request
            else:
                request.registered += 1

    def register(self, request: Request, tokens: int) -> None:
        """Keep the full blocks of the first `tokens` tokens that `request` has stored or is computing."""
        index, last = request.registered, len(request.keys)
        full = tokens // self._block
        while index < last:
            start = request.ends[index - 1] // self._block if index else 0
            if start >= full:
                break
            size = request.ends[index] // self._block - start
            key = request.keys[index]
            extent = self._extents.get(key)
            if extent is None and size:
                self._clock += 1
                extent = self._extents[key] = Extent(key, self._clock)
                extent.grower = request
                extent.users = extent.uses = 1
                request.held.append(extent)
            if extent is not None and extent.grower is request:
                covered = min(size, full - start)
                if covered > extent.blocks:
                    request.own_blocks -= covered - extent.blocks
                    extent.blocks = covered
                if covered < size:
                    break
                extent.grower = None
            index += 1
        request.registered = index

    def release(self, request: Request) -> None:
        """Take everything from `request`: its own blocks hold nothing any more, its extents become idle."""
        self.free += request.own_blocks
        request.own_blocks = 0
        held = reversed(request.held) if self._last_to_first else request.held
        for extent in held:
            extent.users -= 1
            if extent.grower is request:
                extent.grower = None
            if not extent.users:
                self._rest(extent)
        request.held = []
        request.registered = 0

    def _rest(self, extent: Extent) -> None:
        if not extent.blocks:
            del self._extents[extent.key]
            return
        self.idle += extent.blocks
        if self._policy == "lru":
            self._recent[extent] = None
            return
        self._clock += 1
        extent.stamp = self._clock
        rank = extent.born if self._policy == "fifo" else extent.uses
        heapq.heappush(self._ranked, (rank, extent.stamp, len(self._ranked), extent))

    def _evict(self, count: int) -> None:
        self.evicted += count
        self.idle -= count
        self.free += count
        while count:
            victim = self._victim()
            gone = min(count, victim.blocks)
            victim.blocks -= gone
            count -= gone
            if self._on_evict is not None:
                self._on_evict(victim.key, victim.blocks, gone)
            if not victim.blocks:
                self._drop(victim)

    def _victim(self) -> Extent:
        if self._policy == "lru":
            return next(iter(self._recent))
        while True:
            _, stamp, _, extent = self._ranked[0]
            if extent.stamp == stamp and not extent.users:
                return extent
            heapq.heappop(self._ranked)

    def _drop(self, extent: Extent) -> None:
        del self._extents[extent.key]
        if self._policy == "lru":
            del self._recent[extent]
        else:
            extent.stamp = 0

    def check(self, running: list[Request], held: int) -> None:
        """Assert that no block is lost or counted twice: `held` blocks belong to `running` outside of extents."""
        extents = self._extents.values()
        shared = sum(extent.blocks for extent in extents if extent.users)
        assert self.idle == sum(extent.blocks for extent in extents if not extent.users)
        assert self.free + self.idle + shared + held == self.total, (self.free, self.idle, shared, held, self.total)
        assert sum(extent.users for extent in extents) == sum(len(request.held) for request in running)
        assert all(extent.grower is None or extent in extent.grower.held for extent in extents)
