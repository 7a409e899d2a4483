"""`kvplan sweep`: a grid of questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import JSON_OPTION, PLOT_OPTION, print_json


def sweep(
    study: Annotated[Path, typer.Argument(help="A study file; see docs/schemas/study.schema.json.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The results' folder. Default: the study's name.")
    ] = None,
    format: Annotated[str, typer.Option(help="csv, or parquet (needs pyarrow).")] = "csv",
    engine: Annotated[str, typer.Option(help="local processes, or ray.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one a CPU.")] = None,
    address: Annotated[str | None, typer.Option(help="A Ray cluster's address. Default: one of its own.")] = None,
    plot: PLOT_OPTION = None,
    x: Annotated[str | None, typer.Option("--x", help="The heat map's axes. Default: the first two.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="See --x.")] = None,
    value: Annotated[str | None, typer.Option(help="The column that --plot draws.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Any estimate, plan or simulate over a grid, one row a cell. A sweep that was stopped goes on where it was."""
    import sys

    from kvplan.cli.progress import Bar
    from kvplan.errors import InputError, show
    from kvplan.planner.sweep.cells import columns_of
    from kvplan.planner.sweep.run import sweep as run
    from kvplan.planner.sweep.store import Store
    from kvplan.planner.sweep.study import load_study

    if format not in ("csv", "parquet"):
        raise InputError(f"--format: found {show(format)}, expected csv or parquet")
    if engine not in ("local", "ray"):
        raise InputError(f"--engine: found {show(engine)}, expected local or ray")
    if address is not None and engine != "ray":
        raise InputError("--address: found it without --engine ray, expected both")
    loaded = load_study(study)
    folder = output or Path(study.stem)
    with (
        Store(folder, loaded, columns_of(loaded), "csv" if format == "csv" else "parquet") as store,
        Bar(sys.stderr.isatty() and not as_json) as bar,
    ):
        before = run(
            loaded, store, engine=engine, workers=workers, address=address,
            progress=(lambda done, total: bar.update("sweep", done, total)) if bar.shown else None,
        )  # fmt: skip
        path = store.finish()
    if plot is not None:
        from kvplan.report.sweep_plot import plot_sweep

        plot_sweep(path, loaded, plot, x, y, value)
    if as_json:
        print_json(
            {"schema_version": 1, "command": "sweep", "results": str(path), "cells": loaded.cells,
             "parts": loaded.parts, "parts_before": before}
        )  # fmt: skip
        return
    again = f", {before:,} of {loaded.parts:,} parts were there before" if before else ""
    print(f"{path}: {loaded.cells:,} cells of {loaded.command}{again}")
