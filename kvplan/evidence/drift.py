"""An earlier plan held against what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, show
from kvplan.evidence.runs import Figure
from kvplan.files import read_json_object
from kvplan.record import record

#: what a plan promises, by the figure that tells what came
_PROMISES = {"tokens": "capacity_tokens", "concurrency": "max_concurrency", "blocks": "num_blocks",
             "available": "available_bytes"}  # fmt: skip


@record
class Drift:
    """One promise of a plan and what came: `error` is (planned - observed) / observed, None for an observed zero."""

    name: str
    planned: float
    observed: float
    error: float | None


def drift(path: Path, figures: Iterable[Figure], settings: Mapping[str, Any]) -> tuple[Drift, ...]:
    """The plan in `path`, the JSON of `kvplan estimate --engine`, against printed figures (of several ranks the least).

    Promises without a figure are left out. Raises InputError when the file is no such document.
    """
    engine = read_json_object(path).get("engine")
    names = (*_PROMISES.values(), "max_model_len")
    if not isinstance(engine, dict) or not any(name in engine for name in names):
        raise InputError(
            f"--plan: found {show(str(path))} without an engine's plan, expected the output of kvplan estimate MODEL "
            "--engine ENGINE --gpu GPU --json"
        )
    seen: dict[str, float] = {}
    for figure in figures:
        name = _PROMISES.get(figure.name)
        if name is not None and not isinstance(figure.value, str):
            seen[name] = min(seen.get(name, float("inf")), float(figure.value))
    length = settings.get("max_model_len")
    if isinstance(length, int):
        seen["max_model_len"] = float(length)
    found = []
    for name in names:
        planned, observed = _number(engine.get(name)), seen.get(name)
        if planned is not None and observed is not None:
            found.append(Drift(name, planned, observed, (planned - observed) / observed if observed else None))
    return tuple(found)


def _number(value: Any) -> float | None:
    """A number, or the least of several: the poorest stage's."""
    if isinstance(value, list):
        numbers = [_number(item) for item in value]
        known = [number for number in numbers if number is not None]
        return min(known) if known and len(known) == len(numbers) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
