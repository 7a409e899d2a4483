"""Curves of replays and simulations, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.report.plotting import GREY, PALETTE, new_figure, save, style

if TYPE_CHECKING:
    from kvplan.simulator.metrics import Metrics
    from kvplan.simulator.replay import ReplayRow


def _axes(rows: int, path: Path) -> tuple[Any, Any]:
    figure = new_figure(path, 8, 3 * rows)
    axes = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axis in axes:
        style(axis)
        axis.set_prop_cycle(color=PALETTE)
    return figure, axes


def plot_hit_rates(rows: Sequence[ReplayRow], path: Path) -> None:
    """Token hit rate against capacity, one line a policy; an unbounded cache is a dashed ceiling."""
    figure, (axis,) = _axes(1, path)
    for policy in dict.fromkeys(row.policy for row in rows):
        points = sorted(
            (row.capacity_blocks, 100 * row.token_hit_rate)
            for row in rows
            if row.policy == policy and row.capacity_blocks is not None
        )
        if points:
            axis.plot([size for size, _ in points], [rate for _, rate in points], marker="o", label=policy)
    for row in [row for row in rows if row.capacity_blocks is None][:1]:
        axis.axhline(100 * row.token_hit_rate, linestyle="--", color=GREY, label="unbounded")
    axis.set_xscale("log")
    axis.set_xlabel("capacity (blocks)")
    axis.set_ylabel("prompt tokens hit (%)")
    axis.set_ylim(bottom=0)
    axis.legend()
    save(figure, path)


def plot_run(metrics: Metrics, path: Path) -> None:
    """Blocks in use and queue over time, and the distribution of the latencies."""
    figure, (pool, queue, latency) = _axes(3, path)
    times = [time for time, _, _, _ in metrics.series]
    pool.plot(times, [used for _, used, _, _ in metrics.series])
    pool.set_ylabel("blocks in use")
    queue.plot(times, [running for _, _, running, _ in metrics.series], label="running")
    queue.plot(times, [waiting for _, _, _, waiting in metrics.series], label="waiting")
    queue.set_ylabel("requests")
    queue.set_xlabel("simulated time (s)")
    queue.legend()
    for name, sketch in (("TTFT", metrics.ttft), ("TPOT", metrics.tpot), ("E2E", metrics.e2e)):
        points = sketch.points()
        latency.plot([max(value, 1e-6) for value, _ in points], [share for _, share in points], label=name)
    latency.set_xscale("log")
    latency.set_xlabel("seconds")
    latency.set_ylabel("share of requests")
    latency.legend()
    save(figure, path)
