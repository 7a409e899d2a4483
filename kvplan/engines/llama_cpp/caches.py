"""llama.cpp's caches: which layers each holds, what a cell of a layer costs in K and in V, and the states beside them.

Order and names follow the log: non-SWA, SWA, DeepSeek V4's compressed caches, index keys, then states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.cache.formats import find_format
from kvplan.cache.layout import (
    COMPRESSED,
    COMPRESSOR_STATE,
    INDEX_KEYS,
    INDEX_STATE,
    KV,
    LATENT,
    RECURRENT_STATE,
    WINDOW,
    LayerContext,
    layer_parts,
)
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.engines.base import Pool
from kvplan.engines.llama_cpp.cells import Cells
from kvplan.engines.stored import Stored, stored_layers
from kvplan.errors import InputError, UnsupportedArchitectureError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

NON_SWA, SWA = "non-SWA KV cache", "SWA KV cache"
INDEX = "indexer KV cache"
STATES = "recurrent state"
DRAFT = "draft KV cache"


@dataclass(frozen=True)
class Row:
    """One layer in a cache: bytes of one cell's K and V."""

    index: int
    key: int
    value: int


@dataclass(frozen=True)
class Cache:
    """One cache: `cells` in each of `streams`, `tokens` of them one cell, and its layers' rows.

    `labels` name the two parts: K and V, or R and S of a state. `types` are the cache types the log prints.
    """

    name: str
    cells: int
    streams: int
    rows: tuple[Row, ...]
    tokens: int = 1
    labels: tuple[str, str] = ("K", "V")
    types: tuple[str, str] = ("f16", "f16")

    def bytes(self, index: int | None = None) -> int:
        """Bytes of the whole cache, or of the layer at `index`."""
        rows = self.rows if index is None else [row for row in self.rows if row.index == index]
        return sum(row.key + row.value for row in rows) * self.cells * self.streams

    def pool(self, devices: Sequence[int], places: Sequence[int]) -> Pool:
        """The cache as a pool; layer i lives on `places[i]`, bytes are listed in the order of `devices`."""
        slots = self.cells * self.streams
        keys = sum(row.key for row in self.rows) * slots
        total = self.bytes()
        on = dict.fromkeys(devices, 0)
        for row in self.rows:
            on[places[row.index]] = on.get(places[row.index], 0) + (row.key + row.value) * slots
        return Pool(
            self.name,
            len({row.index for row in self.rows}),
            slots,
            total // slots if slots else 0,
            total,
            self.streams,
            {label: size for label, size in zip(self.labels, (keys, total - keys), strict=True) if label},
            tuple(on[device] for device in devices),
        )


@dataclass(frozen=True)
class CacheTypes:
    """The asked cache types under llama.cpp's names, and how MLA, windows and V are stored at this build."""

    key: str
    value: str
    mla: str
    window_pool: bool
    window_in_f16: bool
    widest_value: bool
    whole_context: bool


def precision_of(key: str, value: str) -> Precision:
    """The formats of two cache types; every state is f32, whatever the cache types say."""
    chosen = resolve_precision(key, "auto", "float32", value_dtype=value, model_dtype="float16")
    return replace(chosen, conv="float32")


def build_caches(
    spec: ModelSpec, types: CacheTypes, cells: Cells, state_copies: int, drafting: bool = False
) -> list[Cache]:
    """Every cache of `spec`. `state_copies` is 1 + the rollback copies of recurrent and compressor states."""
    precision = precision_of(types.key, types.value)
    layers = stored_layers(spec, precision, adapt=_adapt(types))
    _check_rows(layers, types)
    compressed = [item for item in layers if isinstance(item.layer, kinds.CompressedSparse)]
    if compressed:
        # DeepSeek V4 keeps a stream for each slot even when the cache is unified
        cells = replace(cells, streams=cells.slots)
    if types.mla == "latent" and types.key != types.value and (compressed or _latents(layers)):
        raise InputError(
            f"--cache-type-v: found {types.value} beside K in {types.key}, expected {types.key}: "
            "an MLA or DeepSeek V4 cache has one type for both"
        )
    caches = [*_attention(layers, types, cells), *_compressed(compressed, types, cells)]
    caches += _index_keys(layers, types, cells)
    caches += _states(layers, cells, state_copies)
    if drafting:
        first = len(spec.sequence())
        draft = stored_layers(spec, precision, adapt=_adapt(types), drafting=True)
        rows = _rows((item for item in draft if item.index >= first), types, draft)
        caches.append(Cache(DRAFT, cells.per_stream, cells.streams, rows, types=(types.key, types.value)))
    return caches


