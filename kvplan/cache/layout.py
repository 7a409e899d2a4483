"""From a layer to its cache: which parts it stores, how many entries each holds and what one entry costs.

This is the one place where geometry becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from kvplan.cache.entries import EntryLaw
from kvplan.cache.formats import STATE_DTYPE_BYTES, KeyValue, SplitRow, TokenGroups, find_format
from kvplan.cache.precision import MODEL_DTYPE_BYTES, Precision
from kvplan.cache.state import FP32_BYTES, StatePart, compressor_state, recurrent_state
from kvplan.record import record
from kvplan.spec import layers as kinds

Role: TypeAlias = Literal["growing", "state", "cross"]
ENTRY_ONCE = EntryLaw(constant=1, grows=False)
#: the names of parts that grow, for those who ask for one by name
KV, LATENT, INDEX_KEYS, WINDOW, COMPRESSED = "K+V", "latent", "index keys", "window", "compressed"
#: the names of state parts that engines tell apart
RECURRENT_STATE, COMPRESSOR_STATE, INDEX_STATE = "recurrent state", "compressor state", "index compressor state"


@record
class Part:
    """One part of one layer's cache: K and V, a latent, index keys, compressed entries or a state tensor.

    `entry_bytes` is what one entry costs; under a token-grouped dtype (`grouped`) the cost depends on how many there
    are. `stored` counts the entries held, `read` those that one decode step loads. `key_bytes` are those of
    `entry_bytes` that K takes: all of them where K and V are one vector, 0 where the format stores K and V in one
    slot. `kept` says why the part did not take the asked dtype, where it didn't; `dtype_source` tells who decides what
    the dtype costs.
    """

    name: str
    role: Role
    dtype: str
    stored: EntryLaw
    read: EntryLaw
    entry_bytes: int
    entry_formula: str
    grouped: TokenGroups | None = None
    heads: int = 0
    key_width: int = 0
    value_width: int = 0
    kept: str | None = None
    dtype_source: str = ""
    key_bytes: int = 0

    def bytes(self, entries: Any) -> Any:
        """Bytes of `entries` entries of one layer; an integer or a numpy array of integers."""
        if self.grouped is None:
            return entries * self.entry_bytes
        return self.grouped.size(entries, self.heads, self.key_width, self.value_width)

    def stored_bytes(self, n: Any) -> Any:
        """Bytes one layer holds for one sequence of `n` tokens."""
        return self.bytes(self.stored.count(n))

    def read_bytes(self, n: Any) -> Any:
        """Bytes one layer loads in one decode step of a sequence of `n` tokens."""
        return self.bytes(self.read.count(n))

    def slope(self, n: int) -> Fraction:
        """Bytes that one more token adds to one layer at `n` tokens, averaged over compression ratio and groups."""
        rate = self.stored.slope(n)
        if self.grouped is None or rate == 0:
            return rate * self.entry_bytes
        period = self.grouped.residual
        return Fraction(self.stored_bytes(n + period) - self.stored_bytes(n), period)


@record
class LayerContext:
    """What besides its geometry decides a layer's parts."""

    precision: Precision
    meta_tokens: int = 0
    encoder_tokens: int | None = None
    skipped: bool = False


def layer_parts(layer: kinds.SingleLayer, context: LayerContext) -> tuple[Part, ...]:
    """The parts one layer stores. A layer that shares another's cache or has none stores nothing."""
    match layer:
        case kinds.FullAttention():
            law = EntryLaw(constant=context.meta_tokens)
            read = _selected(law, layer.indexer)
            return (_attention(layer, law, read, context), *_index_keys(layer.indexer, 1, context))
        case kinds.SlidingWindow():
            law = EntryLaw(window=layer.window, constant=context.meta_tokens)
            return (_attention(layer, law, law, context),)
        case kinds.ChunkedAttention():
            law = EntryLaw(window=layer.chunk, constant=context.meta_tokens)
            return (_attention(layer, law, law, context),)
        case kinds.LatentAttention():
            law = EntryLaw(window=layer.window, constant=context.meta_tokens)
            read = _selected(law, layer.indexer)
            return (_latent(layer, law, read, context), *_index_keys(layer.indexer, 1, context))
        case kinds.CompressedSparse():
            return tuple(_compressed(layer, context))
        case kinds.CrossAttention():
            law = EntryLaw(constant=layer.encoder_tokens or context.encoder_tokens or 0, grows=False)
            return (replace(_attention(layer, law, law, context), name="cross K+V", role="cross"),)
        case kinds.SharedCache() | kinds.NoCache():
            return ()
        case _:
            return tuple(
                _state(part, layer.state_dtype if hasattr(layer, "state_dtype") else None, context)
                for part in recurrent_state(layer)
            )


def _selected(law: EntryLaw, indexer: kinds.Indexer | None) -> EntryLaw:
    return law if indexer is None or indexer.top_k is None else replace(law, limit=indexer.top_k)


def _refused(kind: str, context: LayerContext) -> str:
    return f"{context.precision.name} has no layout for {kind}: it stays in 16 bits"


