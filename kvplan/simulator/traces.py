"""Request traces read row by row: Mooncake and Qwen JSON lines, Azure and plain CSV, plain or gzip.

The time unit and the block size belong to the format or are given by the user; neither is guessed from the figures.
Every row is checked, so a trace larger than memory fails at the row that is wrong and not before.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, cast

from kvplan.errors import InputError, did_you_mean, show

MAX_LINE_BYTES = 8 << 20
MAX_LENGTH = 10**9
MAX_SECONDS = 1e10  # three centuries
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

TraceFormat: TypeAlias = Literal["mooncake", "qwen", "azure", "csv"]


@dataclass(frozen=True)
class TraceLayout:
    """How one format names its fields. `time_unit` and `block_size` None must be given by the user."""

    time_unit: str | None
    block_size: int | None
    columns: tuple[tuple[str, str, str], ...] = ()


LAYOUTS: dict[str, TraceLayout] = {
    # kvcache-ai/Mooncake FAST25-release/traces: milliseconds, one id per 512 prompt tokens
    "mooncake": TraceLayout("ms", 512),
    # alibaba-edu/qwen-bailian-usagetraces-anon: seconds, one id per 16 prompt tokens
    "qwen": TraceLayout("s", 16),
    # Azure/AzurePublicDataset AzureLLMInferenceTrace: the original columns, or the same rewritten to milliseconds
    "azure": TraceLayout(
        "ms",
        None,
        (("timestamp_ms", "input_length", "output_length"), ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    ),
    "csv": TraceLayout(
        None,
        None,
        (("arrival_s", "input_tokens", "output_tokens"), ("arrival", "input_tokens", "output_tokens"),
         ("timestamp", "input_length", "output_length"), ("timestamp_ms", "input_length", "output_length")),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. `arrival` in seconds from the trace's own zero; `keys` are chained prompt block ids, or None."""

    arrival: float
    prompt: int
    output: int
    keys: tuple[int, ...] | None


@dataclass(frozen=True)
class Trace:
    """A trace file with everything that says how to read it."""

    path: Path
    format: str
    time_unit: str
    block_size: int | None
    limit: int | None = None

    def rows(self) -> Iterator[TraceRow]:
        """Each row in file order. Raises InputError naming the line that is wrong."""
        lines = _lines(self.path)
        read = _json_rows if self.format in ("mooncake", "qwen") else _csv_rows
        last = -math.inf
        for count, (number, row) in enumerate(read(self, lines)):
            if self.limit is not None and count >= self.limit:
                return
            if row.arrival < last:
                raise InputError(
                    f"{self.path}: line {number}: found the time {row.arrival:g} s after {last:g} s, expected rows "
                    "sorted by time"
                )
            last = row.arrival
            yield row

    def count(self) -> int:
        """How many rows the file has, at most `limit`; lines are counted, not parsed."""
        found = sum(1 for _ in _lines(self.path))
        if self.format in ("azure", "csv"):
            found = max(0, found - 1)
        return found if self.limit is None else min(found, self.limit)


def open_trace(
    path: Path,
    format_name: str | None = None,
    time_unit: str | None = None,
    block_size: int | None = None,
    limit: int | None = None,
) -> Trace:
    """Settle how `path` is read. The suffix alone chooses between mooncake (.jsonl) and csv; the rest is stated.

    Raises InputError for an unknown format or suffix and for a time unit or block size that nobody stated.
    """
    name = format_name
    if name is None:
        suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
        name = {".jsonl": "mooncake", ".json": "mooncake", ".csv": "csv"}.get(suffixes[-1] if suffixes else "")
        if name is None:
            raise InputError(f"{path}: found no known suffix, expected a format: one of {', '.join(LAYOUTS)}")
    if name not in LAYOUTS:
        hint = did_you_mean(name, LAYOUTS)
        raise InputError(f"format: found {show(name)}, expected one of {', '.join(LAYOUTS)}{hint}")
    layout = LAYOUTS[name]
    unit = time_unit or layout.time_unit or _unit_in_header(path)
    if unit is None:
        raise InputError(f"{path}: found no time unit for a {name} trace, expected --time-unit s, ms or us")
    if unit not in TIME_UNITS:
        raise InputError(f"time unit: found {show(unit)}, expected one of {', '.join(TIME_UNITS)}")
    if limit is not None and limit < 1:
        raise InputError(f"limit: found {show(limit)}, expected a whole number of rows from 1")
    size = block_size if block_size is not None else layout.block_size
    if size is not None and not 1 <= size <= 1 << 20:
        raise InputError(f"block size: found {show(size)}, expected 1 to 1,048,576 tokens")
    return Trace(path, name, unit, size, limit)