def _adapt(types: CacheTypes) -> Callable[[kinds.SingleLayer], kinds.SingleLayer]:
    def adapt(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        layer = _unpinned(layer)
        if types.whole_context:
            layer = _windowless(layer)
        if isinstance(layer, kinds.LatentAttention) and types.mla == "expanded":
            return _expanded(layer)
        return layer

    return adapt


def _unpinned(layer: Any) -> Any:
    """Index keys take the K type here, whatever the model's published code caches them in."""
    indexer = getattr(layer, "indexer", None)
    if indexer is None or indexer.key_format is None:
        return layer
    return replace(layer, indexer=replace(indexer, key_format=None))


def _windowless(layer: kinds.SingleLayer) -> kinds.SingleLayer:
    if isinstance(layer, kinds.SlidingWindow | kinds.ChunkedAttention):
        return kinds.FullAttention(layer.query_heads, layer.kv_heads, layer.head_dim, layer.v_head_dim)
    if isinstance(layer, kinds.LatentAttention):
        return replace(layer, window=None)
    return layer


def _expanded(layer: kinds.LatentAttention) -> kinds.FullAttention:
    if layer.nope_head_dim is None or layer.v_head_dim is None:
        raise UnsupportedArchitectureError(
            "nope_head_dim: found an MLA layer without its expanded head widths, expected them for an engine that "
            "stores expanded heads"
        )
    return kinds.FullAttention(
        layer.query_heads,
        layer.query_heads,
        layer.nope_head_dim + layer.rope_dim,
        layer.v_head_dim,
        layer.indexer,
    )


def _latents(layers: Iterable[Stored]) -> bool:
    return any(isinstance(item.layer, kinds.LatentAttention) for item in layers)


def _check_rows(layers: Iterable[Stored], types: CacheTypes) -> None:
    """Block types need head widths that are whole blocks."""
    for flag, name, field in (("k", types.key, "head_dim"), ("v", types.value, "v_head_dim")):
        block = _block(name)
        for item in layers if block > 1 else ():
            width = getattr(item.layer, field, None) or getattr(item.layer, "head_dim", None)
            if item.part(KV) is not None and width is not None and width % block:
                raise InputError(
                    f"--cache-type-{flag}: found {name}, whose blocks of {block} values don't divide a head of "
                    f"{width}, expected f16, bf16 or f32"
                )


def _block(name: str) -> int:
    attention = find_format(name).attention
    return max(1, attention.key.block) if attention is not None else 1


def _window(layer: kinds.SingleLayer) -> int | None:
    return getattr(layer, "chunk", None) or getattr(layer, "window", None)


def _attention(layers: Sequence[Stored], types: CacheTypes, cells: Cells) -> Iterable[Cache]:
    """The caches of K and V and of latents, and V4's raw windows: whole context first, then windows."""
    growing = [item for item in layers if item.part(KV, LATENT, WINDOW) is not None]
    if not growing:
        return
    windowed = [item for item in growing if types.window_pool and _window(item.layer) is not None]
    whole = [item for item in growing if item not in windowed]
    names = (types.key, types.value)
    if not windowed:
        rows = _rows(whole, types, growing)
        yield Cache("KV cache", cells.per_stream, cells.streams, rows, types=names)
        return
    yield Cache(NON_SWA, cells.per_stream, cells.streams, _rows(whole, types, growing), types=names)
    if types.window_in_f16:
        names = ("f16", "f16")
        windowed = _in_types(windowed, types, names)
    widest = max(_window(item.layer) or 0 for item in windowed)
    rows = _rows(windowed, types, growing)
    yield Cache(SWA, cells.window(widest), cells.streams, rows, types=names)


def _in_types(items: Sequence[Stored], types: CacheTypes, names: tuple[str, str]) -> list[Stored]:
    context = LayerContext(precision_of(*names))
    return [replace(item, parts=layer_parts(item.layer, context)) for item in items]


def _rows(items: Iterable[Stored], types: CacheTypes, every: Sequence[Stored]) -> tuple[Row, ...]:
    """One row a layer. With V transposed all layers take the widest V row; MLA's second copy holds the latent alone."""
    widest = max((_value_bytes(item, types) for item in every), default=0) if types.widest_value else 0
    rows = []
    for item in items:
        part = item.part(KV, LATENT, WINDOW)
        assert part is not None
        value = _value_bytes(item, types)
        rows.append(Row(item.index, part.key_bytes, max(value, widest) if value else 0))
    return tuple(rows)


def _value_bytes(item: Stored, types: CacheTypes) -> int:
    part = item.part(KV, LATENT, WINDOW)
    if part is None:
        return 0
    if isinstance(item.layer, kinds.LatentAttention) and types.mla == "double":
        latent = replace(item.layer, rope_dim=0, indexer=None)
        return layer_parts(latent, LayerContext(precision_of(types.value, types.value)))[0].entry_bytes
    return part.entry_bytes - part.key_bytes


def _compressed(layers: Sequence[Stored], types: CacheTypes, cells: Cells) -> Iterable[Cache]:
    """DeepSeek V4's compressed entries by ratio, then its index keys: K only."""
    names = (types.key, types.value)
    for part_name in (COMPRESSED, INDEX_KEYS):
        by_ratio: dict[int, list[Stored]] = {}
        for item in layers:
            part = item.part(part_name)
            if part is not None:
                by_ratio.setdefault(part.stored.ratio, []).append(item)
        for ratio in sorted(by_ratio):
            items = by_ratio[ratio]
            rows = tuple(_single(item, part_name) for item in items)
            title = _dsv4_name(items[0].layer, part_name)
            yield Cache(f"DSV4 {title} KV cache", cells.compressed(ratio), cells.streams, rows, ratio, types=names)


def _dsv4_name(layer: Any, part_name: str) -> str:
    if part_name == INDEX_KEYS:
        return "lightning-indexer"
    return "CSA compressed" if layer.indexer is not None else "HCA compressed"


def _single(item: Stored, part_name: str) -> Row:
    part = item.part(part_name)
    assert part is not None
    return Row(item.index, part.entry_bytes, 0)


def _index_keys(layers: Iterable[Stored], types: CacheTypes, cells: Cells) -> Iterable[Cache]:
    """The index keys of DSA layers: a cache of their own in the K type, as many cells as the main one."""
    owners = [
        item
        for item in layers
        if not isinstance(item.layer, kinds.CompressedSparse) and item.part(INDEX_KEYS) is not None
    ]
    if owners:
        part = owners[0].part(INDEX_KEYS)
        assert part is not None
        ratio = part.stored.ratio
        rows = tuple(_single(item, INDEX_KEYS) for item in owners)
        count = cells.compressed(ratio) if ratio > 1 else cells.per_stream
        yield Cache(INDEX, count, cells.streams, rows, ratio, types=(types.key, types.value))


def _states(layers: Sequence[Stored], cells: Cells, copies: int) -> Iterable[Cache]:
    """Recurrent state, one cell a slot and rollback copy; then DeepSeek V4's compressor states, one line each."""
    recurrent = [item for item in layers if isinstance(item.layer, kinds.RECURRENT)]
    if recurrent:
        rows = tuple(_state_row(item) for item in recurrent)
        yield Cache(STATES, cells.slots * copies, 1, rows, labels=("R", "S"), types=("f32", "f32"))
    for title, wanted, indexed in (
        ("CSA", COMPRESSOR_STATE, True),
        ("HCA", COMPRESSOR_STATE, False),
        ("lightning-indexer", INDEX_STATE, True),
    ):
        rows = tuple(
            Row(item.index, part.entry_bytes, 0)
            for item in layers
            for part in item.parts
            if part.name == wanted and (getattr(item.layer, "indexer", None) is not None) == indexed
        )
        if rows:
            yield Cache(
                f"DSV4 {title} compressor state",
                cells.slots * copies,
                1,
                rows,
                labels=("state", ""),
                types=("f32", "f32"),
            )


def _state_row(item: Stored) -> Row:
    """R holds convolution columns and token shifts, S the recurrent matrix."""
    matrix = sum(part.entry_bytes for part in item.parts if part.name == RECURRENT_STATE)
    return Row(item.index, item.bytes("state") - matrix, matrix)
