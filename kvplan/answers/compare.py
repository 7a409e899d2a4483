"""Models and settings side by side, over several contexts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from kvplan.answers.composed import CacheOptions, ComposedModel
from kvplan.answers.schema import document_schema
from kvplan.errors import InputError, did_you_mean, show
from kvplan.estimator import loaded_model
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel
from kvplan.units import parse_tokens, tokens

MAX_ROWS = 200
MAX_CONTEXTS = 32
CURVE_POINTS = 97

Sort: TypeAlias = Literal["stored", "read", "flops", "model", "given"]
SORTS: tuple[Sort, ...] = get_args(Sort)
_FIELDS = {
    "kv-cache-dtype": "kv_cache_dtype",
    "value-cache-dtype": "value_cache_dtype",
    "index-dtype": "index_dtype",
    "state-dtype": "state_dtype",
    "batch": "batch",
}
_TECHNIQUES = ("evict", "sparse-read", "block-size", "share-prefix", "offload")
VARIABLE = (*_FIELDS, *_TECHNIQUES, "what-if")
# Options whose values hold commas and `key=value` pairs themselves.
_COMPOUND = ("kv-cache-dtype", "evict", "sparse-read", "offload")


@record
class Cell:
    """One model and setting at one context, for the whole batch.

    The ratios are over the first model and setting at the same context. `refused` is the reason where the combination
    has no meaning; the figures are null then.
    """

    context_tokens: int
    beyond_model_limit: bool
    stored_bytes: int | None
    read_bytes_per_step: int | None
    attention_flops_per_step: int | None
    stored_ratio: float | None
    read_ratio: float | None
    refused: str | None


@record
class Row:
    """One model under one setting, a cell for each context."""

    model: str
    setting: str
    cells: tuple[Cell, ...]


@record
class Curve:
    """Stored bytes, and bytes read in one decode step, of one row at each of `contexts`."""

    model: str
    setting: str
    contexts: tuple[int, ...]
    stored_bytes: tuple[int, ...]
    read_bytes_per_step: tuple[int, ...]


@record
class Comparison:
    """Rows in the order of `sort`; `baseline` is the model and setting that ratios are over. Curves only on request."""

    schema_version: int
    command: Literal["compare"]
    contexts: tuple[int, ...]
    baseline: str
    sort: Sort
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Comparison.to_dict` returns."""
    return document_schema(Comparison, "kvplan compare")


def compare(
    models: Sequence[str | ModelSpec | LoadedModel],
    contexts: Sequence[int | str],
    *,
    options: CacheOptions | None = None,
    vary: Iterable[str] = (),
    sort: str = "stored",
    curves: bool = False,
    model_dir: Path | None = None,
) -> Comparison:
    """Each of `models` under each combination of the settings in `vary`, at each of `contexts`.

    `vary` holds options with their values, `kv-cache-dtype=bf16,fp8`; `none` leaves an option out. Rows are sorted by
    the bytes or FLOPs at the longest context, largest first, by model, or as given. Raises InputError for a value that
    is wrong, and where the first model refuses the first setting.
    """
    if sort not in SORTS:
        raise InputError(f"--sort: found {show(sort)}, expected one of {', '.join(SORTS)}{did_you_mean(sort, SORTS)}")
    lengths = _contexts(contexts)
    settings = _settings(options or CacheOptions(), [_varied(text) for text in vary])
    if len(models) * len(settings) > MAX_ROWS:
        raise InputError(
            f"--vary: found {len(settings)} settings of {len(models)} models, expected at most {MAX_ROWS} rows"
        )
    specs = [loaded_model(model, model_dir).spec for model in models]
    entries = [_Entry(spec, label, setting) for spec in specs for label, setting in settings]
    base = entries[0]
    if base.refused is not None:
        raise InputError(base.refused)
    first = [_figures(base, n) for n in lengths]
    refusal = next((figures for figures in first if isinstance(figures, str)), None)
    if refusal is not None:
        raise InputError(refusal)
    rows = [_row(entry, lengths, first) for entry in entries]
    order = _order(rows, lengths.index(max(lengths)), sort)
    return Comparison(
        schema_version=1,
        command="compare",
        contexts=lengths,
        baseline=f"{base.spec.id} {base.label}",
        sort=next(known for known in SORTS if known == sort),
        rows=tuple(rows[place] for place in order),
        curves=tuple(_curve(entries[place], lengths) for place in order if rows[place].cells) if curves else (),
        warnings=_warnings(entries, rows),
    )


class _Entry:
    """One model under one setting, or why the model can't take it."""

    def __init__(self, spec: ModelSpec, label: str, options: CacheOptions) -> None:
        self.spec, self.label = spec, label
        self.refused: str | None = None
        self.under: ComposedModel | None = None
        try:
            self.under = options.on(spec)
        except InputError as error:
            self.refused = str(error)
        if not label:
            self.label = self.under.precision.name if self.under else options.kv_cache_dtype


_Figures: TypeAlias = "tuple[int, int, int] | str"


def _figures(entry: _Entry, n: int) -> _Figures:
    if entry.under is None:
        return entry.refused or ""
    try:
        found = entry.under.at(n)
    except InputError as error:
        return str(error)
    return found.stored_bytes, found.read_bytes, found.attention_flops


def _row(entry: _Entry, lengths: tuple[int, ...], first: Sequence[_Figures]) -> Row:
    cells = []
    for n, base in zip(lengths, first, strict=True):
        figures = _figures(entry, n)
        beyond = entry.spec.max_context is not None and n > entry.spec.max_context
        if isinstance(figures, str):
            cells.append(Cell(n, beyond, None, None, None, None, None, figures))
        else:
            ratios = [_ratio(figures[part], base[part]) for part in (0, 1) if not isinstance(base, str)]
            cells.append(Cell(n, beyond, *figures, ratios[0], ratios[1], None))
    return Row(entry.spec.id, entry.label, tuple(cells))


