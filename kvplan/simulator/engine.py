"""One replica: continuous batching over a paged pool, decode steps taken together wherever nothing changes.

Members of the batch change when a request arrives, finishes, ends a prefill chunk or finds no block. Between those, all
decoding sequences gain one token a step, so their blocks follow from residues (laws.Growth) and their time is a sum in
closed form (pace.span). Steps that carry prefill are taken one by one.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Protocol

from kvplan.simulator.batch import FOREVER, Batch
from kvplan.simulator.laws import Layout
from kvplan.simulator.pace import span, steps_until
from kvplan.simulator.pool import Extent, Pool
from kvplan.simulator.request import UNSET, Request
from kvplan.simulator.settings import Settings

if TYPE_CHECKING:
    from kvplan.performance.step import StepTime


class Observer(Protocol):
    """Told of what happens. `steps` covers `count` steps of equal membership, with `used` blocks and `running` requests
    in the last of them; times are ticks."""

    def steps(
        self, engine: Engine, start: int, decoding: int, count: int, first: int, last: int, used: int, running: int
    ) -> None: ...
    def event(self, kind: str, time: int, request: Request, replica: int) -> None: ...


class Engine:
    """A replica's scheduler, pool and clock. `now` is the next step boundary; a step once begun is not taken back.

    `finished` collects requests that are done, for the caller to take.
    """

    def __init__(
        self, layout: Layout, step_time: StepTime, settings: Settings, pool: Pool, observer: Observer, replica: int = 0
    ) -> None:
        self.layout, self.step_time, self.settings = layout, step_time, settings
        self.pool, self.observer, self.replica = pool, observer, replica
        self.now = 0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.partial: Request | None = None
        self.batch = Batch(layout, step_time)
        self.finished: list[Request] = []
        self.preemptions = 0
        self.blocked_on = ""
        self._fresh: list[Request] = []
        self._caching = settings.prefix_caching and layout.shares_prefixes and settings.kept is None

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs here."""
        return bool(self.waiting or self.running)

    @property
    def load(self) -> int:
        """Requests that wait or run here."""
        return len(self.waiting) + len(self.running)

    def submit(self, request: Request) -> bool:
        """Queue a request that arrives at or before `now`. Refuses one that could never run, and says why."""
        request.replica = self.replica
        settings = self.settings
        if request.prompt >= settings.max_model_len:
            request.refused = "longer than the model"
        request.output = max(1, min(request.output, settings.max_model_len - request.prompt))
        whole = request.prompt + request.output
        chunk = min(whole, settings.max_num_batched_tokens)
        if request.refused is None:
            if max(self.layout.at_rest(whole), self.layout.held(whole - chunk, chunk)) > self.pool.total:
                request.refused = "longer than the pool"
            elif not settings.chunked_prefill and whole > settings.max_num_batched_tokens:
                request.refused = "longer than the token budget"
        if request.refused is not None:
            self.observer.event("refused", request.arrival, request, self.replica)
            return False
        if not self._caching:
            request.keys = request.ends = ()
        self._queue(request, front=False)
        return True

    def _queue(self, request: Request, front: bool) -> None:
        if self.settings.order == "priority":
            ranked = list(self.waiting)
            insort(ranked, request, key=_rank)
            self.waiting = deque(ranked)
        elif front:
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def earliest_change(self) -> int:
        """No request can finish here before this time."""
        if not self.running or self.waiting or self.partial is not None or self._fresh:
            return self.now if self.busy else FOREVER
        base, least = self.batch.pace()
        return self.now + span(base, least, self.batch.reads, self.batch.slope, self.batch.steps_to_change())

    def advance(self, limit: int) -> None:
        """Take one step, or the decode steps up to the first change, none beginning at or after `limit`."""
        extra, applied = 0, False
        if self.step_time.free_prefill:
            if self.waiting:
                self._admit_free()
        elif self.partial is not None or (self.waiting and self._could_admit()):
            extra, preempted = self._reserve_step()
            applied = True
            chunks, resumed, moved = self._schedule_prefill(preempted)
            extra += moved
            if chunks or resumed:
                self._mixed_step(chunks, resumed, extra)
                return
        if self.batch.size:
            self._decode_steps(limit, extra, applied)
        else:
            assert extra or applied or not self.waiting, "a request waits, nothing runs and it can't be admitted"
            self.now += extra

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode_steps(self, limit: int, extra: int, applied: bool) -> None:
        batch, pool = self.batch, self.pool
        count = batch.steps_to_change()
        if applied or self._fresh or (self.waiting and batch.growth.gives):
            count = 1
        if not applied:
            held = batch.growth.steps_within(batch.step, count, pool.available)
            if held > 1 and self.waiting and self.waiting[0].keys:
                # What the head would hit may be evicted, after which its first chunk is another one.
                held = max(1, batch.growth.steps_within(batch.step, held, pool.free))
            if held:
                count = held
            else:
                count, applied = 1, True
                extra, _ = self._make_room()
                if not batch.size:
                    self.now += extra
                    return
        base, least = batch.pace()
        reads, slope = batch.reads, batch.slope
        ticks = span(base, least, reads, slope, count)
        if count > 1 and self.now + ticks > limit:
            count = min(count, steps_until(base, least, reads, slope, limit - self.now))
            ticks = span(base, least, reads, slope, count)
        if not applied:
            _settle(pool, batch.growth.net(batch.step, count))
        last = base + max(least, reads + (count - 1) * slope)
        self._finish_steps(count, ticks + extra, extra + base + max(least, reads), last)

    def _finish_steps(self, count: int, ticks: int, first: int, last: int) -> None:
        start, decoding, running, used = self.now, self.batch.size, len(self.running), self.pool.used
        self.now += ticks
        if self._fresh:
            for request in self._fresh:
                if request.first_token == UNSET:
                    request.first_token = self.now
            self._fresh.clear()
        for request in self.batch.run(count):
            request.generated = request.output
            self._finish_request(request)
        self.observer.steps(self, start, decoding, count, first, last, used, running)

    # -- a full pool ---------------------------------------------------------------------------------------------

    def _reserve_step(self) -> tuple[int, bool]:
        """Blocks for one token of every decoding sequence, before prefill gets any: (swap ticks, preempted)."""
        need = self.batch.growth.net(self.batch.step, 1)
        if need <= self.pool.available:
            _settle(self.pool, need)
            return 0, False
        return self._make_room()

    def _make_room(self) -> tuple[int, bool]:
        """One step's blocks when they don't suffice: windows give back, then each sequence in turn takes its blocks,
        preempting until it can. Returns the ticks of swapping and whether anybody was preempted.
        """
        batch, layout, pool = self.batch, self.layout, self.pool
        pool.give(batch.growth.given(batch.step))
        held: dict[Request, int] = {}
        for request in self.running:
            if request is not self.partial and (stored := batch.stored(request)) < request.cap:
                held[request] = layout.held(stored, 0)
        extra, before = 0, self.preemptions
        for request in list(held):
            if request not in self.running:
                continue
            grown = layout.held(batch.stored(request), 1)
            while grown - held[request] > pool.available:
                victim = (
                    max(self.running, key=_rank) if self.settings.order == "priority" else next(reversed(self.running))
                )
                extra += self._preempt(victim, held.get(victim))
                if victim is request:
                    break
            else:
                pool.take(grown - held[request])
                held[request] = grown
        return extra, self.preemptions > before

    def _preempt(self, request: Request, blocks: int | None) -> int:
        """Take a running request off; it holds `blocks` blocks (None: as its counters say). Returns swap ticks."""
        swap = self.settings.preemption == "swap" and request is not self.partial
        if request is self.partial:
            self.partial = None
        else:
            self.batch.leave(request)
            if request in self._fresh:
                self._fresh.remove(request)
            if blocks is not None:
                request.own_blocks += blocks - self.layout.at_rest(request.stored)
        self.preemptions += 1
        request.preemptions += 1
        del self.running[request]
        ticks = self.layout.at_rest(request.stored) * self.settings.swap_ticks if swap else 0
        self.pool.release(request)
        request.swapped = swap
        if not swap:
            request.recomputed += request.stored
            request.stored = 0
        self.observer.event("preempted", self.now, request, self.replica)
        self._queue(request, front=True)
        return ticks

    # -- prefill -------------------------------------------------------------------------------------------------

    def _could_admit(self) -> bool:
        """Whether the head of the queue can start in this step, beside the next token of every decoding sequence.

        If not, it can't until a member leaves: each further step leaves fewer blocks.
        """
        budget = self.settings.max_num_batched_tokens - self.batch.size
        if len(self.running) >= self.settings.max_num_seqs:
            self.blocked_on = "slots"
        elif budget <= 0:
            self.blocked_on = "token budget"
        else:
            need = self.batch.growth.net(self.batch.step, 1)
            available = self.pool.available - need
            if self.waiting[0].keys and need > self.pool.free:
                return available >= 0  # the decoding ones evict first, which changes what the head hits
            return available >= 0 and self._plan(self.waiting[0], budget, available) is not None
        return False

    def _plan(self, request: Request, budget: int, available: int) -> tuple[list[Extent], int, int, int] | None:
        """How `request` could start: (extents hit, stored tokens, tokens to compute, blocks to take), or None."""
        settings, pool, layout = self.settings, self.pool, self.layout
        if request.swapped:
            need = layout.at_rest(request.stored)
            if need <= available:
                return [], request.stored, 0, need
            self.blocked_on = "blocks"
            return None
        target = request.prompt + request.generated
        extents, hits = pool.match(request, target - 1) if request.keys else ([], 0)
        stored = hits * layout.groups[0].block if hits else 0
        count = min(target - stored, budget)
        if count < target - stored and not settings.chunked_prefill:
            self.blocked_on = "token budget"
            return None
        need = layout.held(stored, count) - hits
        if extents:
            available -= pool.idle_blocks(extents)
        if need > available or (settings.admission == "sglang" and not self._room_for(request)):
            self.blocked_on = "blocks"
            return None
        return extents, stored, count, need

    def _room_for(self, request: Request) -> bool:
        """SGLang's test: prompt and output fit beside what the running ones are still expected to write."""
        free = self.pool.total * self.layout.groups[0].block - self.batch.stored_tokens
        expected = int(self.batch.expected_tokens * self.settings.new_token_ratio)
        return not self.running or request.prompt + request.output < free - expected

    def _schedule_prefill(self, preempted: bool) -> tuple[list[tuple[Request, int]], list[Request], int]:
        """Chunks for this step: the unfinished prefill first, then the queue. Returns chunks, resumed, swap ticks."""
        budget = self.settings.max_num_batched_tokens - self.batch.size
        chunks: list[tuple[Request, int]] = []
        resumed: list[Request] = []
        moved = 0
        partial = self.partial
        if partial is not None:
            count = min(partial.target - partial.stored, budget)
            need = self.layout.held(partial.stored, count) - self._holds(partial)
            if need > self.pool.available:
                return chunks, resumed, self._preempt(partial, None)
            self._grow(partial, need, partial.stored + count)
            chunks.append((partial, count))
            budget -= count
        while not preempted and self.waiting and budget > 0:
            if len(self.running) >= self.settings.max_num_seqs:
                self.blocked_on = "slots"
                break
            request = self.waiting[0]
            plan = self._plan(request, budget, self.pool.available)
            if plan is None:
                break
            extents, stored, count, need = plan
            self._start(request)
            if request.swapped:
                moved += need * self.settings.swap_ticks
                request.swapped = False
                self._grow(request, need, 0)
                resumed.append(request)
                continue
            request.stored, request.target = stored, request.prompt + request.generated
            if extents:
                self.pool.hold(request, extents)
            if request.preemptions:
                request.recomputed -= min(stored, request.recomputed)
            else:
                request.hit_tokens = stored
            self._grow(request, need, stored + count)
            chunks.append((request, count))
            budget -= count
        return chunks, resumed, moved

    def _start(self, request: Request) -> None:
        self.waiting.popleft()
        self.running[request] = None
        if request.admitted == UNSET:
            request.admitted = self.now
        self.observer.event("admitted", self.now, request, self.replica)

    def _holds(self, request: Request) -> int:
        """Blocks that a prefilling request holds since its last chunk, its hits among them."""
        return self.layout.held(request.joined, request.base)

    def _grow(self, request: Request, need: int, tokens: int) -> None:
        _settle(self.pool, need)
        request.own_blocks += need
        if request.keys:
            self.pool.register(request, tokens)

    def _admit_free(self) -> None:
        """Admit without time or budget where prefill is free."""
        while self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            request.target = request.prompt + request.generated
            need = self.layout.at_rest(request.target)
            if need > self.pool.available:
                self.blocked_on = "blocks"
                return
            self._start(request)
            self._grow(request, need, request.target)
            self._prefilled(request, need)
        if self.waiting:
            self.blocked_on = "slots"

    def _mixed_step(self, chunks: list[tuple[Request, int]], resumed: list[Request], extra: int) -> None:
        step, batch = self.step_time, self.batch
        tokens = batch.size + sum(count for _, count in chunks)
        ending = sum(1 for request, count in chunks if request.stored + count == request.target)
        ticks = extra
        if tokens:
            ticks += step.fixed(tokens, batch.size + ending, batch.size)
            ticks += max(step.least(batch.size), batch.reads) if batch.size else 0
            ticks += step.prefill([(request.stored, count) for request, count in chunks])
        self.partial = None
        self._finish_steps(1, ticks, ticks, ticks)
        for request in resumed:
            batch.join(request)
        for request, count in chunks:
            request.joined, request.base = request.stored, count
            request.stored += count
            if request.stored < request.target:
                self.partial = request
            else:
                self._prefilled(request, self._holds(request))

    def _prefilled(self, request: Request, held: int) -> None:
        """The end of a prefill that holds `held` blocks: the first token, what an eviction rule drops, then decode."""
        settings = self.settings
        request.stored = request.target
        if settings.kept is not None:
            budget = max(1, settings.kept(request.prompt))
            request.stored = min(request.target, budget + (request.generated if settings.kept_grows else 0))
            request.cap = FOREVER if settings.kept_grows else budget
        surplus = held - self.layout.at_rest(request.stored)
        self.pool.give(surplus)
        request.own_blocks -= surplus
        if settings.emits:
            request.generated += 1
            if request.first_token == UNSET:
                request.first_token = self.now
        else:
            self._fresh.append(request)
        if request.generated >= request.output:
            self._finish_request(request)
        else:
            self.batch.join(request)

    def _finish_request(self, request: Request) -> None:
        request.finished = self.now
        if request.keys:
            self.pool.register(request, request.stored)
        self.pool.release(request)
        del self.running[request]
        self.finished.append(request)
        self.observer.event("finished", self.now, request, self.replica)

    def check(self) -> None:
        """Assert that every block is accounted for: free + used + idle = all, and users match tables."""
        held = 0
        for request in self.running:
            held += request.own_blocks
            if request.last_step != UNSET:
                held += self.layout.at_rest(self.batch.stored(request)) - self.layout.at_rest(request.base)
        self.pool.check(list(self.running), held)


def _rank(request: Request) -> tuple[int, int, int]:
    return (request.priority, request.arrival, request.id)


def _settle(pool: Pool, net: int) -> None:
    if net > 0:
        pool.take(net)
    elif net:
        pool.give(-net)
