"""Layers that own no cache: which earlier layer's K and V each of them reads."""

from __future__ import annotations

from kvplan.errors import show
from kvplan.spec.importers.fields import Fields, is_whole


def owners(fields: Fields, kinds: list[str]) -> list[int | None]:
    """For each layer the index of the layer whose cache it reads, None where it owns its own."""
    none: list[int | None] = [None] * len(kinds)
    if fields.flag("use_cla"):
        return _by_factor(fields, len(kinds))
    groups = fields.items("kv_reuse_group")
    if groups is not None:
        return _by_groups(fields, groups, len(kinds))
    if (fields.whole("kv_reuse_every_i_layer", low=0) or 0) > 0:
        raise fields.unsupported("kv_reuse_every_i_layer is set without kv_reuse_group, which names the layers")
    sources = fields.wholes("kv_source_layers")
    if sources is not None:
        return _by_sources(fields, sources, kinds)
    count = fields.whole("num_kv_shared_layers", "num_kv_reuse_layers", low=0, high=len(kinds))
    if count is None and fields.family.sharing == "last_layers":
        raise fields.unsupported("num_kv_shared_layers is missing, which says how many layers at the end own no cache")
    return _last_layers(fields, kinds, count) if count else none


def _by_factor(fields: Fields, layers: int) -> list[int | None]:
    """Cross-layer attention: of each run of `cla_share_factor` layers the first owns."""
    factor = fields.whole("cla_share_factor")
    if factor is None:
        raise fields.unsupported("use_cla is true but cla_share_factor is missing")
    return [None if index % factor == 0 else index - index % factor for index in range(layers)]


def _by_groups(fields: Fields, groups: list[object], layers: int) -> list[int | None]:
    result: list[int | None] = [None] * layers
    seen: set[int] = set()
    for group in groups:
        if not isinstance(group, list) or not group or not all(is_whole(index, 0) for index in group):
            raise fields.bad("kv_reuse_group", group, "lists of layer indices")
        if max(group) >= layers or seen & set(group) or group != sorted(set(group)):
            raise fields.unsupported(
                f"kv_reuse_group {show(group)} isn't an ascending list of layers below {layers} of its own"
            )
        seen |= set(group)
        for index in group[1:]:
            result[index] = group[0]
    return result


def _by_sources(fields: Fields, sources: list[int], kinds: list[str]) -> list[int | None]:
    """One source a layer: a layer that names itself owns."""
    if len(sources) != len(kinds):
        raise fields.unsupported(
            f"kv_source_layers has {len(sources)} entries, expected one for each of {len(kinds)} layers"
        )
    for index, source in enumerate(sources):
        if source > index or sources[source] != source:
            raise fields.unsupported(f"kv_source_layers sends layer {index} to {source}, which owns no earlier cache")
    return [None if source == index else source for index, source in enumerate(sources)]


def _last_layers(fields: Fields, kinds: list[str], count: int) -> list[int | None]:
    """Gemma 3n and 4: each of the last `count` layers reads the last owner of its own kind."""
    first = len(kinds) - count
    last = {kind: index for index, kind in enumerate(kinds[:first])}
    missing = next((kind for kind in kinds[first:] if kind not in last), None)
    if missing:
        raise fields.unsupported(f"the last {count} layers share, but no earlier layer of kind {missing} owns a cache")
    return [None] * first + [last[kind] for kind in kinds[first:]]
