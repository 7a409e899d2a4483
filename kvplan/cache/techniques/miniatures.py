"""The twelve techniques at a size that fits in the head, run on the code that plans real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.cache.techniques import (
    compressed,
    eviction,
    heads,
    latent,
    offload,
    paging,
    prefix,
    quantization,
    recurrent,
    sharing,
    sparse_reads,
    windows,
)
from kvplan.cache.techniques.base import Technique
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import KIB


@record
class Miniature:
    """One miniature: what went in, what came out, and what it shows. Values are numbers, strings, lists of them."""

    technique: Technique
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    shows: str


def _spec(layer: kinds.Layer, count: int = 1) -> ModelSpec:
    return ModelSpec(
        "miniature", "miniature", "bfloat16", {"layer": layer}, (f"{count} x layer",),
        Provenance("made up for a miniature", "verbatim"),
    )  # fmt: skip


def _plan(spec: ModelSpec, dtype: str = "bf16") -> CachePlan:
    return plan_cache(spec, resolve_precision(dtype))


def _scalars(spec: ModelSpec, n: int) -> int:
    return int(_plan(spec).needed_bytes(n)) // 2


def _heads() -> Miniature:
    query_heads, n, head_dim = 8, 6, 8
    spec = _spec(kinds.FullAttention(query_heads, query_heads, head_dim))
    counts = {"MHA": 8, "GQA": 2, "MQA": 1}
    return Miniature(
        heads.TECHNIQUE,
        {"query_heads": query_heads, "tokens": n, "head_dim": head_dim, "kv_heads": counts},
        {
            "scalars": {name: _scalars(heads.with_kv_heads(spec, count), n) for name, count in counts.items()},
            "head_map": {name: list(heads.head_map(query_heads, count)) for name, count in counts.items()},
        },
        "query heads of one group read the same K and V, so fewer are stored",
    )


def _sharing() -> Miniature:
    n = 32
    spec = _spec(kinds.FullAttention(2, 2, 8), 2)
    shared = sharing.with_cla(spec, 2)
    plan, after = _plan(spec), _plan(shared)
    return Miniature(
        sharing.TECHNIQUE,
        {"layers": 2, "tokens": n, "kv_heads": 2, "head_dim": 8},
        {
            "scalars": [_scalars(spec, n), _scalars(shared, n)],
            "scalars_read": [int(plan.read_bytes(n)) // 2, int(after.read_bytes(n)) // 2],
        },
        "the second layer stores nothing and still reads the first one's K and V",
    )


def _window() -> Miniature:
    window, positions = 4, 10
    spec = _spec(kinds.SlidingWindow(1, 1, 8, window))
    law = _plan(spec).groups[0].part.stored
    held = [windows.window_positions(count, window) for count in range(1, positions + 1)]
    return Miniature(
        windows.TECHNIQUE,
        {"window": window, "positions": positions},
        {"held": [list(each) for each in held], "most": max(int(law.count(n)) for n in range(1, positions + 1))},
        "the cache stops growing at the window",
    )


def _latent() -> Miniature:
    spec = _spec(kinds.FullAttention(4, 4, 8))
    squeezed = latent.with_mla(spec, 8, 4)
    before, after = _scalars(spec, 1), _scalars(squeezed, 1)
    return Miniature(
        latent.TECHNIQUE,
        {"heads": 4, "head_dim": 8, "latent": 8, "rope": 4},
        {"scalars_per_token": [before, after], "factor": before / after},
        "one latent and one rotary key serve all heads; V is not stored",
    )


def _recurrent() -> Miniature:
    width, lengths = 64, (128, 4096)
    attention = _plan(_spec(kinds.FullAttention(1, 1, width)), "fp32")
    state = _plan(_spec(kinds.Lightning(1, width)))
    return Miniature(
        recurrent.TECHNIQUE,
        {"width": width, "bytes_per_value": 4, "tokens": list(lengths)},
        {
            "attention_kib": [int(attention.needed_bytes(n)) // KIB for n in lengths],
            "state_kib": [int(state.needed_bytes(n)) // KIB for n in lengths],
        },
        "attention grows with the context, a recurrent state does not",
    )


def _compressed() -> Miniature:
    n, ratio, selected = 32, 4, 2
    layer = kinds.CompressedSparse(1, 8, 0, 1, ratio, indexer=kinds.Indexer(8, selected))
    part = next(group.part for group in _plan(_spec(layer)).groups if group.part.name == "compressed")
    return Miniature(
        compressed.TECHNIQUE,
        {"entries": n, "ratio": ratio, "selected": selected},
        {"stored": int(part.stored.count(n)), "read": int(part.read.count(n))},
        "tokens become fewer entries, and of those only the selected ones are read",
    )


def _quest() -> Miniature:
    pages = [[[1, 0], [2, 1]], [[5, 1], [4, 2]], [[0, 6], [1, 5]], [[-2, -1], [-1, 0]]]
    query = [1, 0.5]
    quest = sparse_reads.Quest(page=2, budget=4, dense=0)
    scores = sparse_reads.page_scores(pages, query)
    part = _plan(_spec(kinds.FullAttention(1, 1, 2))).groups[0].part
    sparse = quest.sparse(part, 1)
    return Miniature(
        sparse_reads.TECHNIQUE,
        {"pages": pages, "query": query, "budget_pages": quest.pages},
        {
            "scores": list(scores),
            "selected": list(sparse_reads.select_pages(scores, quest.pages)),
            "read": int(sparse.read.count(8)),
            "stored": int(sparse.stored.count(8)),
        },
        "whole pages are read by the bound of their scores; every token stays stored",
    )


def _quantization() -> Miniature:
    values = [-1, -0.55, -0.1, 0.25, 0.6, 1]
    coded = quantization.quantize_signed(values, 4)
    return Miniature(
        quantization.TECHNIQUE,
        {"values": values, "bits": 4},
        {
            "codes": list(coded.codes),
            "payload_bits": [16 * len(values), coded.payload_bits],
            "scale": coded.scale,
            "scale_bits": coded.scale_bits,
        },
        "codes are a quarter of the payload; the scale is counted apart",
    )


def _eviction() -> Miniature:
    scores = [9, 0.2, 4, 0.1, 0.3, 6, 0.2, 0.4, 0.1, 0.2]
    kept = eviction.heavy_hitters(scores, 6, 2)
    return Miniature(
        eviction.TECHNIQUE,
        {"scores": scores, "budget": 6, "recent": 2},
        {"kept": list(kept), "freed_blocks_of_2": eviction.freed_blocks(kept, len(scores), 2)},
        "the best-scored tokens and the newest stay; a block with one kept token frees nothing",
    )


def _paging() -> Miniature:
    pool = paging.BlockPool(6)
    taken = {name: list(pool.allocate(name, count)) for name, count in (("A", 3), ("B", 2))}
    pool.release("A")
    taken["C"] = list(pool.allocate("C", 2))
    return Miniature(
        paging.TECHNIQUE,
        {"blocks": 6, "A": 3, "B": 2, "C": 2},
        {"tables": taken, "free": list(pool.free)},
        "any free block will do: a sequence's blocks need not be neighbours",
    )


def _prefix() -> Miniature:
    block = 4
    first = list(range(12))
    second = [*range(8), 90, 91, 92, 93]
    return Miniature(
        prefix.TECHNIQUE,
        {"block": block, "equal_tokens": 8, "prompt": len(second)},
        {
            "blocks_hit": prefix.matching_blocks(first, second, block),
            "blocks": len(second) // block,
            "tokens_hit": prefix.hit_tokens(len(second), block, shared=8),
        },
        "full blocks of the common prefix are found by their chained hashes, the rest is computed",
    )


def _offload() -> Miniature:
    tiers = offload.Tiers(2)
    steps = []
    for name in ("A", "B", "C", "A"):
        tiers.use(name)
        steps.append({"use": name, "device": list(tiers.device), "tier": sorted(tiers.tier)})
    return Miniature(
        offload.TECHNIQUE,
        {"slots": 2, "uses": ["A", "B", "C", "A"]},
        {"moves": [f"{name} {where}" for name, where in tiers.moves], "steps": steps},
        "what is used least lately leaves the device and comes back when it is needed: bytes move, none are lost",
    )


_MAKERS: tuple[Callable[[], Miniature], ...] = (
    _heads, _sharing, _window, _latent, _recurrent, _compressed,
    _quest, _quantization, _eviction, _paging, _prefix, _offload,
)  # fmt: skip


def miniature(technique: Technique) -> Miniature:
    """Run the miniature of one technique."""
    return _MAKERS[technique.number - 1]()


def miniatures() -> tuple[Miniature, ...]:
    """Run all twelve."""
    return tuple(make() for make in _MAKERS)
