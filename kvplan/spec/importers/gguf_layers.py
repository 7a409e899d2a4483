"""From GGUF metadata to one layer object per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from kvplan.spec.importers.gguf_metadata import GgufFamily, Metadata
from kvplan.spec.importers.naming import name_blocks
from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    FullAttention,
    GatedDelta,
    Indexer,
    Kda,
    LatentAttention,
    Layer,
    Lightning,
    Mamba1,
    Mamba2,
    NoCache,
    Parallel,
    Rwkv,
    SharedCache,
    ShortConv,
    SingleLayer,
    SlidingWindow,
)
from kvplan.spec.model import MAX_LAYERS

# The compression ratios llama.cpp builds caches for (src/llama-kv-cache-dsv4.cpp); blocks of the first one overlap.
_V4_OVERLAPPING, _V4_PLAIN = 4, 128


@dataclass(frozen=True)
class Stack:
    """The layers of one file, by block name, with the values filled in that the file doesn't state."""

    blocks: dict[str, Layer]
    layers: list[str]
    drafts: list[str]
    assumptions: tuple[str, ...]


def stack(meta: Metadata, family: GgufFamily) -> Stack:
    """Derive every layer. Raises UnsupportedArchitectureError naming the keys seen where that needs a guess."""
    return _Builder(meta, family).build()


def dense_stack(meta: Metadata) -> Stack:
    """Every layer as full attention, whatever the architecture: what `assume_dense` asks for."""
    builder = _Builder(meta, GgufFamily(names=()))
    blocks: dict[str, Layer] = {}
    names = _place([builder.full(i) for i in range(builder.layers)], blocks)
    return Stack(blocks, names, [], tuple(builder.assumptions))


def _place(layers: Sequence[Layer], blocks: dict[str, Layer]) -> list[str]:
    """Return each layer's block name, adding those that `blocks` lacks."""
    names = {layer: name for name, layer in blocks.items()}
    new = [layer for layer in dict.fromkeys(layers) if layer not in names]
    names |= name_blocks(new, tuple(blocks))
    blocks |= {names[layer]: layer for layer in new}
    return [names[layer] for layer in layers]


