"""GQA and MQA: query heads share K and V heads, so fewer are stored and read."""

from __future__ import annotations

from dataclasses import replace

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import edit_attention
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

TECHNIQUE = Technique(
    number=1,
    name="gqa",
    title="GQA and MQA: query heads share KV heads",
    term="heads",
    stored="KV heads / query heads of MHA",
    read="the same factor",
    computed="unchanged: every query head still runs",
    needs_training=True,
    kinds=("full_attention", "sliding_window", "chunked_attention", "cross_attention"),
    untouched="latents, recurrent state, FLOPs of attention",
    metadata="none",
    quality="trained or uptrained into the checkpoint; MQA loses more than GQA",
    kernel="every attention kernel has it; past tensor parallel = KV heads the total over ranks grows again",
    headline="Llama 3.1 70B at 131,072 tokens: 40 GiB with 8 KV heads, 320 GiB with 64 (GiB at 16 bits, not GB)",
    source="arXiv 2305.13245 and 1911.02150; Llama 3.1 config, arithmetic",
    what_if="kv-heads=8",
)

HEADED = (kinds.FullAttention, kinds.SlidingWindow, kinds.ChunkedAttention)


def head_map(query_heads: int, kv_heads: int) -> tuple[int, ...]:
    """The KV head that each query head reads: contiguous groups of query_heads / kv_heads.

    Raises InputError when the division leaves a remainder.
    """
    _check(query_heads, kv_heads)
    return tuple(head * kv_heads // query_heads for head in range(query_heads))


def with_kv_heads(spec: ModelSpec, kv_heads: int) -> ModelSpec:
    """The same model with another number of KV heads in every attention layer (64 of 64 query heads is MHA).

    Raises InputError when the model has no layer with KV heads or the query heads don't divide.
    """

    def edit(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        if not isinstance(layer, HEADED):
            return layer
        _check(layer.query_heads, kv_heads)
        return replace(layer, kv_heads=kv_heads)

    return edit_attention(spec, edit, HEADED, "kv-heads", "a layer with KV heads (a latent has none)")


def _check(query_heads: int, kv_heads: int) -> None:
    if kv_heads < 1 or query_heads % kv_heads:
        divisors = [count for count in range(1, query_heads + 1) if query_heads % count == 0]
        close = min(divisors, key=lambda count: abs(count - kv_heads))
        raise InputError(
            f"kv-heads: found {kv_heads}, expected a divisor of the {query_heads} query heads; nearest: {close}"
        )
