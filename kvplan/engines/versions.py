"""Engine versions: rules that changed are data with a version range, and this picks the one in force."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, show

Version = tuple[int, ...]

_NUMBERS = re.compile(r"[bv]?([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})")


@cache
def load_rules(name: str) -> dict[str, Any]:
    """The rules of one engine: `<name>.yaml` beside this module, shipped with kvplan."""
    import yaml

    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


def parse_version(text: str, engine: str, example: str) -> Version:
    """`b11549`, `0.5.23` or `v1.2.0rc1` as numbers; what follows the numbers is dropped. Raises InputError."""
    match = _NUMBERS.match(text.strip()) if len(text) <= 60 else None
    if match is None:
        raise InputError(f"--engine: found version {show(text)} of {engine}, expected one such as {example}")
    return tuple(int(part) for part in match.group(1).split("."))


def _before(number: Version, other: Version) -> bool:
    """Whether a version comes before another; numbers left out are zero, so that 0.26 is 0.26.0."""
    return number + (0,) * (len(other) - len(number)) < other


@dataclass(frozen=True)
class Rules:
    """The rules of one engine at one version. `warning` says when the version is beyond those that were studied."""

    version: str
    number: Version
    values: dict[str, Any]
    warning: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


# Answers by engine, version and table: one plan asks for the same rules several times.
_KNOWN: dict[tuple[str, str, int], tuple[Mapping[str, Any], Rules]] = {}
MAX_KNOWN = 1000


def rules_at(engine: str, data: Mapping[str, Any], version: str | None) -> Rules:
    """The values of `data["rules"]` in force at `version` (None: `data["default"]`).

    Each rule is a list of ranges `{from, until, value}`, oldest first: `from` is the first version with the value,
    `until` the first one without it, and one left out is open. A version before `data["oldest"]` or after the default
    is answered as the nearest one studied, with a warning. Raises InputError for text that names no version.
    """
    default, oldest = str(data["default"]), str(data["oldest"])
    text = default if version is None else version.strip()
    number = parse_version(text, engine, default)
    key = (engine, text, id(data))
    if key in _KNOWN and _KNOWN[key][0] is data:
        return _KNOWN[key][1]
    first, last = parse_version(oldest, engine, default), parse_version(default, engine, default)
    warning, used = None, number
    if _before(number, first) or number[: len(last)] > last:
        nearest = oldest if _before(number, first) else default
        warning = f"{engine} {text} is not a version kvplan knows: answered as {nearest}, the nearest known one"
        text, used = nearest, first if _before(number, first) else last
    values = {name: _in_force(ranges, used, engine, default) for name, ranges in data["rules"].items()}
    rules = Rules(text, used, values, warning)
    if len(_KNOWN) < MAX_KNOWN:
        _KNOWN[key] = (data, rules)
    return rules


def _in_force(ranges: Iterable[Mapping[str, Any]], number: Version, engine: str, example: str) -> Any:
    found = None
    for entry in ranges:
        low, high = entry.get("from"), entry.get("until")
        after = low is None or not _before(number, parse_version(str(low), engine, example))
        before = high is None or _before(number, parse_version(str(high), engine, example))
        if after and before:
            found = entry["value"]
    return found