class _Builder:
    """The per-layer figures of one file, read once."""

    def __init__(self, meta: Metadata, family: GgufFamily) -> None:
        self.meta, self.family = meta, family
        self.assumptions: list[str] = []
        total = meta.need("block_count", high=MAX_LAYERS)
        self.drafts = meta.whole("nextn_predict_layers", low=0) or 0
        self.layers = total - self.drafts
        if self.layers < 1:
            raise meta.unsupported(f"{self.drafts} draft layers leave none of the {total} of block_count")
        self.heads = meta.per_layer("attention.head_count", self.layers, self.drafts, [0] * total)
        self.kv_heads = meta.per_layer("attention.head_count_kv", self.layers, self.drafts, self.heads)
        self.feed_forward = meta.per_layer("feed_forward_length", self.layers, self.drafts, [0] * total)

    def build(self) -> Stack:
        windowed = self._windowed()
        recurrent = self._recurrent()
        owning = self._owning_layers()
        layers: list[Layer] = []
        for i in range(owning):
            if recurrent[i]:
                layers.append(self._recurrent_layer(i))
            elif windowed[i]:
                layers.append(self._window(i))
            else:
                layers.append(self._attention(i))
        blocks: dict[str, Layer] = {}
        names = _place(layers, blocks)
        names += _place([self._shared(i, windowed, names) for i in range(owning, self.layers)], blocks)
        drafts = _place([self._draft(i) for i in range(self.layers, self.layers + self.drafts)], blocks)
        return Stack(blocks, names, drafts, tuple(self.assumptions))

    def _windowed(self) -> list[bool]:
        meta, family = self.meta, self.family
        window = meta.whole("attention.sliding_window", low=0)
        if window is None:
            window = family.default_window or 0
        if window == 0 or family.compressed:
            return [False] * self.layers
        pattern = meta.get("attention.sliding_window_pattern")
        if isinstance(pattern, list):
            return meta.flags("attention.sliding_window_pattern", self.layers, self.drafts) or []
        period = meta.whole("attention.sliding_window_pattern", high=MAX_LAYERS)
        period = family.period if period is None or family.period is None else period
        if period is None:
            if window >= meta.need("context_length", high=10**12):
                return [False] * self.layers
            raise meta.unsupported(
                "attention.sliding_window is set and nothing says which layers it applies to "
                "(attention.sliding_window_pattern as an array is missing)"
            )
        if period == 0:
            return [True] * self.layers
        full = 0 if family.full_first else period - 1
        return [i % period != full for i in range(self.layers)]

    def _recurrent(self) -> list[bool]:
        family = self.family
        match family.where:
            case None:
                return [False] * self.layers
            case "all" | "beside":
                return [True] * self.layers
            case "no_kv_heads":
                return [self.kv_heads[i] == 0 for i in range(self.layers)]
            case "no_kv_heads_no_ffn":
                return [self.kv_heads[i] == 0 and self.feed_forward[i] == 0 for i in range(self.layers)]
            case "interval":
                listed = self.meta.flags("attention.recurrent_layers", self.layers, self.drafts)
                interval = self.meta.whole("full_attention_interval", high=MAX_LAYERS) or family.interval or 1
                return listed or [(i + 1) % interval != 0 for i in range(self.layers)]
        assert_never(family.where)

    def _owning_layers(self) -> int:
        shared = self.meta.whole("attention.shared_kv_layers", low=0, high=self.layers - 1)
        if shared is None and self.family.kv_layers is not None:
            if self.family.kv_layers > self.layers:
                raise self.meta.unsupported(f"block_count is {self.layers}, expected at least {self.family.kv_layers}")
            self.assumptions.append(
                f"the first {self.family.kv_layers} layers own a cache, as llama.cpp fixes for {self.meta.arch}"
            )
            return self.family.kv_layers
        return self.layers - (shared or 0)

    def _shared(self, i: int, windowed: list[bool], names: list[str]) -> SharedCache:
        owner = next((j for j in range(len(names) - 1, -1, -1) if windowed[j] == windowed[i]), None)
        if owner is None:
            raise self.meta.unsupported(f"layer {i} reuses a cache, but no layer of its kind before it has one")
        return SharedCache(owner=names[owner], owner_layer=owner)

    @cached_property
    def _ratios(self) -> list[int]:
        # the checkpoint's list has one entry more than layers, for its draft layer
        return self.meta.per_layer("attention.compress_ratios", self.layers, self.drafts, spare=1)

    @cached_property
    def _listed_indexers(self) -> list[bool] | None:
        return self.meta.flags("attention.indexer.types", self.layers, self.drafts)

    def head_dims(self, windowed: bool = False) -> tuple[int, int]:
        """Widths of K and V per head; embedding_length / head_count where the file has none and it divides."""
        meta = self.meta
        found = []
        for key in ("attention.key_length", "attention.value_length"):
            width = (meta.whole(f"{key}_swa") if windowed else None) or meta.whole(key)
            if width is None:
                heads = self.heads[0]
                hidden = meta.need("embedding_length")
                if heads == 0 or hidden % heads:
                    raise meta.unsupported(
                        f"{meta.arch}.{key} is missing and embedding_length {hidden} / head_count {heads} "
                        "is no whole number"
                    )
                width = hidden // heads
            found.append(width)
        return found[0], found[1]

    def _heads(self, i: int) -> tuple[int, int]:
        heads, kv_heads = self.heads[i], self.kv_heads[i]
        if heads == 0 or kv_heads == 0 or heads % kv_heads:
            raise self.meta.unsupported(
                f"layer {i} has {heads} query heads and {kv_heads} KV heads, expected a whole number of query heads "
                "for each KV head"
            )
        return heads, kv_heads

    def full(self, i: int, indexer: Indexer | None = None) -> FullAttention:
        heads, kv_heads = self._heads(i)
        key, value = self.head_dims()
        return FullAttention(heads, kv_heads, key, None if value == key else value, indexer)

    def _attention(self, i: int) -> Layer:
        """A layer that is neither windowed nor recurrent."""
        meta = self.meta
        if self.family.compressed:
            return self._compressed(i)
        if self._is_latent():
            return self._latent(i, None, self._indexer(i))
        if meta.has("attention.kv_lora_rank") and i == 0:
            self.assumptions.append(
                "the file has no attention.key_length_mla, so expanded K and V heads are cached instead of the latent"
            )
        if self.kv_heads[i] == 0:
            if self.family.where == "no_kv_heads_no_ffn":
                return NoCache("experts" if meta.whole("expert_count", low=0) else "mlp")
            return NoCache("linear" if self.heads[i] else "removed")
        return self.full(i, self._indexer(i))

    def _window(self, i: int) -> Layer:
        meta = self.meta
        window = meta.whole("attention.sliding_window", low=0) or self.family.default_window or 0
        if self._is_latent():
            return self._latent(i, window, None)
        heads, kv_heads = self._heads(i)
        key, value = self.head_dims(windowed=True)
        kind = ChunkedAttention if self.family.chunked else SlidingWindow
        return kind(heads, kv_heads, key, window, None if value == key else value)

    def _is_latent(self) -> bool:
        return self.meta.has("attention.kv_lora_rank", "attention.key_length_mla")

    def _latent(self, i: int, window: int | None, indexer: Indexer | None) -> LatentAttention:
        meta = self.meta
        suffix = "_swa" if window is not None and meta.has("attention.kv_lora_rank_swa") else ""
        rank = meta.need(f"attention.kv_lora_rank{suffix}")
        width = meta.whole(f"attention.key_length{suffix}")
        rope = meta.need("rope.dimension_count", low=0) if width is None else width - rank
        expanded = meta.need(f"attention.key_length_mla{suffix}")
        if rope < 0 or rope > expanded:
            raise meta.unsupported(
                f"attention.key_length{suffix} {width} and kv_lora_rank{suffix} {rank} leave a rotary key of {rope}, "
                f"expected 0 to {expanded}"
            )
        heads = self.heads[i]
        if heads == 0:
            raise meta.unsupported(f"layer {i} has no query heads")
        return LatentAttention(
            query_heads=heads,
            latent_dim=rank,
            rope_dim=rope,
            nope_head_dim=expanded - rope or None,
            v_head_dim=meta.whole(f"attention.value_length_mla{suffix}"),
            window=window,
            indexer=indexer,
        )

    def _indexer(self, i: int) -> Indexer | None:
        meta, family = self.meta, self.family
        if family.indexer is None or (family.indexer == "listed" and not meta.has("attention.indexer.top_k")):
            return None
        owns = True
        if family.indexer == "after_dense":
            if i < (meta.whole("leading_dense_block_count", low=0) or 0):
                return None
        elif family.indexer != "all":
            if self._listed_indexers is not None:
                owns = self._listed_indexers[i]
            elif family.indexer == "glm" and meta.need("context_length", high=10**12) >= 1 << 20:
                # GLM 5.2 without the key: layers 0 and 1, then the first of each four (src/models/glm-dsa.cpp)
                owns = i < 2 or (i - 2) % 4 == 0
        # the block size of MiniMax M3 counts tokens a selected block holds, so top_k becomes tokens
        block = meta.whole("attention.indexer.block_size") or 1
        return Indexer(
            key_dim=meta.need("attention.indexer.key_length"),
            top_k=meta.need("attention.indexer.top_k") * block,
            heads=meta.need("attention.indexer.head_count"),
            pool=meta.whole("attention.indexer.kpool") or 1,
            owns_keys=owns,
            key_format=family.index_key_format,
        )

    def _compressed(self, i: int) -> CompressedSparse:
        meta = self.meta
        ratio = self._ratios[i]
        if ratio not in (0, _V4_OVERLAPPING, _V4_PLAIN):
            raise meta.unsupported(
                f"attention.compress_ratios has {ratio} at layer {i}, expected 0, {_V4_OVERLAPPING} or {_V4_PLAIN}"
            )
        indexer = None
        if ratio == _V4_OVERLAPPING:
            indexer = Indexer(
                key_dim=meta.need("attention.indexer.key_length"),
                top_k=meta.need("attention.indexer.top_k"),
                heads=meta.need("attention.indexer.head_count"),
            )
        if self.heads[i] == 0:
            raise meta.unsupported(f"layer {i} has no query heads")
        return CompressedSparse(
            query_heads=self.heads[i],
            head_dim=self.head_dims()[0],
            rope_dim=meta.need("rope.dimension_count", low=0),
            window=meta.need("attention.sliding_window"),
            ratio=ratio or None,
            overlap=ratio == _V4_OVERLAPPING,
            indexer=indexer,
        )

    def _draft(self, i: int) -> Layer:
        """A multi-token-prediction layer: plain attention of the model's own width, without an indexer."""
        if self.family.compressed:
            return self._compressed(i)
        return self._latent(i, None, None) if self._is_latent() else self.full(i)

    def _recurrent_layer(self, i: int) -> Layer:
        kind = self.family.recurrent
        if kind is None:
            raise self.meta.unsupported(f"layer {i} is recurrent and its kind is unknown")
        build: dict[str, Callable[[int], SingleLayer]] = {
            "mamba1": self._mamba1,
            "mamba2": self._mamba2,
            "gated_delta": self._gated_delta,
            "kda": lambda i: Kda(self._query_heads(i), self.meta.need("kda.head_dim"), self._conv()),
            "lightning": lambda i: Lightning(self._query_heads(i), self.head_dims()[0]),
            "short_conv": lambda _: ShortConv(self.meta.need("embedding_length"), self.meta.need("shortconv.l_cache")),
            "rwkv": self._rwkv,
        }
        layer = build[kind](i)
        return Parallel((self.full(i), layer)) if self.family.where == "beside" else layer

    def _query_heads(self, i: int) -> int:
        # where an array of head counts marks recurrent layers by 0, the other layers tell the number of heads
        heads = self.heads[i] or max(self.heads)
        if heads == 0:
            raise self.meta.unsupported(f"layer {i} has no heads")
        return heads

    def _conv(self) -> int:
        return self.meta.need("ssm.conv_kernel")

    def _divided(self, key: str, by: str, low: int = 1) -> tuple[int, int]:
        """The value of `by` and the exact quotient of `key` by it."""
        whole, parts = self.meta.need(key), self.meta.need(by, low=low)
        if whole % parts:
            raise self.meta.unsupported(f"{key} {whole} / {by} {parts} is no whole number")
        return parts, whole // parts

    def _mamba1(self, i: int) -> Mamba1:
        del i
        return Mamba1(self.meta.need("ssm.inner_size"), self.meta.need("ssm.state_size"), self._conv())

    def _mamba2(self, i: int) -> Mamba2:
        del i
        heads, head_dim = self._divided("ssm.inner_size", "ssm.time_step_rank")
        return Mamba2(
            heads, head_dim, self.meta.need("ssm.state_size"), self.meta.need("ssm.group_count"), self._conv()
        )

    def _gated_delta(self, i: int) -> GatedDelta:
        del i
        value_heads, value_dim = self._divided("ssm.inner_size", "ssm.time_step_rank")
        return GatedDelta(
            key_heads=self.meta.need("ssm.group_count"),
            key_dim=self.meta.need("ssm.state_size"),
            value_heads=value_heads,
            value_dim=value_dim,
            conv_kernel=self._conv(),
        )

    def _rwkv(self, i: int) -> Rwkv:
        del i
        head_dim, heads = self._divided("embedding_length", "wkv.head_size")
        shift = self.meta.whole("token_shift_count") or 2
        return Rwkv(self.meta.need("embedding_length"), heads, head_dim, shift)
