"""The map: all twelve techniques in the plane of memory saved against reads saved."""

from __future__ import annotations

import textwrap
from math import cos, hypot, pi, sin
from pathlib import Path
from typing import Any

from kvplan.answers.techniques import Map, Place
from kvplan.report.plotting import GREY, PALETTE, new_figure, save, style
from kvplan.units import tokens

_COLOURS = {"checkpoint": PALETTE[0], "what-if": PALETTE[4], "flag": PALETTE[1]}
_MARKERS = {"checkpoint": "o", "what-if": "s", "flag": "^"}
FAINT = "#555555"
LOWEST = -20.0  # percent; what costs more is drawn at the edge, with its figures beside the map
RADIUS = 15.0  # points that a number's circle takes


def plot_map(answer: Map, path: Path) -> None:
    """Numbered places, and beside them what each number is, its setting and its figures."""
    figure = new_figure(path, 13, 7.2)
    axis, side = figure.subplots(1, 2, width_ratios=(3, 2))
    placed = [place for place in answer.places if place.memory_saved is not None and place.reads_saved is not None]
    style(axis)
    axis.set_xlim(LOWEST - 3, 110)
    axis.set_ylim(LOWEST - 3, 110)
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.set_xticks(range(-20, 101, 20))
    axis.set_yticks(range(-20, 101, 20))
    axis.set_xlabel("memory saved (% of stored bytes)")
    axis.set_ylabel("reads saved (% of bytes read in one decode step)")
    figure.suptitle(f"{answer.model} at {tokens(answer.context_tokens)} tokens: each technique on its own", fontsize=12)
    handles = [_handle(name) for name in dict.fromkeys(place.decided_by for place in answer.places)]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
    _legend(side, answer)
    figure.draw_without_rendering()  # the layout must be known before numbers look for room
    _draw(axis, placed)
    save(figure, path)


def _percents(place: Place) -> tuple[float, float]:
    return 100 * (place.memory_saved or 0.0), 100 * (place.reads_saved or 0.0)


def _handle(name: str) -> Any:
    from matplotlib.lines import Line2D

    words = {"checkpoint": "in the checkpoint", "what-if": "what-if: needs training", "flag": "runtime flag"}
    return Line2D([], [], linestyle="", marker=_MARKERS[name], color=_COLOURS[name], label=words[name])


def _draw(axis: Any, placed: list[Place]) -> None:
    """Markers where they belong, numbers beside them where there is room, each tied to its marker."""
    scale = 72 / axis.figure.dpi
    spots = [tuple(max(LOWEST, percent) for percent in _percents(place)) for place in placed]
    marks = [tuple(scale * part for part in axis.transData.transform(spot)) for spot in spots]
    taken: list[tuple[float, float]] = []
    for place, point, mark in zip(placed, spots, marks, strict=True):
        colour = _COLOURS[place.decided_by]
        inside = "white" if min(_percents(place)) < LOWEST else colour
        axis.plot(
            *point, marker=_MARKERS[place.decided_by], color=colour, markerfacecolor=inside, markersize=8, zorder=3
        )
        spot = _room(mark, marks, taken)
        taken.append(spot)
        axis.annotate(
            str(place.number), point, xytext=(spot[0] - mark[0], spot[1] - mark[1]),
            textcoords="offset points", ha="center", va="center", fontsize=9, zorder=4,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": colour},
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkB": 0},
        )  # fmt: skip


def _room(
    mark: tuple[float, ...], marks: list[tuple[float, ...]], taken: list[tuple[float, float]]
) -> tuple[float, float]:
    """The nearest spot around `mark`, in points, that no marker and no other number covers."""
    for ring in range(1, 12):
        for step in range(12):
            angle = pi / 4 + step * pi / 6
            spot = (mark[0] + ring * 1.2 * RADIUS * cos(angle), mark[1] + ring * 1.2 * RADIUS * sin(angle))
            clear = all(hypot(spot[0] - x, spot[1] - y) >= 0.95 * RADIUS for x, y in marks)
            if clear and all(hypot(spot[0] - x, spot[1] - y) >= 1.5 * RADIUS for x, y in taken):
                return spot
    return mark[0] + RADIUS, mark[1] + RADIUS


def _legend(side: Any, answer: Map) -> None:
    side.axis("off")
    side.set_xlim(0, 1)
    blocks = [(place, _words(place)) for place in answer.places]
    lines = sum(len(words) for _, words in blocks) + 0.5 * len(blocks)
    y, step = 1.0, 1.0 / max(lines, 30)
    for place, words in blocks:
        faded = place.memory_saved is None
        colour = FAINT if faded else "black"
        side.text(0, y, f"{place.number:>2}", fontsize=9, va="top", color=_COLOURS[place.decided_by], weight="bold")
        for number, line in enumerate(words):
            side.text(
                0.07, y, line, fontsize=9 if number == 0 else 8, va="top", color=colour if number == 0 else FAINT,
                weight="bold" if number == 0 else "normal",
            )  # fmt: skip
            y -= step
        y -= step / 2
    side.set_ylim(min(y, 0), 1.0)


def _words(place: Place) -> list[str]:
    if place.memory_saved is None or place.reads_saved is None:
        reason = (place.reason or "").partition("; ")[0]
        return [f"{place.technique}: no place", *textwrap.wrap(reason, 62)]
    memory, reads = _percents(place)
    note = place.setting if place.note is None else f"{place.setting}: {place.note}"
    edge = " (at the edge)" if min(memory, reads) < LOWEST else ""
    return [f"{place.technique}: memory {memory:.1f} %, reads {reads:.1f} %{edge}", *textwrap.wrap(note, 62)]
