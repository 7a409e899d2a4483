"""Traits of a model that a person filters by, read off its layer kinds."""

from __future__ import annotations

from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

_BY_KIND = {
    "sliding_window": "window",
    "chunked_attention": "chunked",
    "latent_attention": "mla",
    "compressed_sparse": "csa",
    "cross_attention": "cross-attention",
    "shared_cache": "kv-sharing",
    "parallel": "parallel-hybrid",
}
_HEADED = (kinds.FullAttention, kinds.SlidingWindow, kinds.ChunkedAttention)


def traits(spec: ModelSpec) -> list[str]:
    """The traits of a spec, sorted: mha, gqa, mqa, window, mla, csa, indexer, recurrent, mamba2, moe, draft, ..."""
    found: set[str] = set()
    for name in (*spec.counts, *spec.draft_counts):
        block = spec.blocks[name]
        layers = branches(block)
        # A decoder's layer, self attention and then cross attention, is no hybrid of two mixers.
        decoder = len(layers) > 1 and any(layer.kind == "cross_attention" for layer in layers)
        found |= {_BY_KIND[block.kind]} if block.kind in _BY_KIND and not decoder else set()
        for layer in layers:
            found |= _layer_traits(layer)
    if spec.draft_layers:
        found.add("draft")
    if spec.meta_tokens:
        found.add("meta-tokens")
    if spec.parameters is not None and spec.parameters.experts:
        found.add("moe")
    if spec.quantization is not None:
        found.add("quantized")
    if spec.kv_quantization is not None:
        found.add("kv-quantization-hint")
    return sorted(found)


def _layer_traits(layer: kinds.SingleLayer) -> set[str]:
    found = {_BY_KIND[layer.kind]} if layer.kind in _BY_KIND else set()
    if isinstance(layer, _HEADED):
        found.add(
            "mqa"
            if layer.kv_heads == 1 < layer.query_heads
            else "mha"
            if layer.kv_heads == layer.query_heads
            else "gqa"
        )
        if layer.v_head_dim not in (None, layer.head_dim):
            found.add("k-v-differ")
    if isinstance(layer, kinds.RECURRENT):
        found |= {"recurrent", layer.kind.replace("_", "-")}
    if getattr(layer, "indexer", None) is not None:
        found.add("indexer")
    return found
