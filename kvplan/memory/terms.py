"""The terms of a memory budget, and the data they come from (`overheads.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.record import record
from kvplan.units import MIB

OVERHEADS_PATH = Path(__file__).with_name("overheads.yaml")


@record
class Term:
    """One user of the GPU's memory: bytes at the least, as expected and at the most, what for, and the source."""

    name: str
    low: int
    nominal: int
    high: int
    says: str
    source: str


@cache
def overheads() -> dict[str, Any]:
    """The figures of `overheads.yaml`, by engine; the rules of each are release ranges."""
    import yaml

    text = OVERHEADS_PATH.read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


def mib_term(name: str, figure: Mapping[str, Any], says: str, source: str) -> Term:
    """A term from a figure of low, nominal and high MiB."""
    low, nominal, high = (int(figure[key] * MIB) for key in ("low", "nominal", "high"))
    return Term(name, low, nominal, high, says, source)


def exact(name: str, size: int, says: str, source: str) -> Term:
    """A term without a spread."""
    return Term(name, size, size, size, says, source)


def visible_bytes(driver_bytes: int) -> tuple[int, int, int]:
    """What CUDA shows of a device's memory when the driver reports `driver_bytes`: least, expected and most bytes."""
    reserve = overheads()["device"]["cuda_reserve"]
    share = int(driver_bytes * reserve["per_mille"] / 1000)
    low, nominal, high = (driver_bytes - share - reserve["mib"][key] * MIB for key in ("high", "nominal", "low"))
    return low, nominal, high
