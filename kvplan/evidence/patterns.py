"""The line formats of the engines, read from `patterns/*.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

PATTERNS_DIR = Path(__file__).with_name("patterns")


@dataclass(frozen=True)
class LinePattern:
    """One line format of one engine.

    `anchor` is text the line holds; `match` has a group `figure__unit` for each figure. `starts` is the kind of start
    the line tells of, `result` that the engine has sized its pool or given up, `refusal` and `trouble` name what went
    wrong, `flags` that settings stand in the line. `engine` is the one the line is proof of. A size is printed with at
    least `decimals` decimals, or lost its zeros.
    """

    engine: str
    anchor: str
    seen: str
    match: re.Pattern[str] | None = None
    starts: Literal["server", "engine"] | None = None
    result: bool = False
    refusal: str | None = None
    trouble: str | None = None
    flags: bool = False
    decimals: int = 0


@dataclass(frozen=True)
class Catalog:
    """All formats. `anchors` are their keys as bytes, `watched` are the few an engine's running log is searched for."""

    by_anchor: dict[str, tuple[LinePattern, ...]]
    anchors: tuple[bytes, ...]
    watched: dict[str, list[bytes]]
    ranks: dict[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)

    def of_line(self, text: str) -> list[LinePattern]:
        """The formats whose anchor stands in `text`."""
        return [pattern for anchor, patterns in self.by_anchor.items() if anchor in text for pattern in patterns]


@cache
def catalog() -> Catalog:
    """The shipped formats."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    by_anchor: dict[str, tuple[LinePattern, ...]] = {}
    watched: dict[str, list[bytes]] = {}
    ranks: dict[str, tuple[re.Pattern[str], ...]] = {}
    for path in sorted(PATTERNS_DIR.glob("*.yaml")):
        data: dict[str, Any] = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 (a SafeLoader either way)
        watched[data["engine"]] = [anchor.encode() for anchor in data["watch"]]
        ranks[data["engine"]] = tuple(re.compile(text) for text in data["ranks"])
        for entry in data["lines"]:
            pattern = _line(entry, data["engine"], data.get("decimals", 0))
            by_anchor[pattern.anchor] = (*by_anchor.get(pattern.anchor, ()), pattern)
    return Catalog(by_anchor, tuple(anchor.encode() for anchor in by_anchor), watched, ranks)


def _line(entry: dict[str, Any], engine: str, decimals: int) -> LinePattern:
    options = dict(entry)
    options["match"] = re.compile(options["match"]) if "match" in options else None
    options["seen"] = str(options["seen"])
    return LinePattern(**{"engine": engine, "decimals": decimals, **options})
