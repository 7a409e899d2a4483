"""The same shape as plain MHA, and each trait of the checkpoint put back: where the waterfall starts and steps down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

from kvplan.cache.techniques.latent import expanded
from kvplan.cache.techniques.rewrite import SELF_ATTENTION
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

Trait: TypeAlias = Literal["heads", "latent", "sharing", "recurrent", "compression", "window", "indexer"]
# The written order: heads and width, owning layers, layer kind, compression, windows; an indexer changes reads last.
TRAITS: tuple[Trait, ...] = ("heads", "latent", "sharing", "recurrent", "compression", "window", "indexer")
TECHNIQUE_OF_TRAIT: dict[Trait, str] = {
    "heads": "gqa",
    "latent": "mla",
    "sharing": "cla",
    "recurrent": "hybrid",
    "compression": "csa",
    "window": "window",
    "indexer": "quest",
}


def shape_with(spec: ModelSpec, keep: frozenset[Trait]) -> ModelSpec:
    """`spec` with only the traits of `keep`: without any, every layer is full MHA over its own query heads.

    A recurrent layer without its trait becomes attention of the model's own shape (of one head as wide as the hidden
    size where the model has no attention); recurrent mixers beside attention vanish. Layers without any cache stay.
    """
    model = _reference(spec)
    blocks = {name: _layer(spec, block, keep, model) for name, block in spec.blocks.items()}
    return replace(spec, blocks=blocks)


def restored(spec: ModelSpec) -> Iterator[tuple[Trait, ModelSpec]]:
    """Each trait that changes a layer in use when it is put back in the written order, and the shape with it."""
    keep: frozenset[Trait] = frozenset()
    before = shape_with(spec, keep)
    for trait in TRAITS:
        keep |= {trait}
        after = shape_with(spec, keep)
        if _used(after) != _used(before):
            yield trait, after
        before = after


def removable_traits(spec: ModelSpec) -> tuple[Trait, ...]:
    """The traits whose removal alone changes a layer in use, in the written order."""
    every = frozenset(TRAITS)
    return tuple(trait for trait in TRAITS if _used(shape_with(spec, every - {trait})) != _used(spec))


def _used(spec: ModelSpec) -> list[kinds.Layer]:
    return [spec.blocks[name] for name in spec.counts]


def _reference(spec: ModelSpec) -> kinds.SingleLayer | None:
    """The attention layer that recurrent ones are taken for: the first of the most frequent block with attention."""
    found = [
        (count, mixer)
        for name, count in spec.counts.items()
        for mixer in branches(spec.blocks[name])
        if isinstance(mixer, SELF_ATTENTION)
    ]
    if found:
        return max(found, key=lambda pair: pair[0])[1]
    width = spec.hidden_size
    return kinds.FullAttention(1, 1, width) if width else None


def _layer(spec: ModelSpec, block: kinds.Layer, keep: frozenset[Trait], model: kinds.SingleLayer | None) -> kinds.Layer:
    mixers: tuple[kinds.SingleLayer, ...] = branches(block)
    if "sharing" not in keep:
        mixers = tuple(part for mixer in mixers for part in _own(spec, mixer))
    if "recurrent" not in keep:
        attention: tuple[kinds.SingleLayer, ...] = tuple(
            mixer for mixer in mixers if not isinstance(mixer, kinds.RECURRENT)
        )
        if not attention and model is not None:
            attention = (model,)
        mixers = attention or mixers
    restored = tuple(_mixer(mixer, keep) for mixer in mixers)
    return restored[0] if len(restored) == 1 else kinds.Parallel(restored)


def _own(spec: ModelSpec, mixer: kinds.SingleLayer) -> tuple[kinds.SingleLayer, ...]:
    """The mixer with a cache of its own: the owner's mixers, or V4.1's compressed entries."""
    match mixer:
        case kinds.SharedCache():
            owner = branches(spec.blocks[mixer.owner])
            return tuple(part for part in owner if isinstance(part, SELF_ATTENTION))
        case kinds.CompressedSparse() if not mixer.owns_compressed:
            indexer = mixer.indexer and replace(mixer.indexer, owns_keys=True, scans_keys=False)
            return (replace(mixer, owns_compressed=True, indexer=indexer),)
        case _:
            return (mixer,)


def _mixer(mixer: kinds.SingleLayer, keep: frozenset[Trait]) -> kinds.SingleLayer:
    match mixer:
        case kinds.FullAttention() | kinds.SlidingWindow() | kinds.ChunkedAttention():
            return _heads(mixer, keep)
        case kinds.LatentAttention() if "latent" not in keep:
            return _heads(expanded(mixer), keep)
        case kinds.LatentAttention():
            window = mixer.window if "window" in keep else None
            return replace(mixer, window=window, indexer=mixer.indexer if "indexer" in keep else None)
        case kinds.CompressedSparse():
            return _compressed(mixer, keep)
        case kinds.CrossAttention() if "heads" not in keep:
            return replace(mixer, kv_heads=mixer.query_heads)
        case _:
            return mixer


def _heads(
    mixer: kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention, keep: frozenset[Trait]
) -> kinds.SingleLayer:
    kv_heads = mixer.kv_heads if "heads" in keep else mixer.query_heads
    if isinstance(mixer, kinds.FullAttention):
        return replace(mixer, kv_heads=kv_heads, indexer=mixer.indexer if "indexer" in keep else None)
    if "window" in keep:
        return replace(mixer, kv_heads=kv_heads)
    return kinds.FullAttention(mixer.query_heads, kv_heads, mixer.head_dim, mixer.v_head_dim)


def _compressed(mixer: kinds.CompressedSparse, keep: frozenset[Trait]) -> kinds.SingleLayer:
    """DeepSeek V4 step by step: MHA, one KV head, one vector for K and V, compressed or windowed."""
    if ("window" if mixer.ratio is None else "compression") in keep:
        return mixer
    if "latent" in keep:
        return kinds.LatentAttention(mixer.query_heads, mixer.head_dim, 0)
    return kinds.FullAttention(mixer.query_heads, 1 if "heads" in keep else mixer.query_heads, mixer.head_dim)
