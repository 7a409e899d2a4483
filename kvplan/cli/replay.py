"""`kvplan replay`: what a prefix cache would have hit on a recorded trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import JSON_OPTION, print_json
from kvplan.errors import InputError, did_you_mean, show


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace with prefix block ids: JSON lines, plain or gzip.")],
    capacity: Annotated[
        str, typer.Option(help="Cache sizes in blocks, such as 1000,10000,unbounded.")
    ] = "1000,10000,100000,unbounded",
    policy: Annotated[str, typer.Option(help="lru, fifo, lfu or optimal; several with commas.")] = "lru",
    touch_order: Annotated[
        str, typer.Option(help="Order in which a prompt's blocks are touched: last-to-first or first-to-last.")
    ] = "last-to-first",
    trace_format: Annotated[
        str | None, typer.Option("--format", help="mooncake (512-token ids, ms) or qwen (16, s). Default: by suffix.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens one id stands for, where the format differs.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="Unit of the time column: s, ms or us.")] = None,
    limit: Annotated[int | None, typer.Option(help="Read only the first rows.")] = None,
    split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="Split the misses against an offline optimum that knows the future (also with --policy optimal).",
        ),
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the hit-rate curve into this PNG or SVG file.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Replay a trace's prompts against prefix caches of several sizes."""
    from kvplan.simulator.replay import POLICIES, TOUCH_ORDERS, parse_capacities
    from kvplan.simulator.replay import replay as run
    from kvplan.simulator.traces import open_trace

    order = touch_order.strip().lower().replace("-", "_")
    orders = [known for known in TOUCH_ORDERS if known == order]
    if not orders:
        raise InputError(f"--touch-order: found {show(touch_order)}, expected last-to-first or first-to-last")
    names = [name.strip().lower() for name in policy.split(",")]
    for name in names:
        if name not in POLICIES:
            hint = did_you_mean(name, POLICIES)
            raise InputError(f"--policy: found {show(name)}, expected one of {', '.join(POLICIES)}{hint}")
    policies = [known for name in names for known in POLICIES if known == name]
    opened = open_trace(trace, trace_format, time_unit, block_size, limit)
    capacities = parse_capacities(capacity)
    if plot is not None:
        from kvplan.report.plotting import new_figure

        new_figure(plot, 1, 1)  # a name that can't be drawn into is refused before the run
    split = split or "optimal" in policies
    rows = run(opened, capacities, policies, orders[0], split)
    hidden = {"requests", "partial"} | ({"misses"} if not split else set())
    partial = any(row.partial for row in rows)
    if plot is not None:
        from kvplan.report.simulate_plot import plot_hit_rates

        plot_hit_rates(rows, plot)
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "command": "replay",
                "trace": trace.name,
                "block_tokens": opened.block_size,
                "requests": rows[0].requests,
                "partial": partial,
                "rows": [{key: value for key, value in asdict(row).items() if key not in hidden} for row in rows],
            }
        )
    else:
        from kvplan.report.simulate import print_replay

        print_replay(rows, opened.block_size or 0)
    if partial:
        raise typer.Exit(130)
