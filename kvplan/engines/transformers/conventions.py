"""Where transformers stores other amounts than the formula's: the one place that lists its conventions.

Windows keep W - 1 tokens (a static cache W); convolutions keep `kernel` columns; recurrent matrices are float32; index
keys take the model's dtype; MLA stores the latent since 5.0. DeepSeek V4 has no fixed compressor state: it keeps the
rows of the last whole group and of the unfinished one, key and gate apart, in the model's dtype; its layers without
compression keep the shared vector twice, as K and as V.
Source: huggingface/transformers 5.24.0, src/transformers/cache_utils.py and models/deepseek_v4, measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from kvplan.cache.layout import COMPRESSED, INDEX_KEYS, WINDOW, LayerContext, Part, layer_parts
from kvplan.cache.precision import resolve_precision
from kvplan.engines.versions import Rules
from kvplan.errors import InputError, UnsupportedArchitectureError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

CacheKind = Literal["dynamic", "static"]


@dataclass(frozen=True)
class TensorLayer:
    """One layer's mixers with their parts, as the library stores them."""

    mixers: tuple[tuple[kinds.SingleLayer, tuple[Part, ...]], ...]

    def bytes(self, tokens: int) -> int:
        """Bytes of one sequence of `tokens` cached tokens; a static cache holds them all from the start."""
        return sum(_mixer_bytes(layer, parts, tokens) for layer, parts in self.mixers)


def tensor_layers(spec: ModelSpec, rules: Rules, cache: CacheKind) -> list[TensorLayer]:
    """The layers of `spec` in order; those that share another's cache or have none are empty.

    Raises UnsupportedArchitectureError where an older version stores expanded heads whose widths the spec lacks.
    """
    built: dict[str, TensorLayer] = {}
    for name in spec.counts:
        mixers = []
        for branch in branches(spec.blocks[name]):
            layer = _stored(branch, rules, cache)
            mixers.append((layer, layer_parts(layer, _context(spec, layer, rules))))
        built[name] = TensorLayer(tuple(mixers))
    return [built[name] for name in spec.sequence()]


def _context(spec: ModelSpec, layer: kinds.SingleLayer, rules: Rules) -> LayerContext:
    in_model_dtype = layer.kind in rules["state_in_model_dtype"]
    precision = resolve_precision(
        "auto",
        "bf16",
        spec.dtype if in_model_dtype and spec.dtype != "float32" else "float32",
        model_dtype=spec.dtype,
    )
    if spec.model_type in rules["conv_in_float32"]:
        precision = replace(precision, conv="float32")
    return LayerContext(precision, spec.meta_tokens)


def _stored(layer: Any, rules: Rules, cache: CacheKind) -> Any:
    """`layer` with the widths, windows and columns the library gives it."""
    if hasattr(layer, "conv_kernel"):
        layer = replace(layer, conv_kernel=layer.conv_kernel + rules["extra_conv_columns"])
    indexer = getattr(layer, "indexer", None)
    if indexer is not None and indexer.key_format is not None:
        layer = replace(layer, indexer=replace(indexer, key_format=None))
    if isinstance(layer, kinds.LatentAttention) and rules["mla"] == "expanded":
        if layer.nope_head_dim is None or layer.v_head_dim is None:
            raise UnsupportedArchitectureError(
                "nope_head_dim: found an MLA layer without its expanded head widths, expected them for a version of "
                "transformers that stores expanded heads"
            )
        width = layer.nope_head_dim + layer.rope_dim
        return kinds.FullAttention(layer.query_heads, layer.query_heads, width, layer.v_head_dim)
    for field in ("window", "chunk"):
        window = getattr(layer, field, None)
        if window is None:
            continue
        if not rules["windows_cropped"] and not isinstance(layer, kinds.CompressedSparse | kinds.LatentAttention):
            return kinds.FullAttention(layer.query_heads, layer.kv_heads, layer.head_dim, layer.v_head_dim)
        if cache == "dynamic":
            layer = replace(layer, **{field: max(1, window - rules["window_less"])})
    return layer


def _mixer_bytes(layer: kinds.SingleLayer, parts: tuple[Part, ...], tokens: int) -> int:
    if not isinstance(layer, kinds.CompressedSparse):
        return int(sum(part.stored_bytes(tokens) for part in parts if part.role != "cross"))
    growing = int(sum(part.stored_bytes(tokens) for part in parts if part.role == "growing"))
    # a layer without compression is a plain window layer there, which keeps the shared vector as K and as V
    return 2 * growing if layer.ratio is None else growing + _open_rows(layer, parts, tokens)


def _open_rows(layer: kinds.CompressedSparse, parts: tuple[Part, ...], tokens: int) -> int:
    """Key and gate rows DeepSeek V4 keeps beside its entries: the last whole group where groups overlap, the rest.

    An unfinished group's rows are twice as wide where groups overlap.
    """
    if layer.ratio is None or not layer.owns_compressed:
        return 0
    row = sum(part.entry_bytes for part in parts if part.name in (COMPRESSED, INDEX_KEYS))
    rest = tokens % layer.ratio
    overlap = layer.ratio if layer.overlap and tokens >= layer.ratio else 0
    return 2 * row * (overlap + rest * (2 if layer.overlap else 1))


def peak_storage(spec: ModelSpec, rules: Rules, prompt: int) -> int:
    """Bytes allocated right after a prompt of `prompt` tokens, before the next step frees the rest.

    A window layer's tensor is then a view of the whole prompt's.
    """
    return sum(
        max(_mixer_bytes(layer, parts, prompt), _whole_prompt(layer, parts, prompt))
        for item in tensor_layers(spec, rules, "dynamic")
        for layer, parts in item.mixers
    )


def _whole_prompt(layer: kinds.SingleLayer, parts: tuple[Part, ...], prompt: int) -> int:
    windowed = [part for part in parts if part.stored.window is not None and part.name != WINDOW]
    return sum(part.bytes(prompt) for part in windowed)


def stored_tokens(prompt: int, generated: int) -> int:
    """Tokens in the cache after `generated` new ones: the last is never cached. Raises InputError below one token."""
    if prompt < 1 or generated < 0:
        raise InputError(f"tokens: found a prompt of {prompt} and {generated} new tokens, expected at least one token")
    return prompt + max(0, generated - 1)
