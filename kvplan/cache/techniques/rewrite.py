"""Rewriting a spec layer by layer: what the what-ifs and per-layer budgets are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.layers import Layer, Parallel, SingleLayer
from kvplan.spec.model import ModelSpec, branches

SELF_ATTENTION = (
    kinds.FullAttention,
    kinds.SlidingWindow,
    kinds.ChunkedAttention,
    kinds.LatentAttention,
    kinds.CompressedSparse,
)


def map_branches(layer: Layer, edit: Callable[[SingleLayer], SingleLayer]) -> Layer:
    """The layer with `edit` applied to each of its mixers."""
    if isinstance(layer, Parallel):
        return replace(layer, branches=tuple(edit(branch) for branch in layer.branches))
    return edit(layer)


def has_kind(layer: Layer, wanted: tuple[type, ...]) -> bool:
    """Whether one of the layer's mixers is of these kinds."""
    return any(isinstance(branch, wanted) for branch in branches(layer))


def runs(names: Iterable[str]) -> tuple[str, ...]:
    """Block names in layer order as a spec's `layers`, equal neighbours joined."""
    joined: list[tuple[str, int]] = []
    for name in names:
        if joined and joined[-1][0] == name:
            joined[-1] = (name, joined[-1][1] + 1)
        else:
            joined.append((name, 1))
    return tuple(f"{count} x {name}" for name, count in joined)


def relayer(spec: ModelSpec, names: list[str], blocks: dict[str, Layer]) -> ModelSpec:
    """`spec` with another layer order and more blocks."""
    return replace(spec, blocks={**spec.blocks, **blocks}, layers=runs(names))


def edit_attention(
    spec: ModelSpec,
    edit: Callable[[SingleLayer], SingleLayer],
    wanted: tuple[type, ...],
    field: str,
    needed: str,
) -> ModelSpec:
    """`spec` with `edit` applied to every mixer. Raises InputError naming `field` when no layer is of `wanted`."""
    if not any(has_kind(spec.blocks[name], wanted) for name in spec.counts):
        found = ", ".join(sorted({spec.blocks[name].kind for name in spec.counts}))
        raise InputError(f"{field}: found a model of {found} layers, expected {needed}")
    return replace(spec, blocks={name: map_branches(block, edit) for name, block in spec.blocks.items()})


def refuse_shared(spec: ModelSpec, field: str) -> None:
    """Raises InputError for a model whose layers share caches: its readers would lose the layer they read."""
    if any(has_kind(spec.blocks[name], (kinds.SharedCache,)) for name in spec.counts):
        raise InputError(f"{field}: found a model whose layers share already, expected one where each owns its cache")


def owned_attention(spec: ModelSpec) -> list[tuple[int, str]]:
    """(layer number, block name) of each layer that owns a self-attention cache, in layer order."""
    names = spec.sequence()
    return [(number, name) for number, name in enumerate(names) if has_kind(spec.blocks[name], SELF_ATTENTION)]
