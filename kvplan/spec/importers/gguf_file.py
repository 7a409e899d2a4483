"""The header of a GGUF file: metadata and tensor sizes, parsed with bounds, no tensor data read.

Written for files nobody vouches for: the `gguf` package's own reader trusts lengths (an array that claims 2^60
elements keeps it looping), keeps an object per array element and needs the tensor data to be present. Its tables of
tensor types and block sizes are used.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from kvplan.errors import InputError, show
from kvplan.spec.importers.tensors import TensorInfo

MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_STRING = 1 << 24
MAX_NAME = 1_024
MAX_ARRAY = 1 << 22
MAX_KEPT = 1 << 14
MAX_RANK = 4
VERSIONS = (2, 3)

# Value types of the format: ggml-org/ggml docs/gguf.md.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array too long to matter for a layout (a vocabulary), of which only the length is kept."""

    length: int


@dataclass(frozen=True)
class GgufHeader:
    """What one GGUF file says of itself. `data_bytes` is the tensor data it promises, `held_bytes` what is there."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_bytes: int
    held_bytes: int


class _Cursor:
    """Reads forward through a file and knows how much is left, so that no length is believed."""

    def __init__(self, stream: BinaryIO, size: int, name: str) -> None:
        self.stream, self.size, self.name = stream, size, name
        self.at = 0
        self.order = "<"

    @property
    def left(self) -> int:
        return self.size - self.at

    def bad(self, message: str) -> InputError:
        return InputError(f"{self.name}: {message}")

    def take(self, count: int, what: str) -> bytes:
        data = self.stream.read(count) if count <= self.left else b""
        if len(data) < count:
            raise self.bad(
                f"found {self.left:,} bytes left at offset {self.at:,}, expected {count:,} for {what} (truncated file)"
            )
        self.at += count
        return data

    def number(self, code: str, what: str) -> Any:
        fmt = self.order + code
        return struct.unpack(fmt, self.take(struct.calcsize(fmt), what))[0]

    def text(self, limit: int, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        if length > limit:
            raise self.bad(f"found a length of {length:,} bytes for {what}, expected at most {limit:,}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"found {what} that is no UTF-8 before offset {self.at:,}, expected text") from None

    def skip(self, count: int, what: str) -> None:
        if count > self.left:
            self.take(count, what)
        self.stream.seek(count, os.SEEK_CUR)
        self.at += count


def read_header(path: Path) -> GgufHeader:
    """Read one GGUF file's header. Raises InputError on anything but a sound version 2 or 3 header.

    A file that ends before its tensor data (a downloaded header) is accepted and shows in `held_bytes`.
    """
    try:
        with path.open("rb") as stream:
            return _parse(_Cursor(stream, os.fstat(stream.fileno()).st_size, str(path)))
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error}), expected a readable file") from None


def _parse(cursor: _Cursor) -> GgufHeader:
    magic = cursor.take(4, "the magic")
    if magic != b"GGUF":
        raise cursor.bad(f"found {magic!r} at the start, expected the magic b'GGUF'")
    version = cursor.number("I", "the version")
    if version & 0xFFFF == 0:
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS:
        raise cursor.bad(f"found GGUF version {version}, expected {VERSIONS[0]} or {VERSIONS[1]}")
    tensor_count = _count(cursor, "tensors", MAX_TENSORS)
    pair_count = _count(cursor, "metadata pairs", MAX_PAIRS)
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text(MAX_NAME, "a metadata key")
        if not key or key in metadata:
            raise cursor.bad(f"found the metadata key {show(key)} {'twice' if key else ''}, expected unique names")
        metadata[key] = _value(cursor, key)
    spans = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.bad(f"general.alignment: found {show(alignment)}, expected a power of two")
    data_bytes = _check_spans(cursor, spans, alignment)
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(metadata, tuple(tensor for _, tensor in spans), data_bytes, max(0, cursor.size - start))


def _count(cursor: _Cursor, what: str, limit: int) -> int:
    count = cursor.number("Q", f"the number of {what}")
    if count > limit:
        raise cursor.bad(f"found {count:,} {what}, expected at most {limit:,}")
    return int(count)


def _value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.number("I", f"the type of {show(key)}")
    if kind == _STRING:
        return cursor.text(MAX_STRING, f"the value of {show(key)}")
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind], f"the value of {show(key)}")
    if kind == _ARRAY:
        return _array(cursor, key)
    raise cursor.bad(f"{show(key)}: found value type {kind}, expected one from 0 to 12")


def _array(cursor: _Cursor, key: str) -> list[Any] | LongArray:
    kind = cursor.number("I", f"the type of {show(key)}")
    length = cursor.number("Q", f"the length of {show(key)}")
    if length > MAX_ARRAY:
        raise cursor.bad(f"{show(key)}: found an array of {length:,} elements, expected at most {MAX_ARRAY:,}")
    what = f"the values of {show(key)}"
    if kind == _STRING:
        if length <= MAX_KEPT and not key.startswith("tokenizer."):
            return [cursor.text(MAX_STRING, what) for _ in range(length)]
        for _ in range(length):
            cursor.skip(cursor.number("Q", what), what)
        return LongArray(length)
    if kind not in _SCALARS:
        raise cursor.bad(f"{show(key)}: found an array of value type {kind}, expected numbers or strings")
    fmt = f"{cursor.order}{length}{_SCALARS[kind]}"
    if length > MAX_KEPT:
        cursor.skip(struct.calcsize(fmt), what)
        return LongArray(length)
    return list(struct.unpack(fmt, cursor.take(struct.calcsize(fmt), what)))


def _tensor(cursor: _Cursor) -> tuple[int, TensorInfo]:
    """One tensor's offset in the data part and its size, by the block table of the gguf package."""
    name = cursor.text(MAX_NAME, "a tensor name")
    where = f"tensor {show(name)}"
    rank = cursor.number("I", f"the rank of {where}")
    if rank > MAX_RANK:
        raise cursor.bad(f"{where}: found {rank} dimensions, expected at most {MAX_RANK}")
    shape = [cursor.number("Q", f"the shape of {where}") for _ in range(rank)]
    kind = cursor.number("I", f"the type of {where}")
    offset = cursor.number("Q", f"the offset of {where}")
    blocks = _block_sizes()
    if kind not in blocks:
        raise cursor.bad(
            f"{where}: found tensor type {kind}, expected one that the installed gguf package knows "
            f"({', '.join(map(str, sorted(blocks)))})"
        )
    dtype, block, block_bytes = blocks[kind]
    elements = 1
    for size in shape:
        elements *= size
    if elements >= 1 << 62 or (shape and shape[0] % block):
        raise cursor.bad(
            f"{where}: found shape {show(shape)}, expected rows of a multiple of {block} values, "
            "and fewer than 2^62 values in all"
        )
    return offset, TensorInfo(name, dtype, elements, elements // block * block_bytes)


def _check_spans(cursor: _Cursor, spans: list[tuple[int, TensorInfo]], alignment: int) -> int:
    """Refuse tensors that are unaligned, overlap or come twice; return where the last one ends."""
    names: set[str] = set()
    end = 0
    for offset, tensor in sorted(spans, key=lambda span: (span[0], span[1].nbytes)):
        if tensor.name in names:
            raise cursor.bad(f"found tensor {show(tensor.name)} a second time, expected each once")
        names.add(tensor.name)
        if offset % alignment or offset < end:
            raise cursor.bad(
                f"tensor {show(tensor.name)}: found offset {offset:,}, "
                f"expected a multiple of {alignment} from {end:,} on where the tensor before it ends"
            )
        end = offset + tensor.nbytes
    return end


@cache
def _block_sizes() -> dict[int, tuple[str, int, int]]:
    """Tensor type number to (name, values in a block, bytes of a block)."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        raise InputError("a GGUF file needs the gguf package, which isn't here: install kvplan-llm[gguf]") from None
    return {int(kind): (kind.name, block, nbytes) for kind, (block, nbytes) in GGML_QUANT_SIZES.items()}
