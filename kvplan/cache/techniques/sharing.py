"""Cross-layer sharing: some layers own a cache, others read it (CLA, YOCO, MLKV, Gemma 3n, owner lists).

Stored bytes fall with the owning layers. Reads do not: a sharing layer loads its owner's K and V again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import has_kind, owned_attention, refuse_shared, relayer
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

TECHNIQUE = Technique(
    number=2,
    name="cla",
    title="Cross-layer sharing: CLA, YOCO, MLKV, owner lists",
    term="layers",
    stored="owning layers / layers",
    read="unchanged: a sharing layer loads its owner's K and V again",
    computed="attention unchanged; K and V projections of sharing layers vanish",
    needs_training=True,
    kinds=("full_attention", "sliding_window", "chunked_attention", "latent_attention"),
    untouched="bytes read, recurrent state; sharing weights (Zamba) shares no cache",
    metadata="none",
    quality="trained into the checkpoint; CLA2 with MQA about even in perplexity, larger factors lose",
    kernel="the engine must skip the allocation of sharing layers",
    headline="Hunyuan-Large (64 layers, 80 query and 8 KV heads, CLA2) keeps 5.0 % of its MHA size",
    source="arXiv 2405.12981 (CLA), 2405.05254 (YOCO), 2406.09297 (MLKV), 2411.02265 (Hunyuan-Large)",
    what_if="cla=2",
)

SHAREABLE = (kinds.FullAttention, kinds.SlidingWindow, kinds.ChunkedAttention, kinds.LatentAttention)


def owned_layers(layers: int, factor: int) -> int:
    """How many caches `layers` layers keep when each group of `factor` neighbours shares one: ceil(layers / factor)."""
    return -(-layers // factor)


def with_cla(spec: ModelSpec, factor: int) -> ModelSpec:
    """Each run of `factor` attention layers of one block shares the cache of its first (CLA2: factor 2).

    Windowed and full layers share among themselves only, since their caches differ in length.
    """
    places = _shareable(spec, "cla")
    if not 2 <= factor <= len(places):
        raise InputError(
            f"cla: found {factor}, expected how many of {len(places)} attention layers share one cache; "
            f"nearest: {min(max(factor, 2), len(places))}"
        )
    seen: dict[str, int] = {}
    owners = set()
    for number, name in places:
        if seen.setdefault(name, 0) % factor == 0:
            owners.add(number)
        seen[name] += 1
    return with_owners(spec, owners)


def with_mlkv(spec: ModelSpec, caches: int) -> ModelSpec:
    """`caches` caches for all attention layers, each shared down a column of neighbouring layers."""
    places = _shareable(spec, "mlkv")
    if not 1 <= caches <= len(places):
        raise InputError(
            f"mlkv: found {caches}, expected 1 to {len(places)} caches; nearest: {min(max(caches, 1), len(places))}"
        )
    owners = {places[-(-index * len(places) // caches)][0] for index in range(caches)}
    return with_owners(spec, owners)


def with_owners(spec: ModelSpec, owners: Collection[int]) -> ModelSpec:
    """Only the attention layers numbered in `owners` keep a cache; the others read the nearest earlier owner of their
    block. Raises InputError for a layer without such an owner or a number that is no attention layer.
    """
    places = dict(_shareable(spec, "owners"))
    for number in owners:
        if number not in places:
            close = min(places, key=lambda place: abs(place - number))
            raise InputError(f"owners: found layer {number}, expected numbers of attention layers; nearest: {close}")
    names = spec.sequence()
    blocks: dict[str, kinds.Layer] = {}
    owned: set[str] = set()
    for number, name in places.items():
        if number in owners:
            owned.add(name)
            continue
        if name not in owned:
            raise InputError(
                f"owners: found layer {number} ({name}) without an earlier owner of its kind, expected layer {number} "
                f"in the list too"
            )
        names[number] = f"{name}.shared"
        blocks[names[number]] = _borrower(spec.blocks[name], name)
    return relayer(spec, names, blocks)


def with_yoco(spec: ModelSpec, window: int) -> ModelSpec:
    """YOCO: the first half of the layers keep a window, the second half all read one global cache.

    Stored per token of K and V: n for the one global layer and min(n, window) for each of the first half.
    """
    places = _shareable(spec, "yoco")
    half = len(places) // 2
    if half < 1 or not all(isinstance(spec.blocks[name], kinds.FullAttention) for _, name in places):
        raise InputError("yoco: found layers that are not all full attention, expected a plain decoder of two or more")
    names = spec.sequence()
    first = spec.blocks[places[0][1]]
    assert isinstance(first, kinds.FullAttention)
    blocks: dict[str, kinds.Layer] = {"yoco.local": windowed(first, window), "yoco.global": first}
    blocks["yoco.shared"] = kinds.SharedCache("yoco.global")
    for index, (number, _) in enumerate(places):
        names[number] = "yoco.local" if index < half else "yoco.global" if index == half else "yoco.shared"
    return relayer(spec, names, blocks)


def windowed(layer: kinds.FullAttention, window: int) -> kinds.SlidingWindow:
    """The same heads over the last `window` tokens."""
    return kinds.SlidingWindow(layer.query_heads, layer.kv_heads, layer.head_dim, window, layer.v_head_dim)


def _borrower(block: kinds.Layer, name: str) -> kinds.Layer:
    if not isinstance(block, kinds.Parallel):
        return kinds.SharedCache(name)
    rest = tuple(branch for branch in block.branches if not isinstance(branch, SHAREABLE))
    return replace(block, branches=(kinds.SharedCache(name), *rest))


def _shareable(spec: ModelSpec, field: str) -> list[tuple[int, str]]:
    refuse_shared(spec, field)
    places = [(number, name) for number, name in owned_attention(spec) if has_kind(spec.blocks[name], SHAREABLE)]
    if not places:
        raise InputError(
            f"{field}: found a model without attention layers that could share, expected K and V or latents"
        )
    return places
