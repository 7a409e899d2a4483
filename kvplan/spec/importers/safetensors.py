"""Safetensors headers to exact weight bytes, without reading a weight.

A safetensors file is an 8-byte little-endian length, that many bytes of JSON (tensor name to dtype, shape and byte
range) and the data. The same parser serves local files and byte ranges fetched from a hub: it only asks a
RangeReader for the first 8 bytes and then for the header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import parse_json, read_json_object
from kvplan.spec.importers.tensors import CheckpointTensors, TensorInfo, summarize

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
MAX_INDEX_BYTES = 100_000_000
MAX_RANK = 64
MAX_NAME = 1_024
MAX_FILES = 4_096

RangeReader: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) to the bytes there: fewer than `length` only where the file ends. Raises InputError."""

# Bits a value takes: the `Dtype` list of huggingface/safetensors, safetensors/src/tensor.rs, v0.6.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """One safetensors file: how errors name it, how to read it, and its size in bytes where it is known."""

    name: str
    read: RangeReader
    size: int | None = None


def parse_header(shard: Shard) -> list[TensorInfo]:
    """Read and validate one file's header: two reads, 8 bytes and the header.

    Raises InputError on a length out of bounds, a header that is no JSON object, an unknown dtype, a bad shape, or
    byte ranges that overlap, leave a gap, disagree with shape x itemsize or leave the file.
    """
    prefix = shard.read(0, 8)
    if len(prefix) < 8:
        raise InputError(f"{shard.name}: found {len(prefix)} bytes, expected a safetensors file of at least 8")
    length = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER_BYTES:
        raise InputError(
            f"{shard.name}: found a header length of {length:,} bytes, expected at most {MAX_HEADER_BYTES:,}"
        )
    if shard.size is not None and 8 + length > shard.size:
        raise InputError(
            f"{shard.name}: found a header length of {length:,} bytes in a file of {shard.size:,}, "
            "expected a header that ends inside the file"
        )
    raw = shard.read(8, length)
    if len(raw) < length:
        raise InputError(f"{shard.name}: found {len(raw):,} bytes of header, expected {length:,} (truncated file)")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shard.name}: found a byte at offset {8 + error.start} that is no UTF-8, expected a JSON header"
        ) from None
    header = parse_json(text, f"{shard.name} header")
    if not isinstance(header, dict):
        raise InputError(f"{shard.name}: found {show(header)} as header, expected a JSON object")
    data_bytes = None if shard.size is None else shard.size - 8 - length
    return _tensors(header, data_bytes, shard.name)


def _tensors(header: dict[str, Any], data_bytes: int | None, file: str) -> list[TensorInfo]:
    spans: list[tuple[int, int, TensorInfo]] = []
    for name, entry in header.items():
        if name != "__metadata__":
            spans.append(_tensor(name, entry, file))
    spans.sort(key=lambda span: span[:2])
    end = 0
    for start, stop, tensor in spans:
        if start != end:
            raise InputError(
                f"{file}: tensor {show(tensor.name)}: found data_offsets that start at {start:,}, expected {end:,} "
                "where the tensor before it ends"
            )
        end = stop
    if data_bytes is not None and end != data_bytes:
        what = "truncated file" if end > data_bytes else "bytes no tensor owns"
        raise InputError(f"{file}: found {data_bytes:,} bytes of data, expected {end:,} as its header says ({what})")
    return [tensor for _, _, tensor in spans]


