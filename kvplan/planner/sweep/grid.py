"""A part of an estimate grid, vectorised: all contexts and batches of one model and setting at once."""

from __future__ import annotations

from typing import Any

import numpy

from kvplan.answers.fit import MAX_BATCH, USABLE_SHARE_PERCENT, weights_of
from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.errors import InputError, KvplanError
from kvplan.hardware.accelerators import find
from kvplan.planner.sweep.study import ESTIMATE, LONGEST, Study
from kvplan.spec.resolve import LoadedModel, resolve_model
from kvplan.units import MAX_TOKENS, parse_tokens

NUMBERS = (
    "needed_bytes_per_sequence", "needed_bytes", "read_bytes_per_step", "weights_bytes",
    "kv_bytes_per_sequence_per_gpu", "left_bytes_per_gpu", "max_full_length_sequences",
    "longest_context_tokens", "fits",
)  # fmt: skip
COLUMNS = ("cell", *ESTIMATE, *NUMBERS, "error")

#: A column is a list of the part's length, or an (array, table) pair whose array indexes the table.
Columns = dict[str, list[Any]]


class Setting:
    """One model under one setting, ready for any context and batch. Raises InputError for what can't be."""

    def __init__(self, options: dict[str, Any], loaded: LoadedModel) -> None:
        spec = loaded.spec
        precision = resolve_precision(
            options["kv_cache_dtype"], options["index_dtype"], options["state_dtype"], model_dtype=spec.dtype
        )
        self.limit = spec.max_context
        self.plan: CachePlan = plan_cache(spec, precision)
        weights, _ = weights_of(loaded)
        self.weights = None if weights is None else weights.bytes
        self.left: int | None = None
        self.longest = 0
        if options["gpu"] is not None:
            device, count = find(str(options["gpu"])), _whole(options["num_gpus"], "num_gpus")
            if self.weights is None:
                raise InputError(f"gpu: found {options['gpu']}, but the weights of {spec.id} are unknown")
            self.left = device.memory_bytes * USABLE_SHARE_PERCENT // 100 - -(-self.weights // count)
            self.rank = plan_cache(spec, precision, ranks=count)
            self.longest = self.rank.longest_context(self.left, self.limit or MAX_TOKENS) if self.left > 0 else 0

    def figures(self, lengths: Any, batches: Any) -> dict[str, Any]:
        """Each number as an array; the same figures as `kvplan estimate` gives one by one."""
        own = _array(self.plan.needed_bytes(lengths), lengths)
        read = _array(self.plan.read_bytes(lengths), lengths)
        found: dict[str, Any] = {
            "needed_bytes_per_sequence": own,
            "needed_bytes": _times(own, batches),
            "read_bytes_per_step": _times(read, batches),
            "weights_bytes": self.weights,
        }
        if self.left is not None:
            rank = _array(self.rank.needed_bytes(lengths), lengths)
            total = _times(rank, batches)
            found["kv_bytes_per_sequence_per_gpu"] = rank
            found["left_bytes_per_gpu"] = self.left
            most = numpy.where(rank > 0, max(0, self.left) // numpy.maximum(rank, 1), MAX_BATCH)
            found["max_full_length_sequences"] = most
            found["longest_context_tokens"] = self.longest
            found["fits"] = total <= self.left
        return found


def _array(values: Any, like: Any) -> Any:
    return numpy.broadcast_to(numpy.asarray(values, numpy.int64), like.shape)


def _times(values: Any, batches: Any) -> Any:
    """values x batches, in Python's integers where 64 bits might not hold them."""
    if values.size and float(values.max()) * float(batches.max()) > 2.0**62:
        return values.astype(object) * batches.astype(object)
    return values * batches


def _whole(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise InputError(f"{field}: found {value!r:.40}, expected a whole number from 1")
    return value


class Grid:
    """The parts of an estimate study; settings are resolved once each."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.defaults: dict[str, Any] = {
            "model": None, "ctx": None, "batch": 1, "kv_cache_dtype": "auto", "index_dtype": "auto",
            "state_dtype": "auto", "gpu": None, "num_gpus": 1, **study.base,
        }  # fmt: skip
        self._settings: dict[tuple[Any, ...], Setting | str] = {}
        self._models: dict[str, LoadedModel] = {}

    def part(self, number: int) -> Columns:
        """The columns of one part."""
        span = self.study.span(number)
        cells = numpy.arange(span.start, span.stop)
        places = dict(
            zip(self.study.names, numpy.unravel_index(cells, [len(v) for _, v in self.study.axes]), strict=True)
        )
        axes = dict(self.study.axes)
        columns: Columns = {"cell": cells.tolist()}
        kinds = [name for name in self.study.names if name not in ("ctx", "batch")]
        for name in ESTIMATE:
            default = self.defaults[name]
            if name in axes:
                table = axes[name]
                columns[name] = [table[place] for place in places[name].tolist()]
            else:
                columns[name] = [default] * len(cells)
        lengths = self._numbers("ctx", places, axes, len(cells))
        batches = self._numbers("batch", places, axes, len(cells))
        key = numpy.zeros(len(cells), numpy.int64)
        for name in kinds:
            key = key * len(axes[name]) + places[name]
        self._fill(columns, key, lengths, batches)
        return columns

    def _numbers(self, name: str, places: dict[str, Any], axes: dict[str, Any], count: int) -> Any:
        if name in axes:
            values = axes[name]
            limit = LONGEST if name == "ctx" else MAX_BATCH
            if max(values) > limit:
                raise InputError(f"grid.{name}: found {max(values):,}, expected at most {limit:,}")
            return numpy.array(values, numpy.int64)[places[name]]
        value = self.defaults[name]
        return numpy.full(count, 0 if value is None else parse_tokens(value, name), numpy.int64)

    def _fill(self, columns: Columns, key: Any, lengths: Any, batches: Any) -> None:
        count = len(key)
        for name in (*NUMBERS, "error"):
            columns[name] = [None] * count
        for group in numpy.unique(key).tolist():
            rows = numpy.nonzero(key == group)[0]
            first = int(rows[0])
            setting = self._setting({name: columns[name][first] for name in ESTIMATE})
            own = lengths[rows]
            if not isinstance(setting, str) and not own.all():
                if setting.limit is None:
                    setting = "ctx: found nothing and the model declares no limit, expected a context"
                else:
                    own = numpy.where(own == 0, setting.limit, own)
            if isinstance(setting, str):
                _put(columns["error"], rows, setting)
                continue
            _put(columns["ctx"], rows, own)
            for name, values in setting.figures(own, batches[rows]).items():
                _put(columns[name], rows, values)

    def _setting(self, options: dict[str, Any]) -> Setting | str:
        key = tuple(options[name] for name in ESTIMATE if name not in ("ctx", "batch"))
        if key not in self._settings:
            name = str(options["model"])
            try:
                if name not in self._models:
                    self._models[name] = resolve_model(name)
                self._settings[key] = Setting(options, self._models[name])
            except KvplanError as error:
                self._settings[key] = str(error)
        return self._settings[key]


def _put(column: list[Any], rows: Any, values: Any) -> None:
    """Set a column's rows, which mostly are one stretch of it."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    whole = last - first == len(rows)
    given = values.tolist() if isinstance(values, numpy.ndarray) else [values] * len(rows)
    if whole:
        column[first:last] = given
        return
    for row, value in zip(rows.tolist(), given, strict=True):
        column[row] = value
