"""What pictures share: a figure without a display, colours everyone can tell apart, equal files for equal runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan.errors import InputError, show
from kvplan.files import write_atomic

#: Okabe and Ito's palette, the colours that are faint on white last (jfly.uni-koeln.de/color)
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#000000", "#56B4E9", "#F0E442")
GREY = "#8A8A8A"
SUFFIXES = (".png", ".svg", ".pdf")


def new_figure(path: Path, width: float, height: float) -> Any:
    """An empty figure for `path`. Raises InputError for another suffix, or without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot: found {show(path.name)}, expected a name ending in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot: found no matplotlib, expected it installed: pip install 'kvplan-llm[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write the figure, whole or not at all. Dates and random ids are left out so that equal runs give equal files."""
    from matplotlib import rc_context

    kind = path.suffix.lower()[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": "kvplan", "savefig.dpi": 150}):
        write_atomic(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata))


def style(axis: Any) -> None:
    """Quiet axes: no box on the right and top, a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
