"""Curves of replays and simulations, drawn without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, show
from kvplan.files import write_atomic

if TYPE_CHECKING:
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
