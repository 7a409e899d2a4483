"""Cache groups: which layers share a block table, and how pages of different sizes are brought together.

One pool serves every group, block by block. The rules are those of vllm/v1/core/kv_cache_utils.py 0.32.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan.engines.versions import Rules
from kvplan.engines.vllm.blocks import CacheLayer, ceil_div
from kvplan.engines.vllm.pages import Family
from kvplan.errors import InputError
from kvplan.record import record

_FULL = ("full", "latent")
_SLIDING = ("sliding", "sliding_latent")
_PROMOTED: dict[str, Family] = {"sliding": "full", "chunked": "full", "sliding_latent": "latent"}


@record
class LayerGroup:
    """Layers that share a block table. `uniform` groups may mix pages of different sizes."""

    layers: tuple[CacheLayer, ...]
    uniform: bool = False

    @property
    def block(self) -> int:
        return self.layers[0].block

    def page_bytes(self, stage: int) -> int:
        """Bytes that one block of the group occupies on one pipeline stage."""
        return sum(layer.page for layer in self.layers if layer.stage == stage)


def group_layers(
    layers: Sequence[CacheLayer], rules: Rules, *, hybrid_manager: bool, chunked_hybrid_manager: bool
) -> list[LayerGroup]:
    """Group the layers as vLLM does. Raises InputError for pages that can't share a pool."""
    layers = list(layers)
    if not layers:
        return []
    if rules["one_table"]:
        held = tuple(replace(layer, family="full") for layer in layers if layer.family != "state")
        return [LayerGroup(held, uniform=True)] if held else []
    chunked = any(layer.family == "chunked" for layer in layers)
    if not hybrid_manager or (chunked and not chunked_hybrid_manager):
        alike = _promote(layers)
        if alike is None:
            raise InputError(
                "--disable-hybrid-kv-cache-manager: found layers that can't share one block table, expected the hybrid "
                "manager to stay on for this model"
            )
        layers = alike
    if _same_kind(layers):
        return [LayerGroup(tuple(layers))]
    if _same_demand(layers):
        return [LayerGroup(tuple(layers), uniform=True)]
    if rules["packed_groups"] and any(layer.unit.packed for layer in layers):
        return _packed(layers)
    unified = _unify_pages(layers)
    if unified is None:
        promoted = _promote(layers)
        if promoted is None or any(layer.family not in ("full", "latent", "sliding") for layer in layers):
            raise InputError(
                "--kv-cache-dtype: found layers whose pages can't share a pool, expected a dtype that makes them equal"
            )
        return [LayerGroup(tuple(promoted), uniform=True)]
    return _split(unified, rules["group_slack_percent"])


def _mergeable(first: CacheLayer, other: CacheLayer) -> bool:
    """Whether two layers are one kind of layer: the same shape; full layers may remember different windows."""
    if first.family in _FULL and other.family in _FULL:
        same = first.but_window == other.but_window
        return same and (None in (first.window, other.window) or first.window == other.window)
    return first.key == other.key


def _same_kind(layers: Sequence[CacheLayer]) -> bool:
    windows = {layer.window for layer in layers if layer.window is not None}
    return len(windows) <= 1 and all(_mergeable(layers[0], layer) for layer in layers)


def _same_demand(layers: Sequence[CacheLayer]) -> bool:
    """Whether every layer needs the same number of blocks, so that one block table serves them all."""
    first = layers[0]
    if len({layer.block for layer in layers}) > 1 or len({_sharded(layer) for layer in layers}) > 1:
        return False
    match first.family:
        case "full" | "latent":
            return all(layer.family in _FULL for layer in layers)
        case "sliding":
            return all(layer.family in _SLIDING and layer.window == first.window for layer in layers)
        case "state":
            alike = (first.page, first.unit.checkpoint_blocks)
            return all(
                layer.family == "state" and (layer.page, layer.unit.checkpoint_blocks) == alike for layer in layers
            )
        case _:
            return all(layer.family == first.family and layer.window == first.window for layer in layers)


def _sharded(layer: CacheLayer) -> bool:
    """Whether decode context parallelism shards the layer's tokens; states are kept whole."""
    return layer.family != "state"


def _promote(layers: Sequence[CacheLayer]) -> list[CacheLayer] | None:
    """Give windows and chunks full-length blocks beside full layers. None where that doesn't make all layers alike."""
    if _same_kind(layers) or _same_demand(layers):
        return list(layers)
    blocks = {layer.block for layer in layers if layer.family in _FULL}
    promoted = []
    for layer in layers:
        family = _PROMOTED.get(layer.family)
        if family is None or not blocks:
            promoted.append(layer)
            continue
        block = next(iter(blocks)) if len(blocks) == 1 else layer.block
        content = layer.content * block // layer.block
        page = max(layer.page, content) if layer.page > layer.content else content
        promoted.append(replace(layer, family=family, block=block, page=page, content=content))
    return promoted if _same_kind(promoted) or _same_demand(promoted) else None


