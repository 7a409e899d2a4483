"""The layers of a model as an engine's rank stores them: one entry a layer that owns a cache, with its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvplan.cache.layout import LayerContext, Part, layer_parts
from kvplan.cache.precision import Precision
from kvplan.cache.shard import shard_layer
from kvplan.spec.layers import CrossAttention, NoCache, SharedCache, SingleLayer
from kvplan.spec.model import ModelSpec, branches

Adapt = Callable[[SingleLayer], SingleLayer]


@dataclass(frozen=True)
class Stored:
    """One mixer that owns a cache. `index` is its layer's place in the model; parallel mixers share it."""

    index: int
    block: str
    layer: SingleLayer
    parts: tuple[Part, ...]

    def part(self, *names: str) -> Part | None:
        """The first part of one of these names, if the layer has one that it stores itself."""
        for part in self.parts:
            if part.name in names and (part.stored.grows or part.stored.constant):
                return part
        return None

    def bytes(self, *roles: str) -> int:
        """Bytes of one entry of every stored part of these roles (state parts have one entry)."""
        owned = (part for part in self.parts if part.stored.grows or part.stored.constant)
        return sum(part.entry_bytes for part in owned if part.role in roles)


def stored_layers(
    spec: ModelSpec,
    precision: Precision,
    *,
    ranks: int = 1,
    adapt: Adapt | None = None,
    drafting: bool = False,
) -> list[Stored]:
    """The mixers of `spec` that own a cache, in order, as one of `ranks` tensor-parallel ranks holds them.

    `adapt` is what the engine makes of a layer before its bytes are asked for; with it the engine splits heads itself
    and `ranks` is left to it. Cross attention is left out: its entries depend on the encoder. With `drafting` the
    model's draft layers follow.
    """
    names = spec.sequence()
    if drafting:
        names += [name for name, count in spec.draft_counts.items() for _ in range(count)]
    context = LayerContext(precision, spec.meta_tokens)
    blocks: dict[str, list[tuple[SingleLayer, tuple[Part, ...]]]] = {}
    for name in dict.fromkeys(names):
        blocks[name] = []
        for branch in branches(spec.blocks[name]):
            if isinstance(branch, SharedCache | NoCache | CrossAttention):
                continue
            layer = adapt(branch) if adapt is not None else shard_layer(branch, ranks)
            blocks[name].append((layer, layer_parts(layer, context)))
    return [Stored(index, name, layer, parts) for index, name in enumerate(names) for layer, parts in blocks[name]]


def split_evenly(layers: int, stages: int) -> list[range]:
    """Layers of each pipeline stage, the first stages taking one more where they don't divide."""
    each, spare = divmod(layers, stages)
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + each + (1 if stage < spare else 0))
    return [range(ends[stage], ends[stage + 1]) for stage in range(stages)]


def by_stage(stored: Sequence[Stored], layers: int, stages: int) -> list[list[Stored]]:
    """`stored` split over pipeline stages by layer index; draft layers go to the last stage."""
    ranges = split_evenly(layers, stages)
    last = stages - 1
    return [
        [item for item in stored if item.index in places or (stage == last and item.index >= layers)]
        for stage, places in enumerate(ranges)
    ]
