"""Cache dtypes: what one row of K, V, latent or index key costs, in whole bytes.

The formats are data (`formats.yaml`). A row format is a block format, never a fraction of bits in a float: every
function here returns an exact integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, did_you_mean, did_you_mean_name, show
from kvplan.record import record

STATE_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_ALIASES = {"fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16"}


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


@record
class Row:
    """Bytes of one vector: payload bits, a scale of `group_bytes` per `group` values, `vector_bytes` per vector.

    With `block` set the payload is `block_bytes` per `block` values instead (llama.cpp), counted over a whole row.
    """

    bits: int = 0
    group: int = 0
    group_bytes: int = 0
    vector_bytes: int = 0
    block: int = 0
    block_bytes: int = 0

    def size(self, width: int) -> int:
        """Bytes of one vector of `width` values."""
        if self.block:
            return _ceil(width, self.block) * self.block_bytes
        scales = _ceil(width, self.group) * self.group_bytes if self.group else 0
        return _ceil(width * self.bits, 8) + scales + self.vector_bytes

    def heads(self, count: int, width: int) -> int:
        """Bytes of `count` heads of `width` values each; a block format runs over the whole row."""
        return self.size(count * width) if self.block else count * self.size(width)

    def text(self, width: str) -> str:
        """The same as a formula over `width`, for derivations."""
        if self.block:
            return f"{self.block_bytes} B per {self.block} values"
        parts = [f"{self.bits // 8} B" if self.bits % 8 == 0 else f"{self.bits} bits"]
        if self.group:
            parts.append(f"{self.group_bytes} B per {self.group} {width}")
        if self.vector_bytes:
            parts.append(f"{self.vector_bytes} B per token and head")
        return " + ".join(parts)


@record
class SplitRow:
    """Bytes of a latent or compressed record: one row for all of it, or non-rotary and rotary parts of their own."""

    whole: Row | None = None
    nope: Row | None = None
    rope: Row | None = None
    align: int = 1

    def size(self, nope_width: int, rope_width: int) -> int:
        """Bytes of one record of `nope_width` + `rope_width` values."""
        if self.whole is not None:
            raw = self.whole.size(nope_width + rope_width)
        else:
            assert self.nope is not None and self.rope is not None
            raw = self.nope.size(nope_width) + self.rope.size(rope_width)
        return _ceil(raw, self.align) * self.align

    def text(self, nope_width: int, rope_width: int) -> str:
        """The arithmetic of size(), for derivations."""
        if self.whole is not None:
            return f"({nope_width} + {rope_width}) x {self.whole.text('values')}"
        assert self.nope is not None and self.rope is not None
        pad = f", rounded up to {self.align} B" if self.align > 1 else ""
        return f"{nope_width} x {self.nope.text('values')} + {rope_width} x {self.rope.text('values')}{pad}"


@record
class KeyValue:
    """K and V rows of an attention layer; a head's K + V slot is rounded up to `slot_align` bytes."""

    key: Row
    value: Row
    slot_align: int = 1

    def size(self, heads: int, key_width: int, value_width: int) -> int:
        """Bytes of one token's K and V over `heads` KV heads."""
        if self.slot_align == 1:
            return self.key.heads(heads, key_width) + self.value.heads(heads, value_width)
        slot = self.key.size(key_width) + self.value.size(value_width)
        return heads * (_ceil(slot, self.slot_align) * self.slot_align)


@record
class TokenGroups:
    """KIVI: keys grouped along tokens, values along channels, and a 16-bit tail of recent tokens.

    Keys keep `N mod residual` tokens in 16 bits, values `min(N, residual)` (jy-yuan/KIVI models/llama_kivi.py).
    """

    bits: int
    group: int
    group_bytes: int
    residual: int

    def size(self, entries: int, heads: int, key_width: int, value_width: int) -> int:
        """Bytes of K and V of `entries` tokens."""
        key_tail = entries % self.residual
        value_tail: int = least(entries, self.residual)
        grouped = (entries - key_tail) // self.group * (self.group * self.bits // 8 + self.group_bytes)
        value_row = Row(bits=self.bits, group=self.group, group_bytes=self.group_bytes).size(value_width)
        keys = heads * key_width * (grouped + key_tail * 2)
        values = heads * ((entries - value_tail) * value_row + value_tail * value_width * 2)
        return keys + values


def least(value: Any, cap: int) -> Any:
    """`min(value, cap)` for an integer or a numpy array of integers."""
    if isinstance(value, int):
        return value if value < cap else cap
    import numpy

    return numpy.minimum(value, cap)