def _unify_pages(layers: Sequence[CacheLayer]) -> list[CacheLayer] | None:
    """Bring every page to the largest: more tokens a block where it divides, padding elsewhere.

    None where an MLA page neither divides the largest nor may be padded.
    """
    largest = max(layer.page for layer in layers)
    unified = []
    for layer in layers:
        if layer.page == largest:
            unified.append(layer)
        elif layer.family != "state" and largest % layer.page == 0:
            ratio = largest // layer.page
            unified.append(replace(layer, block=layer.block * ratio, page=largest, content=layer.content * ratio))
        elif layer.family == "latent":
            return None
        else:
            unified.append(replace(layer, page=largest))
    return unified


def _buckets(layers: Sequence[CacheLayer]) -> list[list[CacheLayer]]:
    """Layers of one kind together, kinds in order of first appearance."""
    by_key: dict[object, list[CacheLayer]] = {}
    for layer in layers:
        by_key.setdefault(layer.key, []).append(layer)
    merged: list[list[CacheLayer]] = []
    for alike in by_key.values():
        for bucket in merged:
            if _same_kind([*bucket, alike[0]]):
                bucket.extend(alike)
                break
        else:
            merged.append(list(alike))
    return merged


def _split(layers: Sequence[CacheLayer], slack_percent: int) -> list[LayerGroup]:
    """Cut every bucket into groups of one size: the smallest bucket's, or the largest's when it is little more."""
    buckets = _buckets(layers)
    counts = [len(bucket) for bucket in buckets]
    size = max(counts) if max(counts) * 100 < min(counts) * slack_percent else min(counts)
    groups: list[LayerGroup] = []
    for bucket in buckets:
        parts = ceil_div(len(bucket), size)
        groups.extend(LayerGroup(tuple(bucket[part::parts])) for part in range(parts))
    return groups


def _packed(layers: Sequence[CacheLayer]) -> list[LayerGroup]:
    """Pages of different sizes side by side in one block (DeepSeek V4).

    Layers of equal demand make a bucket. A bucket with as many layers of each page size repeats a pattern; the
    patterns are cut so that every group packs about as many repeats. Recurrent states are cut so that a group holds
    no more of them than the block has room for anyway.
    """
    patterns = [_by_page(bucket) for bucket in _demand_buckets(layers)]
    repeats = [max(len(alike) for alike in pattern.values()) for pattern in patterns]
    even = [len({len(alike) for alike in pattern.values()}) == 1 for pattern in patterns]
    mixed = [count for count, same, pattern in zip(repeats, even, patterns, strict=True) if same and len(pattern) > 1]
    target = (
        least_padding([count for count, same in zip(repeats, even, strict=True) if same], max(mixed)) if mixed else 0
    )
    parts = [ceil_div(count, target) if same and target else 1 for count, same in zip(repeats, even, strict=True)]
    states = [_is_state(pattern) for pattern in patterns]
    room = max(
        _widest(pattern, sum(map(len, pattern.values())) if state else cut)
        for pattern, state, cut in zip(patterns, states, parts, strict=True)
    )
    groups: list[LayerGroup] = []
    for pattern, state, cut in zip(patterns, states, parts, strict=True):
        held = [layer for alike in pattern.values() for layer in alike]
        if state:
            cut = max(cut, ceil_div(len(held), max(1, room // held[0].page)))
        if cut == 1:
            groups.append(LayerGroup(tuple(held), uniform=True))
            continue
        rows = list(zip(*pattern.values(), strict=True))
        for part in range(cut):
            chosen = [layer for row in rows[part::cut] for layer in row]
            groups.append(LayerGroup(tuple(chosen), uniform=True))
    return groups


def _demand_buckets(layers: Sequence[CacheLayer]) -> list[list[CacheLayer]]:
    """Layers of equal demand together, in order of first appearance."""
    buckets: list[list[CacheLayer]] = []
    for layer in layers:
        for bucket in buckets:
            if _same_demand([bucket[0], layer]):
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    return buckets


def _is_state(pattern: dict[int, list[CacheLayer]]) -> bool:
    return next(iter(pattern.values()))[0].family == "state"


def _widest(pattern: dict[int, list[CacheLayer]], groups: int) -> int:
    """Bytes of the largest of the `groups` groups that a bucket is cut into."""
    return sum(ceil_div(len(alike), groups) * page for page, alike in pattern.items())


def _by_page(bucket: Sequence[CacheLayer]) -> dict[int, list[CacheLayer]]:
    pages: dict[int, list[CacheLayer]] = {}
    for layer in bucket:
        pages.setdefault(layer.page, []).append(layer)
    return pages


def least_padding(counts: Sequence[int], floor: int) -> int:
    """The chunk of at least `floor` to which `counts` round up with the least padding; the largest where several do."""
    choices = range(max(1, floor), max(counts) + 1)
    if not choices:
        return max(1, floor)
    return min(choices, key=lambda chunk: (sum(-count % chunk for count in counts), -chunk))
