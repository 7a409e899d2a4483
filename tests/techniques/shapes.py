"""Specs built from the shapes that a golden case spells out."""

from __future__ import annotations

from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance


def spec(*runs: tuple[int, kinds.Layer], hidden_size: int | None = None) -> ModelSpec:
    """A model of `count` layers of each kind, in order; runs of no layers are left out."""
    blocks = {f"b{index}": layer for index, (count, layer) in enumerate(runs) if count}
    layers = tuple(f"{count} x b{index}" for index, (count, _) in enumerate(runs) if count)
    return ModelSpec(
        id="case", model_type="case", dtype="bfloat16", blocks=blocks, layers=layers,
        provenance=Provenance("golden case", "verbatim"), hidden_size=hidden_size,
    )  # fmt: skip


def dense(layers: int, kv_heads: int, head_dim: int, query_heads: int | None = None) -> ModelSpec:
    """A decoder of full attention alone."""
    return spec((layers, kinds.FullAttention(query_heads or kv_heads, kv_heads, head_dim)))