@record
class Format:
    """One cache dtype and what it makes of each kind of layer (None: that kind stays in 16 bits)."""

    name: str
    what: str
    source: str
    index: str
    attention: KeyValue | None
    latent: SplitRow | None
    indexed_latent: SplitRow | None
    compressed: SplitRow | None
    tokens: TokenGroups | None

    @property
    def is_ggml(self) -> bool:
        return self.attention is not None and self.attention.key.block > 0

    def effective_bits(self, width: int = 128) -> Fraction:
        """Bits per value of K and V at head width `width`, metadata included, residual tokens left out."""
        if self.tokens is not None:
            return self.tokens.bits + Fraction(8 * self.tokens.group_bytes, self.tokens.group)
        if self.attention is not None:
            return Fraction(8 * self.attention.size(1, width, width), 2 * width)
        record = self.latent or self.compressed
        assert record is not None
        return Fraction(8 * record.size(width - width // 8, width // 8), width)


def _row(data: Mapping[str, int]) -> Row:
    return Row(**data)


def _split(data: Mapping[str, Any] | None) -> SplitRow | None:
    if data is None:
        return None
    rows = {part: _row(data[part]) for part in ("whole", "nope", "rope") if part in data}
    return SplitRow(**rows, align=data.get("align", 1))


def _key_value(data: Mapping[str, Any] | None) -> KeyValue | None:
    if data is None:
        return None
    if "key" in data:
        return KeyValue(_row(data["key"]), _row(data["value"]), data.get("slot_align", 1))
    return KeyValue(_row(data), _row(data))


@cache
def _data() -> dict[str, Any]:
    import yaml

    text = (Path(__file__).parent / "formats.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


@cache
def _aliases() -> dict[str, str]:
    names: dict[str, str] = {}
    for name, data in _data()["formats"].items():
        for spelling in (name, *data.get("aliases", ())):
            names[spelling] = name
    return names


def format_names() -> list[str]:
    """The names of every cache dtype, in the order of the data file."""
    return list(_data()["formats"])


@cache
def _build(name: str) -> Format:
    data = _data()["formats"][name]
    groups = data.get("tokens")
    return Format(
        name=name,
        what=data["what"],
        source=data["source"],
        index=data["index"],
        attention=_key_value(data.get("attention")),
        latent=_split(data.get("latent")),
        indexed_latent=_split(data.get("indexed_latent")),
        compressed=_split(data.get("compressed")),
        tokens=TokenGroups(**groups) if groups else None,
    )


def find_format(name: str, field: str = "--kv-cache-dtype") -> Format:
    """Return the cache dtype of that name or alias, case-insensitive. Raises InputError naming `field`.

    Token-grouped dtypes take options: `kivi2:group=64,residual=128`.
    """
    wanted, _, options = name.strip().lower().partition(":")
    canonical = _aliases().get(wanted)
    if canonical is None:
        raise _unknown(name, field, ("auto", *format_names()), _aliases())
    return _with_options(_build(canonical), options, field) if options else _build(canonical)


def _with_options(base: Format, options: str, field: str) -> Format:
    """`base` with another group or residual. A residual holds whole groups (jy-yuan/KIVI models/llama_kivi.py)."""
    if base.tokens is None:
        raise InputError(f"{field}: found options after {base.name}, expected them after kivi2 or kivi4 alone")
    chosen = {"group": base.tokens.group, "residual": base.tokens.residual}
    for option in options.split(","):
        key, _, value = option.partition("=")
        if key not in chosen or not value.isdecimal() or not 1 <= len(value) <= 6 or int(value) < 1:
            hint = did_you_mean(key, chosen) if key not in chosen else ""
            raise InputError(
                f"{field}: found {show(option)} after {base.name}, expected group=N or residual=N with N from 1{hint}"
            )
        chosen[key] = int(value)
    group, residual = chosen["group"], chosen["residual"]
    if residual % group:
        fitting = max(group, residual // group * group)
        raise InputError(
            f"{field}: found residual={residual}, expected a multiple of the group of {group}; nearest: {fitting}"
        )
    if group * base.tokens.bits % 8:
        raise InputError(f"{field}: found group={group}, expected a group that fills whole bytes; nearest: 32")
    groups = replace(base.tokens, group=group, residual=residual)
    return replace(base, name=f"{base.name}:{options}", tokens=groups)


def index_format(name: str, field: str = "--index-dtype") -> tuple[str, Row]:
    """Return the canonical name and the row of an indexer key dtype. Raises InputError naming `field`."""
    wanted = name.strip().lower()
    formats: dict[str, dict[str, Any]] = _data()["index_formats"]
    for canonical, data in formats.items():
        if wanted == canonical or wanted in data.get("aliases", ()):
            return canonical, _row({key: value for key, value in data.items() if key != "aliases"})
    spellings = {alias: key for key, data in formats.items() for alias in (key, *data.get("aliases", ()))}
    raise _unknown(name, field, ("auto", *formats), spellings)


def state_dtype(name: str, field: str = "--state-dtype") -> str:
    """Return the canonical name of a recurrent-state dtype. Raises InputError naming `field`."""
    wanted = name.strip().lower()
    canonical = _STATE_ALIASES.get(wanted, wanted)
    if canonical not in STATE_DTYPE_BYTES:
        spellings = {key: key for key in STATE_DTYPE_BYTES} | _STATE_ALIASES
        raise _unknown(name, field, ("auto", *STATE_DTYPE_BYTES), spellings)
    return canonical


def _unknown(name: str, field: str, expected: tuple[str, ...], spellings: Mapping[str, str]) -> InputError:
    return InputError(
        f"{field}: found {show(name)}, expected one of {', '.join(expected)}{did_you_mean_name(name, spellings)}"
    )
