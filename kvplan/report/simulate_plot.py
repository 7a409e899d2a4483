"""Curves of replays and simulations, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, show
from kvplan.files import write_atomic

if TYPE_CHECKING:
    from kvplan.simulator.metrics import Metrics
    from kvplan.simulator.replay import ReplayRow


def _figure(rows: int, path: Path) -> tuple[Any, Any]:
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot: found {show(path.name)}, expected a name ending in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot: found no matplotlib, expected it installed: pip install 'kvplan-llm[plot]'") from None
    figure = Figure(figsize=(8, 3 * rows), layout="constrained")
    return figure, figure.subplots(rows, 1, squeeze=False)[:, 0]


def _save(figure: Any, path: Path) -> None:
    # The date is left out so that equal runs give equal files.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    kind = path.suffix.lower()[1:]
    write_atomic(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata))


def plot_hit_rates(rows: Sequence[ReplayRow], path: Path) -> None:
    """Token hit rate against capacity, one line a policy; an unbounded cache is a dashed ceiling."""
    figure, (axis,) = _figure(1, path)
    for policy in dict.fromkeys(row.policy for row in rows):
        points = sorted(
            (row.capacity_blocks, 100 * row.token_hit_rate)
            for row in rows
            if row.policy == policy and row.capacity_blocks is not None
        )
        if points:
            axis.plot([size for size, _ in points], [rate for _, rate in points], marker="o", label=policy)
    for row in [row for row in rows if row.capacity_blocks is None][:1]:
        axis.axhline(100 * row.token_hit_rate, linestyle="--", color="grey", label="unbounded")
    axis.set_xscale("log")
    axis.set_xlabel("capacity (blocks)")
    axis.set_ylabel("prompt tokens hit (%)")
    axis.set_ylim(bottom=0)
    axis.legend()
    _save(figure, path)


def plot_run(metrics: Metrics, path: Path) -> None:
    """Blocks in use and queue over time, and the distribution of the latencies."""
    figure, (pool, queue, latency) = _figure(3, path)
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
    _save(figure, path)
