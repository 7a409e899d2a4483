"""The curves of a comparison: where windowed and recurrent models bend away from the rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from kvplan.answers.compare import Comparison, Curve
from kvplan.errors import InputError
from kvplan.report.plotting import PALETTE, new_figure, save, style
from kvplan.units import gib, tokens

DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*"
MOST = len(PALETTE) * len(DASHES)


def plot_comparison(answer: Comparison, path: Path) -> None:
    """Bytes stored, and read in one decode step where they differ, against context, on logarithmic axes."""
    curves = [curve for curve in answer.curves if curve.contexts]
    if len(curves) > MOST:
        raise InputError(f"--plot: found {len(curves)} curves, expected at most {MOST} that can be told apart")
    differ = any(curve.read_bytes_per_step != curve.stored_bytes for curve in curves)
    figure = new_figure(path, 12 if differ else 8.5, 5.2 + 0.1 * max(0, len(curves) - 8))
    panels = figure.subplots(1, 2 if differ else 1, sharey=True, squeeze=False)[0]
    models, settings = ({getattr(curve, part) for curve in curves} for part in ("model", "setting"))
    for curve, look in zip(curves, _looks(curves), strict=True):
        marks = [place for place, context in enumerate(curve.contexts) if context in answer.contexts]
        names = [curve.model] * (len(models) > 1) + [curve.setting] * (len(settings) > 1 or len(models) == 1)
        for axis, values in zip(panels, (curve.stored_bytes, curve.read_bytes_per_step), strict=False):
            axis.plot(curve.contexts, values, markevery=marks, label=", ".join(names), **look)
    if len(models) == 1:
        figure.suptitle(models.pop(), fontsize=12)
    for axis, title in zip(panels, ("stored", "read in one decode step"), strict=False):
        _axes(axis)
        axis.set_title(title, fontsize=11, loc="left")
    panels[0].set_ylabel("bytes")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2 if len(curves) > 3 else 1, frameon=False, fontsize=9,
        handlelength=3.5,
    )  # fmt: skip
    save(figure, path)


def _looks(curves: list[Curve]) -> list[dict[str, Any]]:
    """Colour, dash and marker of each curve; one that lies on another is drawn thinner and broken on top of it."""
    models = list(dict.fromkeys(curve.model for curve in curves))
    settings = list(dict.fromkeys(curve.setting for curve in curves))
    crossed = len(models) > 1 and len(settings) <= len(DASHES) and len(models) <= len(PALETTE)
    under: Counter[tuple[int, ...]] = Counter()
    looks = []
    for number, curve in enumerate(curves):
        places = (models.index(curve.model), settings.index(curve.setting)) if crossed else (number, 0)
        below = under[curve.stored_bytes]
        under[curve.stored_bytes] += 1
        dash = (places[1] if crossed else number // len(PALETTE)) + below
        looks.append(
            {
                "color": PALETTE[places[0] % len(PALETTE)], "linestyle": DASHES[dash % len(DASHES)],
                "marker": MARKERS[number % len(MARKERS)], "markersize": 5, "linewidth": max(1.0, 2.4 - 0.7 * below),
            }
        )  # fmt: skip
    return looks


def _axes(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    style(axis)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(_spread(axis)))
    axis.xaxis.set_major_formatter(lambda value, _: _short(round(value)))
    axis.yaxis.set_major_locator(LogLocator(base=4, numticks=9))
    axis.yaxis.set_major_formatter(lambda value, _: gib(round(value)))
    for side in (axis.xaxis, axis.yaxis):
        side.set_minor_locator(NullLocator())
    axis.set_xlabel("stored tokens of one sequence (k = 1,024)")


def _spread(axis: Any) -> list[float]:
    """Powers of two over the span of the axis, at most ten of them."""
    low, high = axis.get_xlim()
    powers = [2.0**power for power in range(1, 41) if low <= 2.0**power <= high]
    return powers[:: -(-len(powers) // 10)] if powers else [low, high]


def _short(count: int) -> str:
    for size, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if count >= size and count % size == 0:
            return f"{count // size}{letter}"
    return tokens(count)
