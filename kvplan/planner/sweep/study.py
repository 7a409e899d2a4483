"""The study file: a command, what all cells have in common, and the axes of the grid."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import read_yaml
from kvplan.planner.documents import read_document
from kvplan.record import record
from kvplan.simulator.scenario import Part
from kvplan.units import parse_tokens

MOST_CELLS = 100_000_000
MOST_VALUES = 10_000_000
#: Options of `kvplan estimate` that a cell may set.
ESTIMATE = ("model", "ctx", "batch", "kv_cache_dtype", "index_dtype", "state_dtype", "gpu", "num_gpus")
TOKENS = ("ctx", "batch")
#: The longest context of a vectorised grid: beyond it a sum of bytes might pass 64 bits.
LONGEST = 1 << 32

Command = Literal["estimate", "plan", "simulate"]
Value = str | int | float | bool | None


class Range(Part):
    """`count` values from `from` to `to`, both included, evenly spaced or (`log`) by equal factors; whole numbers."""

    start: str | int = Field(alias="from")
    to: str | int
    count: Annotated[int, Field(ge=2, le=MOST_VALUES)]
    scale: Literal["linear", "log"] = "linear"

    def values(self, axis: str) -> tuple[int, ...]:
        """The values, rising, each once. Raises InputError for ends that aren't whole numbers in order."""
        low, high = parse_tokens(self.start, f"grid.{axis}.from"), parse_tokens(self.to, f"grid.{axis}.to")
        if low >= high:
            raise InputError(f"grid.{axis}: found from {low:,} to {high:,}, expected a range that rises")
        steps = self.count - 1
        if self.scale == "linear":
            found = (low + (high - low) * step // steps for step in range(self.count))
        else:
            ratio = math.log(high / low)
            found = (round(low * math.exp(ratio * step / steps)) for step in range(self.count))
        return tuple(dict.fromkeys(found))


class StudyFile(Part):
    """A study. `base` holds what all cells share: options of estimate, a scenario, or a plan; `base_file` reads it from
    a file beside the study. `grid` maps settings to lists of values or ranges; the last axis varies fastest."""

    command: Command
    base: dict[str, Any] = Field(default_factory=dict)
    base_file: str | None = None
    grid: dict[str, list[Value] | Range]

    @model_validator(mode="after")
    def _complete(self) -> StudyFile:
        if not self.grid:
            raise ValueError("a study needs a grid with one axis at least")
        if self.base and self.base_file is not None:
            raise ValueError("a study takes base or base_file, not both")
        return self


@record
class Study:
    """A study ready to run: `axes` are (setting, values), `cells` their product; `folder` is where its files lie."""

    command: Command
    base: dict[str, Any]
    axes: tuple[tuple[str, tuple[Value, ...]], ...]
    folder: str

    @property
    def cells(self) -> int:
        return math.prod(len(values) for _, values in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names of the axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def chunk(self) -> int:
        """Cells of one part: many where a cell is arithmetic, one where it is a search or a simulation."""
        return 50_000 if self.command == "estimate" else 1

    @property
    def parts(self) -> int:
        return -(-self.cells // self.chunk)

    def span(self, part: int) -> range:
        """The cells of one part."""
        return range(part * self.chunk, min(self.cells, (part + 1) * self.chunk))

    def values(self, cell: int) -> dict[str, Value]:
        """The settings of one cell."""
        found: dict[str, Value] = {}
        for name, values in reversed(self.axes):
            cell, place = divmod(cell, len(values))
            found[name] = values[place]
        return dict(reversed(found.items()))

    def digest(self, kind: str) -> str:
        """What identifies the study and the kind of its results, so that no other continues it."""
        document = json.dumps([self.command, self.base, self.axes, kind], sort_keys=True, default=str)
        return hashlib.sha256(document.encode()).hexdigest()


def load_study(path: Path) -> Study:
    """Read and check a study. Raises InputError with line and column, or naming the axis."""
    read = read_document(path, StudyFile)
    base = dict(read.base)
    if read.base_file is not None:
        document = read_yaml(path.parent / read.base_file)
        if not isinstance(document, dict):
            raise InputError(f"{path}: base_file: found {show(document)}, expected a mapping in {read.base_file}")
        base = document
    axes = tuple((_setting(read.command, name), _values(name, values)) for name, values in read.grid.items())
    if len({name for name, _ in axes}) != len(axes):
        raise InputError(f"{path}: grid: found one setting under two names, expected each axis once")
    if read.command == "estimate":
        base = {_setting("estimate", str(name)): value for name, value in base.items()}
        if "model" not in base and "model" not in dict(axes):
            raise InputError(f"{path}: base: found no model, expected one there or in the grid")
    study = Study(read.command, base, axes, str(path.parent.resolve()))
    if study.cells > MOST_CELLS:
        raise InputError(f"{path}: grid: found {study.cells:,} cells, expected at most {MOST_CELLS:,}")
    return study


def _setting(command: Command, name: str) -> str:
    if command != "estimate":
        return name
    found = name.lstrip("-").replace("-", "_")
    if found not in ESTIMATE:
        hint = did_you_mean(found, ESTIMATE)
        raise InputError(f"grid: found the setting {show(name)}, expected one of {', '.join(ESTIMATE)}{hint}")
    return found


def _values(name: str, values: list[Value] | Range) -> tuple[Value, ...]:
    if isinstance(values, Range):
        return values.values(name)
    if not values or len(values) > MOST_VALUES:
        raise InputError(f"grid.{name}: found {len(values)} values, expected one at least")
    if name.lstrip("-") in TOKENS:
        return tuple(parse_tokens(value, f"grid.{name}") for value in values if isinstance(value, (str, int)))
    if len(set(map(str, values))) != len(values):
        raise InputError(f"grid.{name}: found a value twice, expected each once")
    return tuple(values)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a study file."""
    schema = StudyFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kvplan sweep study"}
