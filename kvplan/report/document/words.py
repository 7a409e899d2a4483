"""Any value of a JSON answer in words, by the unit that its key names."""

from __future__ import annotations

from typing import Any

from kvplan.units import both, seconds, si, tokens


def title(key: str) -> str:
    """`needed_bytes_per_sequence` as `needed bytes per sequence`."""
    return key.replace("_", " ")


def value(key: str, found: Any) -> str:
    """A scalar in words: sizes with both readings, counts with separators, durations in their unit."""
    if found is None:
        return "-"
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, str):
        return found
    words = key.split("_")
    if isinstance(found, int):
        if "flops" in words:
            return f"{si(found)}FLOP"
        return both(found) if "bytes" in words and found >= 0 else tokens(found)
    if isinstance(found, float):
        if words[-1] in ("s", "seconds") and "per" not in words and found >= 0:
            return seconds(found)
        return f"{found:,.4g}" if abs(found) < 10_000 else f"{found:,.0f}"
    return str(found)


def is_scalar(found: Any) -> bool:
    """Whether a value fits in one cell."""
    return found is None or isinstance(found, (str, int, float, bool))


def is_number(found: Any) -> bool:
    """Whether a value is set to the right."""
    return isinstance(found, (int, float)) and not isinstance(found, bool)
