"""Replay of prompts against a prefix cache alone: no time passes, each request is looked up and then stored.

Hits are the longest leading run of a prompt's block ids that is resident on arrival; then each id is touched in the
stated order. One id is one block. A hit of k blocks saves min(k x block size, prompt) tokens.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, get_args

from kvplan.errors import InputError, show
from kvplan.simulator.stack import RecencyStack
from kvplan.simulator.traces import Trace

Policy: TypeAlias = Literal["lru", "fifo", "lfu", "optimal"]
TouchOrder: TypeAlias = Literal["last_to_first", "first_to_last"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
TOUCH_ORDERS: tuple[TouchOrder, ...] = get_args(TouchOrder)

Prompts: TypeAlias = Sequence[tuple[Sequence[int], int]]


@dataclass(frozen=True)
class Misses:
    """Blocks that missed: never seen before, lost because the cache is too small for any policy, or lost by this one.

    The bound is an offline optimum that knows the future.
    """

    never_reusable_blocks: int
    lost_to_capacity_blocks: int
    lost_to_policy_blocks: int


@dataclass(frozen=True)
class ReplayRow:
    """Hits at one capacity (None: unbounded). `last_half` counts the second half of the requests, cache warm.

    `partial`: the replay was interrupted, this row after `requests` of the requests or another one before it was begun.
    """

    capacity_blocks: int | None
    policy: Policy
    touch_order: TouchOrder
    hit_blocks: int
    total_blocks: int
    hit_tokens: int
    total_tokens: int
    last_half_hit_tokens: int
    last_half_total_tokens: int
    requests: int
    misses: Misses | None = None
    partial: bool = False

    @property
    def token_hit_rate(self) -> float:
        """Tokens hit over all prompt tokens of the trace."""
        return self.hit_tokens / self.total_tokens if self.total_tokens else 0.0

    @property
    def last_half_token_hit_rate(self) -> float:
        """The same over the second half of the requests."""
        return self.last_half_hit_tokens / self.last_half_total_tokens if self.last_half_total_tokens else 0.0


def replay(
    trace: Trace,
    capacities: Sequence[int | None],
    policies: Sequence[Policy] = ("lru",),
    touch_order: TouchOrder = "last_to_first",
    split: bool = False,
) -> list[ReplayRow]:
    """Replay `trace` at each capacity (in blocks, None is unbounded) under each policy, in that order of nesting.

    LRU at all capacities and every unbounded cache take one pass over the file together; the others need one pass in
    memory each. An interruption leaves what was done so far, marked partial. Raises InputError for rows without ids.
    """
    block = trace.block_size
    if block is None:
        raise InputError(f"{trace.path}: found no block size, expected --block-size, the tokens one id stands for")
    one_pass = all(policy == "lru" for policy in policies) and not split
    if one_pass:
        return _one_pass(_prompts(trace), trace.count(), block, capacities, touch_order)
    prompts = list(_prompts(trace))
    bound = list(_by_capacity(prompts, block, capacities, "optimal", touch_order)) if split else []
    found: list[ReplayRow] = []
    try:
        for policy in policies:
            known = bound if policy == "optimal" and split else None
            found.extend(known or ())
            for row in () if known is not None else _by_capacity(prompts, block, capacities, policy, touch_order):
                found.append(row)
            if found[-1].partial:
                return found
    except KeyboardInterrupt:
        if not found:
            raise
        return [replace(row, partial=True) for row in found]
    return _with_misses(found, bound, prompts, block, touch_order) if split else found


def _prompts(trace: Trace) -> Iterator[tuple[Sequence[int], int]]:
    for number, row in enumerate(trace.rows(), start=1):
        if row.keys is None:
            raise InputError(f"{trace.path}: request {number}: found no hash_ids, expected prefix block ids to replay")
        yield row.keys, row.prompt


def _by_capacity(
    prompts: Prompts, block: int, capacities: Sequence[int | None], policy: Policy, order: TouchOrder
) -> Iterator[ReplayRow]:
    if policy == "lru":
        yield from _one_pass(prompts, len(prompts), block, capacities, order)
        return
    for capacity in capacities:
        if capacity is None:  # nothing is ever evicted, so every policy is the same
            row = _one_pass(prompts, len(prompts), block, [None], order)[0]
            hits = (row.hit_blocks, row.hit_tokens, row.last_half_hit_tokens)
        else:
            cache: _Cache = _Optimal(capacity, prompts) if policy == "optimal" else _CACHES[policy](capacity)
            hits = _walk(prompts, block, cache, order)
        yield _row(capacity, policy, order, hits, prompts)


def _row(
    capacity: int | None, policy: Policy, order: TouchOrder, hits: tuple[int, int, int], prompts: Prompts
) -> ReplayRow:
    half = len(prompts) // 2
    return ReplayRow(
        capacity, policy, order, hits[0], sum(len(keys) for keys, _ in prompts), hits[1],
        sum(tokens for _, tokens in prompts), hits[2], sum(tokens for _, tokens in prompts[half:]), len(prompts),
    )  # fmt: skip


def _one_pass(
    prompts: Iterable[tuple[Sequence[int], int]],
    count: int,
    block: int,
    capacities: Sequence[int | None],
    order: TouchOrder,
) -> list[ReplayRow]:
    """LRU at every capacity: the leading run that fits C ends before the first id deeper than C."""
    stack = RecencyStack()
    levels: dict[int, list[int]] = {}  # depth needed -> blocks, tokens, tokens of the last half
    total_blocks = total_tokens = late_tokens = 0
    half, backwards = count // 2, order == "last_to_first"
    seen, partial = 0, False
    try:
        for keys, tokens in prompts:
            late = seen >= half
            deepest, left = 0, tokens
            for depth in stack.leading_depths(keys):
                if depth > deepest:
                    deepest = depth
                level = levels.get(deepest)
                if level is None:
                    level = levels[deepest] = [0, 0, 0]
                step = block if block <= left else left
                left -= step
                level[0] += 1
                level[1] += step
                if late:
                    level[2] += step
            stack.touch(keys[::-1] if backwards else keys)
            seen += 1
            total_blocks += len(keys)
            total_tokens += tokens
            late_tokens += tokens if late else 0
    except KeyboardInterrupt:
        if not seen:
            raise
        partial = True
    if seen == 0:
        raise InputError("trace: found no request, expected at least one")
    sums = _cumulative(levels, capacities)
    return [
        ReplayRow(
            capacity, "lru", order, blocks, total_blocks, tokens, total_tokens, late_hits, late_tokens, seen,
            partial=partial,
        )
        for capacity, (blocks, tokens, late_hits) in zip(capacities, sums, strict=True)
    ]  # fmt: skip


def _cumulative(levels: dict[int, list[int]], capacities: Sequence[int | None]) -> list[tuple[int, int, int]]:
    places = sorted(range(len(capacities)), key=lambda place: _or_infinite(capacities[place]))
    found: list[tuple[int, int, int]] = [(0, 0, 0)] * len(capacities)
    depths = sorted(levels)
    position = blocks = tokens = late = 0
    for place in places:
        while position < len(depths) and depths[position] <= _or_infinite(capacities[place]):
            level = levels[depths[position]]
            blocks, tokens, late = blocks + level[0], tokens + level[1], late + level[2]
            position += 1
        found[place] = (blocks, tokens, late)
    return found


def _or_infinite(capacity: int | None) -> float:
    return math.inf if capacity is None else capacity


class _Cache(Protocol):
    @property
    def resident(self) -> Container[int]: ...

    def store(self, keys: Sequence[int]) -> None: ...


class _Fifo:
    """Evicts the id inserted first; a touch changes nothing."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.resident: set[int] = set()
        self._order: deque[int] = deque()

    def store(self, keys: Sequence[int]) -> None:
        resident, order = self.resident, self._order
        for key in keys:
            if key not in resident:
                resident.add(key)
                order.append(key)
                if len(resident) > self.capacity:
                    resident.discard(order.popleft())