def _attention(
    layer: kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention | kinds.CrossAttention,
    stored: EntryLaw,
    read: EntryLaw,
    context: LayerContext,
) -> Part:
    key_width, heads = layer.head_dim, layer.kv_heads
    value_width = getattr(layer, "v_head_dim", None) or key_width
    precision, name, kept = context.precision, context.precision.name, None
    rows = precision.attention
    if context.skipped:
        rows, name, kept = _sixteen_bit(), "bf16", "skipped by request: it stays in 16 bits"
    elif precision.key.tokens is not None:
        return Part(
            KV, "growing", name, stored, read,
            entry_bytes=heads * -(-int((key_width + value_width) * precision.key.effective_bits(key_width)) // 8),
            entry_formula=f"{heads} KV heads x ({key_width} + {value_width}) values, grouped along tokens",
            grouped=precision.key.tokens, heads=heads, key_width=key_width, value_width=value_width,
            dtype_source=precision.key.source,
        )  # fmt: skip
    elif rows is None:
        rows, name, kept = _sixteen_bit(), "bf16", _refused("K and V heads", context)
    key_text, value_text = rows.key.text("values"), rows.value.text("values")
    if key_text == value_text and key_width == value_width:
        formula = f"2 x {heads} KV heads x {key_width} x {key_text}"
    else:
        formula = f"{heads} KV heads x (K {key_width} x {key_text}; V {value_width} x {value_text})"
    size, source = rows.size(heads, key_width, value_width), precision.source
    keys = rows.key.heads(heads, key_width) if rows.slot_align == 1 else 0
    return Part(KV, "growing", name, stored, read, size, formula, kept=kept, dtype_source=source, key_bytes=keys)


def _sixteen_bit() -> KeyValue:
    rows = find_format("bf16").attention
    assert rows is not None
    return rows


def _record(
    widths: tuple[int, int], record: SplitRow | None, kind: str, context: LayerContext
) -> tuple[int, str, str, str | None]:
    """Bytes, formula, dtype name and refusal of one latent or compressed record."""
    precision = context.precision
    name, kept = precision.key.name, None
    if context.skipped:
        record, kept = None, "skipped by request: it stays in 16 bits"
    elif record is None:
        kept = _refused(kind, context)
    elif precision.value != precision.key:
        kept = f"{kind} holds K and V in one vector: the value dtype {precision.value.name} has no effect"
    if record is None:
        record, name = find_format("bf16").latent, "bf16"
        assert record is not None
    return record.size(*widths), record.text(*widths), name, kept


def _latent(layer: kinds.LatentAttention, stored: EntryLaw, read: EntryLaw, context: LayerContext) -> Part:
    key = context.precision.key
    record = key.indexed_latent if layer.indexer is not None else key.latent
    kind = "an MLA latent beside an indexer" if layer.indexer is not None else "an MLA latent"
    size, formula, name, kept = _record((layer.latent_dim, layer.rope_dim), record, kind, context)
    return Part(
        LATENT, "growing", name, stored, read, size, formula, kept=kept, dtype_source=key.source, key_bytes=size
    )


def _index_keys(indexer: kinds.Indexer | None, ratio: int, context: LayerContext) -> tuple[Part, ...]:
    """The keys a layer stores for its indexer, or only reads when they belong to an earlier layer."""
    if indexer is None or not (indexer.owns_keys or indexer.scans_keys):
        return ()
    asked = context.precision.index
    name, row = context.precision.index_row(indexer)
    law = EntryLaw(ratio=ratio * indexer.pool)
    stored = law if indexer.owns_keys else EntryLaw(grows=False)
    size, formula = row.size(indexer.key_dim), f"{indexer.key_dim} x {row.text('values')}"
    kept, source = (
        None,
        "--index-dtype" if asked != "auto" else f"--index-dtype auto beside {context.precision.name} KV",
    )
    if indexer.key_format is not None:
        source = "the model's published code"
        kept = None if asked in ("auto", name) else f"index keys stay in {name}: the model's published code fixes them"
    return (
        Part(INDEX_KEYS, "growing", name, stored, law, size, formula, kept=kept, dtype_source=source, key_bytes=size),
    )


def _compressed(layer: kinds.CompressedSparse, context: LayerContext) -> Iterator[Part]:
    widths = (layer.head_dim - layer.rope_dim, layer.rope_dim)
    size, formula, name, kept = _record(widths, context.precision.key.compressed, "DeepSeek V4 records", context)
    window = EntryLaw(window=layer.window)
    source = context.precision.key.source
    record = Part(
        WINDOW, "growing", name, window, window, size, formula, kept=kept, dtype_source=source, key_bytes=size
    )
    yield record
    if layer.ratio is None:
        return
    law = EntryLaw(ratio=layer.ratio)
    stored = law if layer.owns_compressed else EntryLaw(grows=False)
    read = _selected(law, layer.indexer)
    yield replace(record, name=COMPRESSED, stored=stored, read=read)
    yield from _index_keys(layer.indexer, layer.ratio, context)
    for part in compressor_state(layer):
        yield _state(part, None, context)


def _state(part: StatePart, checkpoint_dtype: str | None, context: LayerContext) -> Part:
    asked = context.precision.state
    if part.precision == "conv" and context.precision.conv != "auto":
        dtype, width, source = context.precision.conv, STATE_DTYPE_BYTES[context.precision.conv], "the engine"
    elif part.precision == "conv":
        dtype, width, source = "model dtype", MODEL_DTYPE_BYTES, "convolution columns and shifts keep the model's dtype"
    elif part.precision == "fixed":
        dtype, width, source = "float32", FP32_BYTES, "vLLM 0.33 models/deepseek_v4/compressor.py"
    elif asked != "auto":
        dtype, width, source = asked, STATE_DTYPE_BYTES[asked], "--state-dtype"
    elif checkpoint_dtype is not None:
        dtype, width, source = checkpoint_dtype, STATE_DTYPE_BYTES[checkpoint_dtype], "the checkpoint's config"
    else:
        dtype, width, source = "float32", FP32_BYTES, "recurrent matrices are fp32 unless the config names a dtype"
    formula = f"{part.formula} x {width} B"
    once = ENTRY_ONCE
    return Part(f"{part.name} state", "state", dtype, once, once, part.values * width, formula, dtype_source=source)
