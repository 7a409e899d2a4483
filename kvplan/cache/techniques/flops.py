"""Attention FLOPs of one decode step of one sequence: a multiply and an add count two.

Heads: query heads x 2 x (K + V width) an entry read. MLA, absorbed: query heads x 2 x (latent + rotary + latent).
DeepSeek V4: query heads x 2 x 2 x head_dim. Indexers: heads x 2 x key width a key. Quest: query heads x 4 x key width
a page. Recurrent matrices: a rank-one update and one product, 4 a state value. Projections and convolutions are part of
the weights' 2 x active parameters.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvplan.cache.size import CachePlan, Group
from kvplan.cache.state import recurrent_state
from kvplan.cache.techniques.rewrite import SELF_ATTENTION
from kvplan.cache.techniques.sparse_reads import SUMMARY
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches


def source_layer(spec: ModelSpec, group: Group) -> kinds.SingleLayer:
    """The mixer whose geometry a group's part has: the owner's where the group's layers share a cache."""
    mixers = branches(spec.blocks[group.block])
    for mixer in mixers:
        if mixer.kind == group.kind and not isinstance(mixer, kinds.SharedCache):
            return mixer
    shared = next(mixer for mixer in mixers if isinstance(mixer, kinds.SharedCache))
    return next(mixer for mixer in branches(spec.blocks[shared.owner]) if isinstance(mixer, SELF_ATTENTION))


def entry_flops(layer: kinds.SingleLayer, part: str) -> int:
    """FLOPs that one entry of `part` costs one layer in one decode step."""
    match layer:
        case _ if part == "index keys":
            indexer = getattr(layer, "indexer", None)
            assert indexer is not None
            return (indexer.heads or 1) * 2 * int(indexer.key_dim)
        case kinds.FullAttention() if part == SUMMARY:
            return layer.query_heads * 4 * layer.head_dim
        case kinds.CrossAttention():
            return layer.query_heads * 4 * layer.head_dim
        case kinds.FullAttention() | kinds.SlidingWindow() | kinds.ChunkedAttention():
            return layer.query_heads * 2 * (layer.head_dim + (layer.v_head_dim or layer.head_dim))
        case kinds.LatentAttention():
            return layer.query_heads * 2 * (2 * layer.latent_dim + layer.rope_dim)
        case kinds.CompressedSparse() if part in ("window", "compressed"):
            return layer.query_heads * 4 * layer.head_dim
        case _ if isinstance(layer, kinds.RECURRENT) and part == "recurrent state":
            return sum(4 * state.values for state in recurrent_state(layer) if state.precision == "recurrent")
        case _:
            return 0


def attention_flops(plan: CachePlan, n: Any) -> Any:
    """Attention FLOPs of one decode step at n stored tokens (an integer or a numpy array)."""
    return sum(
        group.readers * entry_flops(source_layer(plan.spec, group), group.part.name) * group.part.read.count(n)
        for group in plan.groups
    )


@record
class DecodeFlops:
    """One decode step: index scores, attention proper, and 2 x active parameters."""

    index: Fraction
    core: Fraction
    linear: int

    @property
    def total(self) -> Fraction:
        return self.index + self.core + self.linear


def decode_flops(
    plan: CachePlan,
    n: int,
    active_parameters: int,
    core_weight: Fraction | int = 1,
    index_weight: Fraction | int = 1,
) -> DecodeFlops:
    """FLOPs of one decode step by kind, weighted: fp8-equivalents count 16-bit attention twice, an fp4 index half."""
    index = sum(
        group.readers * entry_flops(source_layer(plan.spec, group), "index keys") * group.part.read.count(n)
        for group in plan.groups
        if group.part.name == "index keys"
    )
    core = attention_flops(plan, n) - index
    return DecodeFlops(Fraction(index_weight) * index, Fraction(core_weight) * core, 2 * active_parameters)