def _unit_in_header(path: Path) -> str | None:
    """The unit that a column's name states: `arrival_s` or `timestamp_ms`."""
    for _, line in _lines(path):
        fields = [field.strip() for field in line.decode("utf-8-sig", "replace").split(",")]
        return "s" if "arrival_s" in fields else "ms" if "timestamp_ms" in fields else None
    return None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines without blank ones, each of bounded length. Raises InputError for broken files."""
    try:
        with _open(path) as stream:
            number = 0
            while True:
                line = stream.readline(MAX_LINE_BYTES + 1)
                if not line:
                    return
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}: line {number}: found more than {MAX_LINE_BYTES:,} bytes, expected a shorter line"
                    )
                if not line.isspace():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: found a broken or truncated gzip file ({error}), expected a whole one") from None
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error}), expected a readable trace") from None


def _open(path: Path) -> IO[bytes]:
    raw = path.open("rb")
    magic = raw.peek(2)[:2] if hasattr(raw, "peek") else b""
    if magic == b"\x1f\x8b":
        raw.close()
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return raw


def _json_rows(trace: Trace, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, TraceRow]]:
    factor, loads = TIME_UNITS[trace.time_unit], json.loads
    for number, line in lines:
        try:
            entry = loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{trace.path}: line {number}: found no JSON, expected one object a line") from None
        if not isinstance(entry, dict):
            raise InputError(f"{trace.path}: line {number}: found {show(entry)}, expected a JSON object")
        arrival = _time(trace, number, entry.get("timestamp"), factor)
        prompt = _length(trace, number, "input_length", entry.get("input_length"), 1)
        output = _length(trace, number, "output_length", entry.get("output_length"), 0)
        keys = entry.get("hash_ids")
        if keys is not None:
            keys = _keys(trace, number, keys, prompt, entry.get("block_size", trace.block_size))
        yield number, TraceRow(arrival, prompt, output, keys)


def _keys(trace: Trace, number: int, keys: Any, prompt: int, block: Any) -> tuple[int, ...]:
    if not isinstance(keys, list) or not all(type(key) is int for key in keys):
        raise InputError(f"{trace.path}: line {number}: hash_ids: found {show(keys)}, expected a list of whole numbers")
    if type(block) is not int or block < 1 or (trace.block_size is not None and block != trace.block_size):
        raise InputError(
            f"{trace.path}: line {number}: block_size: found {show(block)}, expected {trace.block_size or 'a number'}"
        )
    expected = -(-prompt // block)
    if len(keys) != expected:
        raise InputError(
            f"{trace.path}: line {number}: hash_ids: found {len(keys)} ids for {prompt} tokens, expected {expected} of "
            f"{block} tokens each"
        )
    if len(set(keys)) != len(keys):
        raise InputError(f"{trace.path}: line {number}: hash_ids: found an id twice, expected each id once")
    return tuple(keys)


def _time(trace: Trace, number: int, value: Any, factor: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS / factor:
        most = f"{MAX_SECONDS / factor:g} {trace.time_unit}"
        raise InputError(f"{trace.path}: line {number}: time: found {show(value)}, expected a number from 0 to {most}")
    return float(value) * factor


def _length(trace: Trace, number: int, field: str, value: Any, low: int) -> int:
    if type(value) is not int or not low <= value <= MAX_LENGTH:
        raise InputError(
            f"{trace.path}: line {number}: {field}: found {show(value)}, expected a whole number from {low}"
        )
    return value


def _csv_rows(trace: Trace, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, TraceRow]]:
    factor = TIME_UNITS[trace.time_unit]
    first = next(lines, None)
    if first is None:
        raise InputError(f"{trace.path}: found an empty file, expected a header and rows")
    header = [name.strip() for name in _fields(trace, *first)]
    choices = LAYOUTS[trace.format].columns
    columns = next((names for names in choices if all(name in header for name in names)), None)
    if columns is None:
        expected = " or ".join(",".join(names) for names in choices)
        raise InputError(f"{trace.path}: line 1: found the columns {show(','.join(header))}, expected {expected}")
    places = [header.index(name) for name in columns]
    zero: datetime | None = None
    for number, line in lines:
        fields = _fields(trace, number, line)
        if len(fields) != len(header):
            raise InputError(
                f"{trace.path}: line {number}: found {len(fields)} fields, expected {len(header)} as the header has"
            )
        when, prompt, output = (fields[place].strip() for place in places)
        if columns[0] == "TIMESTAMP":
            moment = _moment(trace, number, when)
            zero = zero or moment
            arrival = (moment - zero).total_seconds()
            if arrival < 0:
                raise InputError(f"{trace.path}: line {number}: found {show(when)}, expected rows sorted by time")
        else:
            arrival = _time(trace, number, _number(when), factor)
        yield (
            number,
            TraceRow(
                arrival,
                _length(trace, number, columns[1], _number(prompt), 1),
                _length(trace, number, columns[2], _number(output), 0),
                None,
            ),
        )


def _fields(trace: Trace, number: int, line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8-sig")], strict=True))
    except (UnicodeDecodeError, csv.Error, StopIteration):
        raise InputError(f"{trace.path}: line {number}: found no CSV text, expected UTF-8 fields") from None


def _number(text: str) -> Any:
    if len(text) <= 30:
        try:
            return int(text) if text.lstrip("+-").isdecimal() else float(text)
        except ValueError:
            pass
    return text


def _moment(trace: Trace, number: int, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text[:26])
    except ValueError:
        raise InputError(
            f"{trace.path}: line {number}: TIMESTAMP: found {show(text)}, expected a date and time"
        ) from None
