"""Any part of a JSON answer as blocks: scalars as a table, lists of objects as tables, the rest as sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.report.document.blocks import Block, Heading, Items, pairs, table
from kvplan.report.document.words import is_number, is_scalar, title, value

MOST_COLUMNS = 14
MOST_ROWS = 400
DEEPEST = 6


def blocks(name: str, found: Any, level: int = 2) -> list[Block]:
    """`found` under the heading `name`; nothing for an empty value."""
    if found is None or found in ([], {}, ""):
        return []
    if is_scalar(found):
        return [pairs(title(name), [(title(name), value(name, found))])]
    if level > DEEPEST:
        return [Heading(title(name), 3), Items((str(found)[:2000],))]
    body = _mapping(name, found, level) if isinstance(found, Mapping) else _sequence(name, found, level)
    return [Heading(title(name), min(level, 3)), *body] if body else []


def _mapping(name: str, found: Mapping[str, Any], level: int) -> list[Block]:
    flat = {key: item for key, item in found.items() if _is_cell(item)}
    made: list[Block] = []
    if flat:
        rows = [(title(key), _cell(key, item)) for key, item in flat.items()]
        made.append(pairs(title(name), rows))
    for key, item in found.items():
        if key not in flat:
            made += blocks(key, item, level + 1)
    return made


def _is_cell(found: Any) -> bool:
    return is_scalar(found) or _is_short(found)


def _is_short(found: Any) -> bool:
    return isinstance(found, Sequence) and len(found) <= 8 and all(is_number(item) for item in found)


def _cell(key: str, found: Any) -> str:
    if _is_short(found) and not isinstance(found, str):
        return ", ".join(value(key, item) for item in found)
    return value(key, found)


def _sequence(name: str, found: Sequence[Any], level: int) -> list[Block]:
    if all(isinstance(item, Mapping) for item in found):
        return _rows(name, found, level)
    if all(is_scalar(item) for item in found):
        return [Items(tuple(value(name, item) for item in found[:MOST_ROWS]))]
    return [
        block for place, item in enumerate(found[:MOST_ROWS], 1) for block in blocks(f"{name} {place}", item, level + 1)
    ]


def _rows(name: str, found: Sequence[Mapping[str, Any]], level: int) -> list[Block]:
    """A table of the scalars that differ; what is nested follows row by row where there is little of it."""
    keys = list(dict.fromkeys(key for row in found for key, item in row.items() if _is_cell(item)))
    shown = [key for key in keys if any(row.get(key) not in (None, "") for row in found)][:MOST_COLUMNS]
    cells = [[_cell(key, row.get(key)) for key in shown] for row in found[:MOST_ROWS]]
    numbers = [
        place
        for place, key in enumerate(shown)
        if all(is_number(row.get(key)) or row.get(key) is None for row in found)
    ]
    made: list[Block] = [table(title(name), [title(key) for key in shown], cells, numbers)] if shown else []
    if len(found) > MOST_ROWS:
        made.append(Items((f"{len(found) - MOST_ROWS:,} more rows are in the JSON answer",)))
    more = [key for key in keys if key not in shown and any(row.get(key) not in (None, "") for row in found)]
    nested = [key for row in found for key, item in row.items() if not _is_cell(item) and item]
    if (more or nested) and len(found) <= 12:
        for place, row in enumerate(found, 1):
            rest = {key: item for key, item in row.items() if key in more or not _is_cell(item)}
            label = next((str(row[key]) for key in ("name", "rule", "title", "id") if row.get(key)), str(place))
            made += blocks(label, rest, max(3, level + 1))
    return made