def _tensor(name: str, entry: Any, file: str) -> tuple[int, int, TensorInfo]:
    where = f"{file}: tensor {show(name)}"
    if len(name) > MAX_NAME:
        raise InputError(f"{where}: found a name of {len(name):,} characters, expected at most {MAX_NAME:,}")
    if not isinstance(entry, dict):
        raise InputError(f"{where}: found {show(entry)}, expected an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        hint = did_you_mean(dtype, DTYPE_BITS) if isinstance(dtype, str) and len(dtype) <= 40 else ""
        raise InputError(f"{where}: found dtype {show(dtype)}, expected one of {', '.join(DTYPE_BITS)}{hint}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_size(size) for size in shape):
        raise InputError(f"{where}: found shape {show(shape)}, expected a list of at most {MAX_RANK} whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise InputError(f"{where}: found data_offsets {show(offsets)}, expected two whole numbers [start, end]")
    elements = 1
    for size in shape:
        elements *= size
    nbytes, remainder = divmod(elements * DTYPE_BITS[dtype], 8)
    if elements >= 1 << 63:
        raise InputError(f"{where}: found shape {show(shape)}, expected fewer than 2^63 values")
    start, stop = offsets
    if remainder or stop - start != nbytes:
        raise InputError(
            f"{where}: found data_offsets {show(offsets)}, expected a span of shape x itemsize = "
            f"{nbytes:,}{' and a fraction of a byte' if remainder else ''} bytes"
        )
    return start, stop, TensorInfo(name, dtype, elements, nbytes)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def read_shards(shards: Iterable[Shard], index: Mapping[str, Any] | None = None) -> CheckpointTensors:
    """Sum the headers of all shards of one checkpoint.

    With its `index` (a parsed model.safetensors.index.json) the result warns when tensors are missing or when the
    bytes disagree with the index's `metadata.total_size`. Raises InputError when two shards hold the same tensor.
    """
    tensors: dict[str, TensorInfo] = {}
    files = []
    for shard in shards:
        files.append(shard.name)
        for tensor in parse_header(shard):
            if tensor.name in tensors:
                raise InputError(f"{shard.name}: found tensor {show(tensor.name)} a second time, expected each once")
            tensors[tensor.name] = tensor
    result = summarize(tensors.values(), tuple(files))
    if index is None:
        return result
    warnings = []
    missing = [name for name in _weight_map(index) if name not in tensors]
    if missing:
        warnings.append(
            f"the index names {len(missing):,} tensors that no file holds, the first being {show(missing[0])}"
        )
    total = _total_size(index)
    if total is not None and total != result.total_bytes:
        warnings.append(
            f"the headers hold {result.total_bytes:,} bytes, the index says {total:,} (metadata.total_size); "
            "the headers are used"
        )
    return replace(result, warnings=tuple(warnings), partial=bool(missing))


def shard_names(index: Mapping[str, Any]) -> list[str]:
    """Return the file names an index refers to, sorted. Raises InputError on one that could leave the folder."""
    names = sorted(set(_weight_map(index).values()))
    for name in names:
        path = PurePosixPath(name)
        if (
            path.is_absolute()
            or ".." in path.parts
            or "\\" in name
            or not name.isprintable()
            or path.suffix != ".safetensors"
        ):
            raise InputError(
                f"{INDEX_NAME}: weight_map: found file {show(name)}, expected a .safetensors file of the same folder"
            )
    if len(names) > MAX_FILES:
        raise InputError(f"{INDEX_NAME}: weight_map: found {len(names):,} files, expected at most {MAX_FILES:,}")
    return names


def from_index(index: Mapping[str, Any], warning: str) -> CheckpointTensors:
    """Totals from an index alone, for a checkpoint whose files aren't here: no breakdown by dtype or part.

    Raises InputError when the index states no total_size.
    """
    total = _total_size(index)
    if total is None:
        raise InputError(f"{INDEX_NAME}: metadata.total_size: found nothing, expected the bytes of the weights")
    named = summarize((TensorInfo(name, "", 0, 0) for name in _weight_map(index)), tuple(shard_names(index)))
    return replace(
        named, total_bytes=total, bytes_by_dtype={}, parameters_by_dtype={}, complete=False, warnings=(warning,)
    )


def _weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise InputError(f"{INDEX_NAME}: weight_map: found {show(found)}, expected an object from tensor to file name")
    too_long = next((name for name in found if len(name) > MAX_NAME), None)
    if too_long is not None:
        raise InputError(
            f"{INDEX_NAME}: weight_map: found a tensor name of {len(too_long):,} characters, "
            f"expected at most {MAX_NAME:,}"
        )
    return found


def _total_size(index: Mapping[str, Any]) -> int | None:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if total is None:
        return None
    if not _is_size(total):
        raise InputError(f"{INDEX_NAME}: metadata.total_size: found {show(total)}, expected a whole number of bytes")
    return int(total)


def read_headers(folder: Path) -> CheckpointTensors:
    """Sum the headers of a local folder's checkpoint: the files its index names, else model.safetensors, else all.

    An index without any of its files gives totals only. Raises InputError when the folder holds no safetensors, only
    some of the files its index names, or a broken header.
    """
    index_path = folder / INDEX_NAME
    if index_path.is_file():
        index = read_json_object(index_path, MAX_INDEX_BYTES)
        names = shard_names(index)
        missing = [name for name in names if not (folder / name).is_file()]
        if len(missing) == len(names):
            return from_index(index, f"only the index is in {folder.name}, so weight bytes are its total_size")
        if missing:
            raise InputError(
                f"{folder}: found {len(names) - len(missing)} of the {len(names)} files of {INDEX_NAME}, "
                f"expected all; the first missing is {missing[0]}"
            )
        return read_shards((_local_shard(folder, name) for name in names), index)
    if (folder / SINGLE_NAME).is_file():
        return read_shards([_local_shard(folder, SINGLE_NAME)])
    try:
        names = sorted(path.name for path in folder.glob("*.safetensors") if path.is_file())
    except OSError as error:
        raise InputError(f"{folder}: can't be listed ({error.strerror or error}), expected a folder") from None
    if not names or len(names) > MAX_FILES:
        raise InputError(f"{folder}: found {len(names)} *.safetensors files, expected 1 to {MAX_FILES:,}")
    return read_shards(_local_shard(folder, name) for name in names)


def _local_shard(folder: Path, name: str) -> Shard:
    path = folder / name

    def read(offset: int, length: int) -> bytes:
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                return stream.read(length)
        except OSError as error:
            raise InputError(f"{path}: can't be read ({error.strerror or error}), expected a readable file") from None

    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error}), expected a readable file") from None
    return Shard(str(path), read, size)
