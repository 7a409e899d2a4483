"""How the head of the queue can start: what it hits, how much it computes now, and which blocks that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.simulator.pool import Extent
from kvplan.simulator.request import Request

if TYPE_CHECKING:
    from kvplan.simulator.engine import Engine


@dataclass(frozen=True, slots=True)
class Start:
    """`extents` are held from now on, `stored` tokens need no computing, `count` are computed in this step and `need`
    blocks are taken for them."""

    extents: list[Extent]
    stored: int
    count: int
    need: int


def refusal(engine: Engine, request: Request) -> str | None:
    """Why a request can never run here; None when it can."""
    settings, layout = engine.settings, engine.layout
    if request.prompt >= settings.max_model_len:
        return "longer than the model"
    whole = request.prompt + request.output
    chunk = min(whole, settings.max_num_batched_tokens)
    if max(layout.at_rest(whole), layout.held(whole - chunk, chunk)) > engine.pool.total:
        return "longer than the pool"
    if not settings.chunked_prefill and whole > settings.max_num_batched_tokens:
        return "longer than the token budget"
    return None


def could_admit(engine: Engine) -> bool:
    """Whether the head of the queue can start in this step, beside the next token of every decoding sequence.

    If not, it can't until a member leaves: each further step leaves fewer blocks.
    """
    batch, pool = engine.batch, engine.pool
    budget = engine.settings.max_num_batched_tokens - batch.size
    if len(engine.running) >= engine.settings.max_num_seqs:
        engine.blocked_on = "slots"
    elif budget <= 0:
        engine.blocked_on = "token budget"
    else:
        need = batch.growth.net(batch.step, 1)
        available = pool.available - need
        if engine.waiting[0].keys and need > pool.free:
            return available >= 0  # the decoding ones evict first, which changes what the head hits
        return available >= 0 and plan_start(engine, engine.waiting[0], budget, available) is not None
    return False


def plan_start(engine: Engine, request: Request, budget: int, available: int) -> Start | None:
    """How `request` starts within `budget` tokens and `available` blocks; else None, and `blocked_on` says why."""
    settings, pool, layout = engine.settings, engine.pool, engine.layout
    if request.swapped:
        need = layout.at_rest(request.stored)
        if need <= available:
            return Start([], request.stored, 0, need)
        engine.blocked_on = "blocks"
        return None
    target = request.prompt + request.generated
    extents: list[Extent] = []
    hits = 0
    if request.ready:
        stored = request.stored
        held = layout.at_rest(stored)
    else:
        if request.keys:
            extents, hits = pool.match(request, target - 1)
        stored = hits * layout.groups[0].block if hits else 0
        held = hits
    count = min(target - stored, budget)
    if count < target - stored and not settings.chunked_prefill:
        engine.blocked_on = "token budget"
        return None
    need = layout.held(stored, count) - held
    if extents:
        available -= pool.idle_blocks(extents)
    if need > available or (settings.admission == "sglang" and not _room_for(engine, request)):
        engine.blocked_on = "blocks"
        return None
    return Start(extents, stored, count, need)


def _room_for(engine: Engine, request: Request) -> bool:
    """SGLang's test: prompt and output fit beside what the others hold and are still expected to write."""
    if not engine.running:
        return True
    batch = engine.batch
    coming = [*engine.starting, *(() if engine.partial is None else (engine.partial,))]
    stored: int = batch.stored_tokens + sum(other.target for other in coming)
    expected: int = batch.expected_tokens + sum(other.output - other.generated for other in coming)
    free: int = engine.pool.total * engine.layout.groups[0].block - stored
    return request.prompt + request.output < free - int(expected * engine.settings.new_token_ratio)
