"""MLA: one latent and one rotary key a token for all heads, and what storing expanded heads would cost."""

from __future__ import annotations

from dataclasses import replace

from kvplan.cache.precision import Precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import edit_attention
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

TECHNIQUE = Technique(
    number=4,
    name="mla",
    title="MLA: a latent instead of heads",
    term="width",
    stored="(latent + rotary) values a token and layer, no V",
    read="the same vector, once for all query heads",
    computed="more a byte: 2 x query heads x (latent + rotary + latent) a token; decode can be compute-bound",
    needs_training=True,
    kinds=("latent_attention",),
    untouched="recurrent state; tensor parallelism does not split the vector",
    metadata="none in 16 bits; the packed fp8 record is 656 bytes for 512 + 64, 9.11 bits a value",
    quality="trained into the checkpoint; conversions need training",
    kernel="absorbed MLA kernel; without one the cache expands to heads, 71 times more for DeepSeek V3",
    headline="DeepSeek-V2 93.3 % below DeepSeek 67B: only with its 6-bit KV; 82.2 % at equal bits",
    source="arXiv 2405.04434; deepseek-ai/FlashMLA README",
    what_if="mla=512+64",
)

# Expanded widths of DeepSeek V2 and V3, for a latent layer whose spec does not name them.
EXPANDED_HEAD_DIM = 128


def expanded(layer: kinds.LatentAttention) -> kinds.FullAttention | kinds.SlidingWindow:
    """The layer with expanded heads in its cache: K of nope + rotary and V of its own width for every query head."""
    key = (layer.nope_head_dim or EXPANDED_HEAD_DIM) + layer.rope_dim
    heads, value = layer.query_heads, layer.v_head_dim or EXPANDED_HEAD_DIM
    if layer.window is not None:
        return kinds.SlidingWindow(heads, heads, key, layer.window, value)
    return kinds.FullAttention(heads, heads, key, value, layer.indexer)


def expanded_bytes(spec: ModelSpec, precision: Precision, n: int) -> int:
    """needed_bytes of one sequence when every latent is stored as expanded heads (an engine without absorbed MLA)."""

    def edit(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        return expanded(layer) if isinstance(layer, kinds.LatentAttention) else layer

    grown = edit_attention(spec, edit, (kinds.LatentAttention,), "model", "a model with MLA layers")
    return int(plan_cache(grown, precision).needed_bytes(n))


def with_mla(spec: ModelSpec, latent: int, rope: int) -> ModelSpec:
    """Every layer with KV heads as a latent of `latent` + `rope` values."""

    def edit(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        match layer:
            case kinds.FullAttention() | kinds.SlidingWindow():
                window = layer.window if isinstance(layer, kinds.SlidingWindow) else None
                value = layer.v_head_dim or layer.head_dim
                indexer = layer.indexer if isinstance(layer, kinds.FullAttention) else None
                return kinds.LatentAttention(layer.query_heads, latent, rope, layer.head_dim, value, window, indexer)
            case kinds.LatentAttention():
                return replace(layer, latent_dim=latent, rope_dim=rope)
            case _:
                return layer

    wanted = (kinds.FullAttention, kinds.SlidingWindow, kinds.LatentAttention)
    return edit_attention(spec, edit, wanted, "mla", "attention layers")
