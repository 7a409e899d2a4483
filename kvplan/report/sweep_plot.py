"""Heat maps of a sweep's results."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, did_you_mean, show
from kvplan.planner.sweep.cells import columns_of
from kvplan.planner.sweep.study import Study
from kvplan.report.plotting import new_figure, save

VALUES = {"estimate": "needed_bytes", "simulate": "ttft_p99_s", "plan": "plan_cost_per_hour"}
MOST_SIDE, MOST_PANELS = 200, 6


def plot_sweep(results: Path, study: Study, path: Path, x: str | None, y: str | None, value: str | None) -> None:
    """One heat map for each value of a third axis; further axes stay at their first value.

    Raises InputError for axes and columns that the study hasn't, and for a grid with fewer than two axes.
    """
    names = [name for name, values in study.axes if len(values) > 1]
    column = value or VALUES[study.command]
    columns = columns_of(study)
    if column not in columns:
        raise InputError(f"--value: found {show(column)}, expected a column{did_you_mean(column, columns)}")
    across, up = _axes(names, x, y)
    axes = dict(study.axes)
    for name in (across, up):
        if len(axes[name]) > MOST_SIDE:
            raise InputError(
                f"--plot: found {len(axes[name]):,} values of {name}, expected at most {MOST_SIDE} to draw"
            )
    third = next((name for name in names if name not in (across, up)), None)
    panels = axes[third][:MOST_PANELS] if third else (None,)
    fixed = {name: axes[name][0] for name in names if name not in (across, up, third)}
    rows = [row for row in _rows(results) if all(str(row[name]) == str(at) for name, at in fixed.items())]
    figure = new_figure(path, 1.5 + 5.0 * len(panels), 4.8)
    boards = figure.subplots(1, len(panels), squeeze=False)[0]
    tables = [_table(rows, axes, across, up, column, third, panel) for panel in panels]
    numbers = [number for table in tables for line in table for number in line if number == number]
    if not numbers:
        raise InputError(f"--value: found no number in {column}, expected a column with figures")
    image = None
    for board, table, panel in zip(boards, tables, panels, strict=True):
        image = board.imshow(
            table, origin="lower", aspect="auto", cmap="viridis", norm=_norm(numbers), interpolation="nearest"
        )
        board.set_xlabel(across)
        _ticks(board.xaxis, axes[across])
        _ticks(board.yaxis, axes[up])
        if third:
            board.set_title(f"{third} = {panel}", fontsize=11, loc="left")
    boards[0].set_ylabel(up)
    note = ", ".join(f"{name} = {at}" for name, at in fixed.items())
    figure.colorbar(image, ax=list(boards), label=column + (f" ({note})" if note else ""))
    save(figure, path)


def _axes(names: list[str], x: str | None, y: str | None) -> tuple[str, str]:
    for field, name in (("--x", x), ("--y", y)):
        if name is not None and name not in names:
            raise InputError(f"{field}: found {show(name)}, expected an axis with several values: {', '.join(names)}")
    left = [name for name in names if name not in (x, y)]
    across = x or (left.pop(0) if left else None)
    up = y or (left.pop(0) if left else None)
    if across is None or up is None or across == up:
        raise InputError(f"--plot: found the axes {', '.join(names) or 'none'}, expected two with several values")
    return across, up


def _rows(results: Path) -> Iterator[dict[str, Any]]:
    if results.suffix == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(results).iter_batches():
            yield from batch.to_pylist()
        return
    with results.open(newline="", encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def _table(
    rows: list[dict[str, Any]], axes: dict[str, Any], across: str, up: str, column: str, third: str | None, panel: Any
) -> list[list[float]]:
    """Values by (up, across); not a number where a cell has none."""
    places = {name: {str(at): place for place, at in enumerate(axes[name])} for name in (across, up)}
    table = [[float("nan")] * len(axes[across]) for _ in axes[up]]
    for row in rows:
        if third is None or str(row[third]) == str(panel):
            number = row[column]
            if number not in (None, ""):
                table[places[up][str(row[up])]][places[across][str(row[across])]] = _number(number, column)
    return table


def _number(value: Any, column: str) -> float:
    if value in ("true", "false"):
        return float(value == "true")
    try:
        return float(value)
    except ValueError:
        raise InputError(f"--value: found {show(value)} in {column}, expected a column with numbers") from None


def _norm(numbers: list[float]) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    low, high = min(numbers), max(numbers)
    return LogNorm(low, high) if low > 0 and high > 20 * low else Normalize(low, high)


def _ticks(axis: Any, values: tuple[Any, ...]) -> None:
    """At most ten labels."""
    step = max(1, -(-len(values) // 10))
    shown = list(itertools.islice(enumerate(values), 0, None, step))
    axis.set_ticks([place for place, _ in shown], labels=[_label(value) for _, value in shown])


def _label(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}k"
    return str(value)
