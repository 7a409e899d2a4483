"""Prefix reuse: full blocks of a shared prefix are stored once and computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kvplan.cache.layout import Part
from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.paging import blocks
from kvplan.record import record

TECHNIQUE = Technique(
    number=11,
    name="prefix",
    title="Prefix reuse",
    term="duplicates",
    stored="the full blocks of a shared prefix once, not once a sequence",
    read="unchanged without a cascade kernel",
    computed="the prefill of the hit is skipped; the last token is always recomputed",
    needs_training=False,
    kinds=("full_attention", "sliding_window", "latent_attention", "compressed_sparse"),
    untouched="decode reads; what differs between sequences; recurrent state",
    metadata="a hash a block; hybrids keep state snapshots at block boundaries",
    quality="none: exact",
    kernel="paged pool with chained block hashes or a radix tree; conflicts with eviction",
    headline="100 requests sharing 2,048 tokens, 200 of their own: 1,428 blocks of 16 instead of 14,100",
    source="vllm-project/vllm docs/design/prefix_caching.md; arithmetic",
    option="--share-prefix 2k --batch 64",
)


def hit_tokens(prompt: int, block: int, shared: int | None = None) -> int:
    """Tokens of a prompt found in the cache: full blocks of the `shared` part (default: all of it is cached).

    At least the last token runs, so an exact multiple recomputes a whole block (vLLM v1/core/kv_cache_manager.py).
    """
    reusable = (prompt - 1) // block * block
    return reusable if shared is None else min(shared // block * block, reusable)


@record
class SharedBlocks:
    """Blocks of one group with a prefix stored once, and without sharing."""

    shared: int
    unshared: int


def shared_blocks(requests: int, prefix: int, own: int, block: int) -> SharedBlocks:
    """Blocks that `requests` sequences of `prefix` common and `own` further tokens take in one full group."""
    each = blocks(prefix + own, block)
    return SharedBlocks(requests * each - (requests - 1) * min(prefix // block, each), requests * each)


def shared_entries(part: Part, n: int, prefix: int, block: int) -> int:
    """Entries of one layer's part that sequences of n tokens hold in common: full blocks of the prefix that are still
    resident. A window past the prefix shares nothing; state and encoder parts are each sequence's own.
    """
    if part.role != "growing" or not part.stored.grows:
        return 0
    first = 0 if part.stored.window is None else max(0, n - part.stored.window) // block
    return max(0, prefix // block - first) * (block // part.stored.ratio)


def block_hashes(tokens: Sequence[int], block: int, salt: str = "") -> tuple[str, ...]:
    """The key of each full block: a hash over its parent's key and its tokens, the first salted."""
    keys: list[str] = []
    parent = salt
    for start in range(0, len(tokens) // block * block, block):
        content = f"{parent}|{','.join(map(str, tokens[start : start + block]))}"
        parent = hashlib.sha256(content.encode()).hexdigest()
        keys.append(parent)
    return tuple(keys)


def matching_blocks(cached: Sequence[int], prompt: Sequence[int], block: int, salt: str = "") -> int:
    """Leading blocks of `prompt` found among those of `cached`, the block with the last token left out."""
    known = set(block_hashes(cached, block, salt))
    hits = 0
    for key in block_hashes(prompt[:-1], block, salt):
        if key not in known:
            break
        hits += 1
    return hits


def state_checkpoints(n: int, block: int, mode: str) -> int:
    """Recurrent-state copies one request keeps for prefix reuse: vLLM's modes none 1, align 2, all ceil(n / block)."""
    return {"none": 1, "align": 2, "all": blocks(n, block)}[mode]
