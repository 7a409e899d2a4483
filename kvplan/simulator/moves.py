"""What moves between replicas, tiers and the queue: loads from a tier, and everything when a replica is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.simulator.request import UNSET, Request
from kvplan.simulator.tiers import Tiers

if TYPE_CHECKING:
    from kvplan.simulator.engine import Engine


def begin_loads(engine: Engine, tiers: Tiers) -> None:
    """Fetch what tiers hold for the head of the queue; it waits for its blocks outside of the queue."""
    pool, block = engine.pool, engine.layout.groups[0].block
    while engine.waiting and len(engine.running) + len(tiers.loading) < engine.settings.max_num_seqs:
        request = engine.waiting[0]
        if request.ready or request.swapped or request.preemptions or not request.keys:
            return
        extents, hits = pool.match(request, request.prompt - 1)
        counts = tiers.beyond(request, extents, hits, block, request.prompt - 1)
        blocks = sum(counts)
        if not blocks or blocks > pool.available - pool.idle_blocks(extents) or not tiers.admits(counts):
            return
        engine.waiting.popleft()
        pool.hold(request, extents)
        pool.take(blocks)
        request.own_blocks += blocks
        request.hit_tokens, request.tier_tokens = hits * block, blocks * block
        request.stored = (hits + blocks) * block
        tiers.begin(engine.now, request, counts)
        engine.observer.event("loading", engine.now, request, engine.replica)


def end_loads(engine: Engine, tiers: Tiers) -> None:
    """Put requests whose blocks have arrived at the head of the queue."""
    for request in tiers.done(engine.now):
        request.ready = True
        engine.pool.register(request, request.stored)
        engine.enqueue(request, front=True)


def give_way(engine: Engine) -> bool:
    """Take the blocks back from the last request that waits with loaded ones; its full blocks stay in the pool.

    Needed when nothing runs and the head lacks blocks that only such requests hold.
    """
    for request in reversed(engine.waiting):
        if request.ready:
            engine.pool.release(request)
            request.ready, request.stored, request.hit_tokens, request.tier_tokens = False, 0, 0, 0
            return True
    return False


def evacuate(engine: Engine) -> list[Request]:
    """Empty a lost replica: the requests that were on it, as if nothing had been computed for them."""
    loading = list(engine.tiers.loading.values()) if engine.tiers is not None else []
    lost = [*engine.running, *engine.waiting, *loading]
    for request in engine.running:
        if request.last_step != UNSET:
            engine.batch.leave(request)
    for request in lost:
        request.recomputed += request.stored
        request.stored = request.generated = request.own_blocks = request.registered = 0
        request.held, request.ready, request.swapped = [], False, False
    engine.running.clear()
    engine.waiting.clear()
    engine.fresh.clear()
    engine.partial = None
    if engine.tiers is not None:
        engine.tiers.loading.clear()
    return sorted(lost, key=lambda request: request.id)
