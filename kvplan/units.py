"""Token counts, byte sizes, times: parsed and printed here and nowhere else.

`k`, `K` and `Ki` are 1,024 tokens (the field's "128K" is 131,072). Byte sizes follow their
spelling: GB is 10^9, GiB is 2^30. A bare number is itself.
"""

from __future__ import annotations

import re

from kvplan.errors import InputError, show

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

MAX_TOKENS = 10**12

_TOKEN_FACTORS = {"": 1, "k": KIB, "ki": KIB, "m": MIB, "mi": MIB}
_BYTE_FACTORS = {"": 1, "b": 1} | {
    prefix.lower() + suffix: size
    for prefix, binary, decimal in (("K", KIB, KB), ("M", MIB, MB), ("G", GIB, GB), ("T", TIB, TB))
    for suffix, size in (("", binary), ("i", binary), ("ib", binary), ("b", decimal))
}
_TIME_FACTORS = {"s": 1.0, "": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"([0-9][0-9_,]*)(?:\.([0-9]+))?([A-Za-z]*)")


def _scaled(text: str, factors: dict[str, int], *, floor: bool) -> int | None:
    """Return `text` as an integer, or None when it is no number or, unless `floor`, no whole number of units."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or len(text) > 40:
        return None
    whole, fraction, suffix = match.group(1), match.group(2) or "", match.group(3).lower()
    if suffix not in factors:
        return None
    digits = whole.replace("_", "").replace(",", "") + fraction
    value, remainder = divmod(int(digits) * factors[suffix], 10 ** len(fraction))
    return value if floor or remainder == 0 else None


def whole(value: object, field: str, low: int, high: int) -> int:
    """`value` as an integer, numpy's among them. Raises InputError for anything else and outside `low` to `high`."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or not low <= number <= high:
        raise InputError(f"{field}: found {show(value)}, expected a whole number from {low:,} to {high:,}")
    return int(number)


def _read(value: object, factors: dict[str, int], *, floor: bool = False) -> int | None:
    """A number, or text with a unit, as an integer; None for anything else."""
    if isinstance(value, str):
        return _scaled(value, factors, floor=floor)
    return int(value.__index__()) if hasattr(value, "__index__") and not isinstance(value, bool) else None


def parse_tokens(text: str | int, field: str = "--ctx", *, low: int = 1) -> int:
    """Parse a token count such as `131072`, `128k`, `128Ki` or `1M` (k = 1,024, M = 1,048,576).

    Raises InputError when it is no whole number from `low` to 10^12.
    """
    value = _read(text, _TOKEN_FACTORS)
    if value is None or not low <= value <= MAX_TOKENS:
        raise InputError(
            f"{field}: found {show(text)}, expected a whole number of tokens from {low} to {MAX_TOKENS:,} "
            "such as 131072, 128k or 1M"
        )
    return value


def parse_bytes(text: str | int, field: str) -> int:
    """Parse a size such as `80GB`, `19.12GiB` or `512M` (a bare letter is binary) into whole bytes, rounded down.

    Raises InputError when it is no positive size.
    """
    value = _read(text, _BYTE_FACTORS, floor=True)
    if value is None or value < 1:
        raise InputError(f"{field}: found {show(text)}, expected a size such as 80GB, 9.5GiB or a number of bytes")
    return value


def parse_seconds(text: str, field: str) -> float:
    """Parse a duration such as `30ms`, `2s` or `1.5min` into seconds.

    Raises InputError when it is no positive duration.
    """
    match = _NUMBER.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= 40 else None
    if match is None or match.group(3).lower() not in _TIME_FACTORS:
        raise InputError(f"{field}: found {show(text)}, expected a duration such as 30ms, 2s or 1.5min")
    return (
        float(f"{match.group(1).replace('_', '').replace(',', '')}.{match.group(2) or 0}")
        * _TIME_FACTORS[match.group(3).lower()]
    )


def tokens(count: int) -> str:
    """Format a token count: `131,072`."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 layer`, `80 layers`, `131,072 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _decimal(value: float) -> str:
    """A size from 1 on, to four significant digits."""
    for places, bound in ((3, 9.9995), (2, 99.995), (1, 999.95)):
        if value < bound:
            return f"{value:.{places}f}"
    return f"{value:,.0f}"


def gib(count: int) -> str:
    """Format bytes in the largest fitting binary unit: `40.00 GiB`, `18.75 MiB`, `584 B`."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= factor:
            return f"{_decimal(count / factor)} {unit}"
    return f"{count} B"


def gb(count: int) -> str:
    """Format bytes in the largest fitting decimal unit: `42.95 GB`."""
    for factor, unit in ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB")):
        if count >= factor:
            return f"{_decimal(count / factor)} {unit}"
    return f"{count} B"


def both(count: int) -> str:
    """Format bytes with both readings, since 40 GiB is 42.9 GB: `40.00 GiB (42.95 GB)`."""
    return gib(count) if count < KIB else f"{gib(count)} ({gb(count)})"


def seconds(duration: float) -> str:
    """Format a duration in the largest fitting unit: `1.20 s`, `12.9 ms`, `350 us`."""
    for factor, unit in ((60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if duration >= factor:
            return f"{duration / factor:.3g} {unit}"
    return f"{duration / 1e-6:.3g} us" if duration else "0 s"


def si(value: float) -> str:
    """Format a count with its decimal prefix and a space before the unit that follows: `1.20 T`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:g} "
