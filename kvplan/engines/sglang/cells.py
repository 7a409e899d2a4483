"""What one token costs on one SGLang rank: full layers, window layers, state slots.

Source: sgl-project/sglang 0.5.23 srt/mem_cache and srt/configs/mamba_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvplan.cache.layout import COMPRESSED, INDEX_KEYS, KV, LATENT, WINDOW
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.shard import shard_layer
from kvplan.engines.stored import Stored, by_stage, stored_layers
from kvplan.engines.versions import Rules
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

CACHE_DTYPES = {
    "auto": "auto",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8": "fp8",  # one byte a value, scales outside the pool, as fp8
    "fp4_e2m1": "fp4_mx_block16",
    "fp4_mx_block16": "fp4_mx_block16",
    "nvfp4": "fp4_mx_block16",
    "mxfp8": "mxfp8",
}


@dataclass(frozen=True)
class Cell:
    """Bytes of one token on one stage: `full` in whole-context layers, `window` in the window pool's layers.

    `key` and `value` split K and V of the full part, `window_key` and `window_value` of the other (MLA: all in K).
    `slot` is one state slot: recurrent state, or DeepSeek V4's compressor rows.
    """

    full: Fraction
    window: Fraction
    key: Fraction
    window_key: Fraction
    slot: int
    full_layers: int
    window_layers: int
    state_layers: int
    width: int


def precision_for(spec: ModelSpec, kv_cache_dtype: str, ssm_dtype: str | None) -> Precision:
    """KV as asked, index keys always 132 bytes, convolutions in the model's dtype, recurrent state fp32 or as asked."""
    return resolve_precision(CACHE_DTYPES[kv_cache_dtype], "fp8", ssm_dtype or "auto", model_dtype=spec.dtype)


def has_window_pool(spec: ModelSpec, rules: Rules) -> bool:
    """Whether this version gives the model's window layers a pool of their own."""
    return spec.model_type.removesuffix("_text") in rules["window_pool"]


def stage_layers(spec: ModelSpec, precision: Precision, rules: Rules, ranks: int, stages: int) -> list[list[Stored]]:
    """The layers of each pipeline stage as one rank holds them. Attention keeps max(1, heads // ranks) KV heads."""
    pooled = has_window_pool(spec, rules)

    def adapt(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        if isinstance(layer, kinds.SlidingWindow | kinds.ChunkedAttention | kinds.FullAttention):
            heads = max(1, layer.kv_heads // ranks)
            if isinstance(layer, kinds.FullAttention):
                return replace(layer, kv_heads=heads)
            if pooled:
                return replace(layer, kv_heads=heads)
            return kinds.FullAttention(layer.query_heads, heads, layer.head_dim, layer.v_head_dim)
        if isinstance(layer, kinds.LatentAttention) and not pooled:
            return replace(layer, window=None)
        return shard_layer(layer, ranks)

    return by_stage(stored_layers(spec, precision, adapt=adapt), spec.layer_count, stages)


def cell_of(layers: Sequence[Stored], rules: Rules) -> Cell:
    """One token's bytes over `layers`."""
    full = [item for item in layers if not _windowed(item)]
    window = [item for item in layers if _windowed(item)]
    states = [item for item in layers if item.bytes("state")]
    page, align = rules["page_size_v4"], rules["page_align_v4"]
    return Cell(
        full=sum((_token(part, item, page, align) for item in layers for part in _full_parts(item)), Fraction(0)),
        window=sum((_token(part, item, page, align) for item in window for part in _window_parts(item)), Fraction(0)),
        key=sum((_keys(part) for item in layers for part in _full_parts(item)), Fraction(0)),
        window_key=sum((_keys(part) for item in window for part in _window_parts(item)), Fraction(0)),
        slot=sum(item.bytes("state") for item in states),
        full_layers=sum(1 for item in full if any(True for _ in _full_parts(item))),
        window_layers=len(window),
        state_layers=len(states),
        width=max((_width(item) or 0 for item in window), default=0),
    )


def _width(item: Stored) -> int | None:
    return getattr(item.layer, "chunk", None) or getattr(item.layer, "window", None)


def _windowed(item: Stored) -> bool:
    return _width(item) is not None and item.part(KV, LATENT, WINDOW) is not None


def _full_parts(item: Stored) -> Iterable[Any]:
    names = (COMPRESSED, INDEX_KEYS) if _windowed(item) else (KV, LATENT, INDEX_KEYS, COMPRESSED)
    return (part for name in names if (part := item.part(name)) is not None)


def _window_parts(item: Stored) -> Iterable[Any]:
    return (part for name in (KV, LATENT, WINDOW) if (part := item.part(name)) is not None)


def _token(part: Any, item: Stored, page: int, align: int) -> Fraction:
    """Bytes of one token: an entry over its ratio; DeepSeek V4's records are padded by the page."""
    if isinstance(item.layer, kinds.CompressedSparse) and part.name != INDEX_KEYS:
        rows = max(1, page // part.stored.ratio)
        return Fraction(-(-rows * part.entry_bytes // align) * align, page)
    return Fraction(part.entry_bytes, part.stored.ratio)


def _keys(part: Any) -> Fraction:
    """K's share of a token; index keys are neither K nor V."""
    return Fraction(0) if part.name == INDEX_KEYS else Fraction(part.key_bytes, part.stored.ratio)
