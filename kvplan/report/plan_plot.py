"""The front of a plan: cost against time to first token."""

from __future__ import annotations

from pathlib import Path

from kvplan.errors import InputError
from kvplan.planner.answer import Plan
from kvplan.report.plotting import GREY, PALETTE, new_figure, save, style

MARKERS = "osD^vPX*"


def plot_front(answer: Plan, path: Path) -> None:
    """Draw the configurations that none beats in cost and time to first token. Raises InputError for an empty front."""
    if not answer.front:
        raise InputError("--plot: found no configuration within the limits, expected some to draw")
    figure = new_figure(path, 8.5, 5.0)
    axis = figure.subplots()
    style(axis)
    costs, times = [p.cost_per_hour for p in answer.front], [p.ttft_s for p in answer.front]
    axis.step(costs, times, where="post", color=GREY, linewidth=1.0, zorder=1)
    drawn = [(point.gpu, point.basis, point.cost_per_hour, point.ttft_s) for point in answer.front]
    drawn += [
        (row.gpu, row.basis, row.cost_per_hour, row.times.ttft_s)
        for row in answer.options
        if row.times.ttft_s is not None
    ]
    for number, device in enumerate(dict.fromkeys(gpu for gpu, *_ in drawn)):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        for basis, face in (("simulated", colour), ("estimated", "none")):
            at = [(cost, time) for gpu, how, cost, time in drawn if (gpu, how) == (device, basis)]
            if at:
                axis.scatter(
                    *zip(*at, strict=True), marker=marker, facecolors=face, edgecolors=colour,
                    label=f"{device}, {basis}", zorder=2,
                )  # fmt: skip
    limit = answer.asked.limits.get("ttft")
    if limit is not None:
        axis.axhline(limit, color=GREY, linestyle="--", linewidth=1.0)
        axis.annotate("limit", (costs[-1], limit), ha="right", va="bottom", fontsize=9, color=GREY)
    axis.set_xlabel(f"{answer.currency} an hour")
    axis.set_ylabel(f"time to first token, {answer.asked.quantile}, s")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9)
    save(figure, path)