def _ratio(count: int, base: int) -> float | None:
    return count / base if base else None


def _order(rows: list[Row], longest: int, sort: str) -> list[int]:
    places = range(len(rows))
    if sort == "given":
        return list(places)
    if sort == "model":
        return sorted(places, key=lambda place: rows[place].model)

    def size(place: int) -> int:
        cell = rows[place].cells[longest]
        figure = {
            "stored": cell.stored_bytes, "read": cell.read_bytes_per_step, "flops": cell.attention_flops_per_step,
        }[sort]  # fmt: skip
        return -1 if figure is None else figure

    return sorted(places, key=size, reverse=True)


def _curve(entry: _Entry, lengths: tuple[int, ...]) -> Curve:
    """From the shortest context, or a 256th of the longest where that is shorter, to the longest."""
    high = max(lengths)
    low = max(1, min(min(lengths), high // 256))
    steps = CURVE_POINTS - 1
    grid = {round(low * (high / low) ** (step / steps)) for step in range(CURVE_POINTS)}
    points = [(n, _figures(entry, n)) for n in sorted(grid | set(lengths))]
    good = [(n, figures) for n, figures in points if not isinstance(figures, str)]
    return Curve(
        entry.spec.id, entry.label, tuple(n for n, _ in good),
        tuple(figures[0] for _, figures in good), tuple(figures[1] for _, figures in good),
    )  # fmt: skip


def _warnings(entries: list[_Entry], rows: list[Row]) -> tuple[str, ...]:
    found: list[str] = []
    for entry, row in zip(entries, rows, strict=True):
        if any(cell.beyond_model_limit for cell in row.cells):
            limit = tokens(entry.spec.max_context or 0)
            found.append(f"{row.model} declares {limit} tokens: longer contexts are arithmetic only")
        cell = next((cell for cell in row.cells if cell.refused is None), None)
        if entry.under is not None and cell is not None:
            composition = entry.under.at(cell.context_tokens)
            found += [f"{row.model}: {reason}" for reason in composition.plan.kept_reasons()]
            found += composition.warnings
        found += [f"{row.model} {row.setting}: {cell.refused}" for cell in row.cells if cell.refused]
    return tuple(dict.fromkeys(found))


def _contexts(values: Sequence[int | str]) -> tuple[int, ...]:
    if not 1 <= len(values) <= MAX_CONTEXTS:
        raise InputError(f"--ctx: found {len(values)} contexts, expected 1 to {MAX_CONTEXTS} such as 8k,32k,128k")
    return tuple(dict.fromkeys(parse_tokens(value) for value in values))


def _varied(text: str) -> tuple[str, tuple[str, ...]]:
    """`kv-cache-dtype=bf16,fp8` as a name and values; those with commas of their own stay whole, or `;` splits them."""
    name, equals, rest = text.partition("=")
    name = name.strip().lstrip("-").lower().replace("_", "-")
    if name not in VARIABLE:
        raise InputError(
            f"--vary: found {show(text)}, expected one of {', '.join(VARIABLE)} with values"
            f"{did_you_mean(name, VARIABLE)}"
        )
    if not equals or not rest.strip():
        raise InputError(f"--vary: found {show(text)}, expected values such as kv-cache-dtype=bf16,fp8")
    values: list[str] = []
    for piece in rest.split(";" if ";" in rest else ","):
        part = piece.strip()
        if name in _COMPOUND and values and "=" in part and ":" not in part and ":" in values[-1]:
            values[-1] += f",{part}"
        elif part:
            values.append(part)
    return name, tuple(dict.fromkeys(values))


def _settings(options: CacheOptions, varied: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, CacheOptions]]:
    """Each combination with its label. What can be checked without a model is."""
    names = [name for name, _ in varied]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--vary: found {name} twice, expected each option once, with all its values")
        if name in _TECHNIQUES and any(name in item for item in options.techniques):
            raise InputError(f"--vary: found {name}, which is fixed by its own option too, expected one of them")
    found = []
    for values in product(*(values for _, values in varied)):
        setting = options
        for name, value in zip(names, values, strict=True):
            setting = _with(setting, name, value)
        words = [(name, value) for name, value in zip(names, values, strict=True) if value.lower() != "none"]
        label = ", ".join(value if name in _FIELDS and name != "batch" else f"{name} {value}" for name, value in words)
        _check(setting)
        found.append((label, setting))
    return found


def _with(options: CacheOptions, name: str, value: str) -> CacheOptions:
    off = value.lower() == "none"
    if name == "batch":
        if not value.isdecimal() or len(value) > 9:
            raise InputError(f"--vary batch: found {show(value)}, expected a whole number")
        return replace(options, batch=int(value))
    if name in _FIELDS:
        changes: dict[str, Any] = {_FIELDS[name]: getattr(CacheOptions(), _FIELDS[name]) if off else value}
        return replace(options, **changes)
    if off:
        return options
    if name == "what-if":
        return replace(options, what_ifs=(*options.what_ifs, value))
    return replace(options, techniques=(*options.techniques, {name: value}))


def _check(options: CacheOptions) -> None:
    """Raises InputError for a value that no model takes."""
    from kvplan.answers.composed import settle
    from kvplan.cache.precision import resolve_precision

    asked = settle(options.techniques, options.kv_cache_dtype, options.skip_layers, options.batch)
    resolve_precision(
        asked.kv_cache_dtype, options.index_dtype, options.state_dtype, value_dtype=options.value_cache_dtype
    )
