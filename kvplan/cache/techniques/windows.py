"""Sliding windows and chunks: entries stop at the window. StreamingLLM is the training-free variant (see eviction)."""

from __future__ import annotations

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import has_kind, owned_attention, refuse_shared, relayer
from kvplan.cache.techniques.sharing import windowed
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

TECHNIQUE = Technique(
    number=3,
    name="window",
    title="Sliding windows and chunks",
    term="tokens",
    stored="min(n, window) in windowed layers",
    read="the same",
    computed="the same",
    needs_training=True,
    kinds=("sliding_window", "chunked_attention"),
    untouched="full-attention layers; gpt-oss sinks are one logit a head and cost no cache",
    metadata="none; engines reserve more slots than the window (tokens in flight, one block, padding)",
    quality="trained into the checkpoint; StreamingLLM (sinks + recent) needs no training and forgets the middle",
    kernel="the engine must free blocks behind the window, else the layer costs full length",
    headline="Gemma 3 27B at 131,072 tokens: 62 GiB all-global, 10.41 GiB with 52 of 62 layers at 1,024",
    source="arXiv 2503.19786; ggml-org/llama.cpp issue 12637; arXiv 2309.17453 (StreamingLLM)",
    what_if="window=1024:5/6",
    option="--evict streamingllm:4+2044",
)


def window_positions(count: int, window: int) -> tuple[int, ...]:
    """Positions a window holds after `count` tokens: the last min(count, window)."""
    return tuple(range(max(0, count - window), count))


def chunk_resident(count: int, chunk: int) -> int:
    """Tokens of the current chunk at one moment: ((count - 1) mod chunk) + 1. A plan holds min(count, chunk)."""
    return (count - 1) % chunk + 1


def with_window(spec: ModelSpec, window: int, local: int, period: int) -> ModelSpec:
    """`local` of each `period` full-attention layers become windows of `window` tokens, the global ones last.

    5 of 6 over 62 layers leaves 10 global ones, as in Gemma 3. Raises InputError without full-attention layers.
    """
    refuse_shared(spec, "window")
    places = [
        (number, name) for number, name in owned_attention(spec) if has_kind(spec.blocks[name], (kinds.FullAttention,))
    ]
    if not places:
        raise InputError("window: found a model without full-attention layers, expected layers that a window could cap")
    names = spec.sequence()
    blocks: dict[str, kinds.Layer] = {}
    for index, (number, name) in enumerate(places):
        if index % period >= local:
            continue
        names[number] = f"{name}.local"
        blocks[names[number]] = _cap(spec.blocks[name], window)
    return relayer(spec, names, blocks)


def _cap(block: kinds.Layer, window: int) -> kinds.Layer:
    if isinstance(block, kinds.Parallel):
        capped = (windowed(part, window) if isinstance(part, kinds.FullAttention) else part for part in block.branches)
        return kinds.Parallel(tuple(capped))
    assert isinstance(block, kinds.FullAttention)
    return windowed(block, window)