class _Lfu:
    """Evicts the id touched least often since it was stored, among equals the least recently touched."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.resident: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._clock = 0

    def store(self, keys: Sequence[int]) -> None:
        resident, heap = self.resident, self._heap
        for key in keys:
            self._clock += 1
            uses = resident[key] = resident.get(key, 0) + 1
            self._last[key] = self._clock
            heapq.heappush(heap, (uses, self._clock, key))
            while len(resident) > self.capacity:
                _, when, victim = heapq.heappop(heap)
                if self._last.get(victim) == when:
                    del resident[victim], self._last[victim]


class _Optimal:
    """Keeps the ids that are needed soonest (Belady's MIN, free to store nothing of a request).

    A prefix is needed whenever its continuation is, so among ids of one next request the deeper ones go first and what
    stays is always a whole prefix: no policy has more hits.
    """

    def __init__(self, capacity: int, prompts: Prompts) -> None:
        self.capacity = capacity
        self.resident: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._next: list[list[int]] = [[] for _ in prompts]
        coming: dict[int, int] = {}
        for index in range(len(prompts) - 1, -1, -1):
            keys = prompts[index][0]
            self._next[index] = [coming.get(key, -1) for key in keys]
            for key in keys:
                coming[key] = index
        self._index = 0

    def store(self, keys: Sequence[int]) -> None:
        resident, heap = self.resident, self._heap
        for position, (key, use) in enumerate(zip(keys, self._next[self._index], strict=True)):
            if use < 0:
                resident.pop(key, None)  # never needed again
                continue
            resident[key] = use
            heapq.heappush(heap, (-use, -position, key))
        while len(resident) > self.capacity:
            use, _, victim = heapq.heappop(heap)
            if resident.get(victim) == -use:
                del resident[victim]
        self._index += 1


_CACHES: dict[str, Callable[[int], _Cache]] = {"fifo": _Fifo, "lfu": _Lfu}


def _walk(prompts: Prompts, block: int, cache: _Cache, order: TouchOrder) -> tuple[int, int, int]:
    half, backwards = len(prompts) // 2, order == "last_to_first" and not isinstance(cache, _Optimal)
    blocks = tokens = late = 0
    resident = cache.resident
    for index, (keys, length) in enumerate(prompts):
        run = 0
        for key in keys:
            if key not in resident:
                break
            run += 1
        saved = min(run * block, length)
        blocks += run
        tokens += saved
        late += saved if index >= half else 0
        cache.store(keys[::-1] if backwards else keys)
    return blocks, tokens, late


def _with_misses(
    rows: list[ReplayRow], bound: list[ReplayRow], prompts: Prompts, block: int, order: TouchOrder
) -> list[ReplayRow]:
    reusable = _one_pass(prompts, len(prompts), block, [None], order)[0].hit_blocks
    best = {row.capacity_blocks: row.hit_blocks for row in bound}
    return [
        replace(
            row,
            misses=Misses(
                row.total_blocks - reusable,
                reusable - best[row.capacity_blocks],
                best[row.capacity_blocks] - row.hit_blocks,
            ),
        )
        for row in rows
    ]


def parse_capacities(text: str) -> list[int | None]:
    """Parse `1000,10000,unbounded`. Raises InputError for anything but whole numbers from 1 and `unbounded`."""
    found: list[int | None] = []
    for item in text.split(","):
        word = item.strip().lower()
        if word in ("unbounded", "inf", "infinite"):
            found.append(None)
        elif word.isdecimal() and len(word) <= 15 and int(word) >= 1:
            found.append(int(word))
        else:
            raise InputError(f"--capacity: found {show(item)}, expected blocks from 1, or unbounded")
    return found
