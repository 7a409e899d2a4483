"""One replica: continuous batching over a paged pool, decode steps taken together wherever nothing changes.

Members of the batch change when a request arrives, finishes, ends a prefill chunk or finds no block. Between those, all
decoding sequences gain one token a step, so their blocks follow from residues (laws.Growth) and their time is a sum in
closed form (pace.span). Steps that carry prefill are taken one by one.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Protocol

from kvplan.simulator.admission import Start, could_admit, plan_start, refusal
from kvplan.simulator.batch import Batch
from kvplan.simulator.laws import Layout
from kvplan.simulator.moves import begin_loads, end_loads, give_way
from kvplan.simulator.pace import span, steps_until
from kvplan.simulator.pool import Pool
from kvplan.simulator.request import FOREVER, UNSET, Request, rank
from kvplan.simulator.settings import Settings

if TYPE_CHECKING:
    from kvplan.performance.step import StepTime
    from kvplan.simulator.tiers import Tiers


class Observer(Protocol):
    """Told of what happens. `steps` covers `count` steps of equal membership; `held` are the blocks in use, the
    tokens stored and the requests running in the last of them. Times are ticks."""

    def steps(
        self, engine: Engine, start: int, decoding: int, count: int, first: int, last: int, held: tuple[int, int, int]
    ) -> None: ...
    def event(self, kind: str, time: int, request: Request, replica: int) -> None: ...


class Engine:
    """A replica's scheduler, pool and clock. `now` is the next step boundary; a step once begun is not taken back.

    `finished` collects requests that are done, for the caller to take.
    """

    def __init__(
        self,
        layout: Layout,
        step_time: StepTime,
        settings: Settings,
        pool: Pool,
        observer: Observer,
        replica: int = 0,
        tiers: Tiers | None = None,
    ) -> None:
        self.layout, self.step_time, self.settings = layout, step_time, settings
        self.pool, self.observer, self.replica = pool, observer, replica
        self.tiers = tiers
        self.now = 0
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.partial: Request | None = None
        self.starting: list[Request] = []
        self.batch = Batch(layout, step_time)
        self.finished: list[Request] = []
        self.preemptions = 0
        self.fullest = 0  # most blocks in use when one had to give way, which no step has seen
        self.blocked_on = ""
        #: members that have not written their first token yet
        self.fresh: list[Request] = []
        self._caching = settings.prefix_caching and layout.shares_prefixes and settings.kept is None

    @property
    def busy(self) -> bool:
        """Whether anything waits, loads or runs here."""
        return bool(self.waiting or self.running or (self.tiers is not None and self.tiers.loading))

    @property
    def load(self) -> int:
        """Requests that wait or run here."""
        return len(self.waiting) + len(self.running)

    def submit(self, request: Request) -> bool:
        """Queue a request that arrives at or before `now`. Refuses one that could never run, and says why."""
        request.replica = self.replica
        request.output = max(1, min(request.output, self.settings.max_model_len - request.prompt))
        request.refused = refusal(self, request)
        if request.refused is not None:
            self.observer.event("refused", request.arrival, request, self.replica)
            return False
        if not self._caching:
            request.keys = request.ends = ()
        self.enqueue(request, front=False)
        return True

    def enqueue(self, request: Request, front: bool) -> None:
        """Put a request into the queue, at its head or its end; under priority where it belongs."""
        if self.settings.order == "priority":
            ranked = list(self.waiting)
            insort(ranked, request, key=rank)
            self.waiting = deque(ranked)
        elif front:
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def earliest_change(self) -> int:
        """No request can finish here before this time."""
        if not self.batch.size or self.waiting or self.partial is not None or self.fresh or self.tiers is not None:
            return self.now if self.busy else FOREVER
        base, least = self.batch.pace()
        return self.now + span(base, least, self.batch.reads, self.batch.slope, self.batch.steps_to_change())

    def advance(self, limit: int) -> None:
        """Take one step, or the decode steps up to the first change, none beginning at or after `limit`."""
        extra, applied = 0, False
        if (tiers := self.tiers) is not None:
            end_loads(self, tiers)
            begin_loads(self, tiers)
            limit = min(limit, tiers.next_time())
            if not self.running and not self.waiting:
                self.now = max(self.now + 1, limit)
                return
        if self.step_time.free_prefill:
            if self.waiting:
                self._admit_free()
        elif self.partial is not None or (self.waiting and could_admit(self)):
            extra, preempted = self._reserve_step()
            applied = True
            chunks, resumed, moved = self._schedule_prefill(preempted)
            extra += moved
            if chunks or resumed:
                self._mixed_step(chunks, resumed, extra)
                return
        if self.batch.size:
            self._decode_steps(limit, extra, applied)
        elif self.tiers is not None and (self.tiers.loading or give_way(self)):
            self.now = max(self.now + 1, limit) if self.tiers.loading else self.now
        else:
            assert extra or applied or not self.waiting, "a request waits, nothing runs and it can't be admitted"
            self.now += extra

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode_steps(self, limit: int, extra: int, applied: bool) -> None:
        batch, pool = self.batch, self.pool
        count = batch.steps_to_change()
        if applied or self.fresh or (self.waiting and batch.growth.gives):
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
            pool.settle(batch.growth.net(batch.step, count))
        last = base + max(least, reads + (count - 1) * slope)
        self._finish_steps(count, ticks + extra, extra + base + max(least, reads), last)

    def _finish_steps(self, count: int, ticks: int, first: int, last: int, prefilled: int = 0) -> None:
        """Let `count` steps pass in which prefills reach `prefilled` stored tokens together."""
        start, decoding = self.now, self.batch.size
        held = (self.pool.used, self.batch.stored_tokens + count * decoding + prefilled, len(self.running))
        self.now += ticks
        if self.fresh:
            for request in self.fresh:
                if request.first_token == UNSET:
                    request.first_token = self.now
            self.fresh.clear()
        for request in self.batch.run(count):
            request.generated = request.output
            self._finish_request(request)
        self.observer.steps(self, start, decoding, count, first, last, held)

    # -- a full pool ---------------------------------------------------------------------------------------------

    def _reserve_step(self) -> tuple[int, bool]:
        """Blocks for one token of every decoding sequence, before prefill gets any: (swap ticks, preempted)."""
        need = self.batch.growth.net(self.batch.step, 1)
        if need <= self.pool.available:
            self.pool.settle(need)
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
                    max(self.running, key=rank) if self.settings.order == "priority" else next(reversed(self.running))
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
            if request in self.fresh:
                self.fresh.remove(request)
            if blocks is not None:
                request.own_blocks += blocks - self.layout.at_rest(request.stored)
        self.fullest = max(self.fullest, self.pool.used)
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
        self.enqueue(request, front=True)
        return ticks

    # -- prefill -------------------------------------------------------------------------------------------------

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
            plan = plan_start(self, request, budget, self.pool.available)
            if plan is None:
                break
            need, count = plan.need, plan.count
            self._start(request)
            if request.swapped:
                moved += need * self.settings.swap_ticks
                request.swapped = False
                self._grow(request, need, 0)
                resumed.append(request)
                continue
            self._credit(request, plan)
            self._grow(request, need, plan.stored + count)
            self.starting.append(request)
            chunks.append((request, count))
            budget -= count
        return chunks, resumed, moved

    def _credit(self, request: Request, plan: Start) -> None:
        """Give an admitted request what needs no computing."""
        request.stored, request.target = plan.stored, request.prompt + request.generated
        if request.ready:
            request.ready = False
            return
        if plan.extents:
            self.pool.hold(request, plan.extents)
        if request.preemptions:
            request.recomputed -= min(plan.stored, request.recomputed)
        else:
            request.hit_tokens = plan.stored

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
        self.pool.settle(need)
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
        self.starting.clear()
        self._finish_steps(1, ticks, ticks, ticks, sum(request.stored + count for request, count in chunks))
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
            self.fresh.append(request)
        if request.generated >= request.output:
            self._finish_request(request)
        else:
            self.batch.join(request)

    def _finish_request(self, request: Request) -> None:
        request.finished = self.now
        if request.keys:
            self.pool.register(request, request.stored)
            if self.tiers is not None:
                for extent in request.held:
                    self.tiers.finished(extent.key, extent.blocks)
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
        beside = [request for request in self.waiting if request.ready]
        beside += self.tiers.loading.values() if self.tiers is not None else ()
        held += sum(request.own_blocks for request in beside)
        self.pool.check([*self.running, *beside], held)
