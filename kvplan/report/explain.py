"""The waterfall for people: a table, and a picture of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.text import Text

from kvplan.answers.explain import Explanation, Stage
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import both, gib, seconds, si, tokens


def print_explanation(answer: Explanation) -> None:
    """One line a step: who decides it, what is stored and read after it, each with its factor, and FLOPs."""
    console = stdout()
    console.print(Text(answer.verdict, style="bold"))
    console.print(f"Context: {tokens(answer.context_tokens)} tokens ({answer.context_source})")
    console.print()
    table = plain_table("after", "decided by")
    for heading in ("stored", "", "read/step", "", "FLOP/step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, step in enumerate(answer.steps):
        stored, read = (_factor(step.stored_factor), _factor(step.read_factor)) if number else ("", "")
        table.add_row(
            step.title, step.decided_by, gib(step.stored_bytes), stored, gib(step.read_bytes_per_step), read,
            si(step.attention_flops_per_step),
        )  # fmt: skip
    console.print(table)
    place = answer.composition
    if place.tier is not None:
        console.print()
        console.print(
            f"On the device {both(place.device_bytes)}; on {place.tier} {both(place.moved_bytes)}, back in "
            f"{seconds(place.resume_seconds)}. Moved bytes are stored still."
        )
    if place.prefill_bytes > place.sequence_bytes:
        console.print()
        console.print(f"While a prompt is computed it holds {both(place.prefill_bytes)}: eviction comes after it.")
    notes(console, answer.assumptions, answer.warnings)


def _factor(factor: float) -> str:
    """`x0.125`, with more digits where three would hide a change; `=` where there is none."""
    if factor == 1:
        return "="
    return f"x{factor:.3g}" if f"{factor:.3g}" != "1" else f"x{factor:.5g}"


_COLOURS = {"baseline": "#8A8A8A", "checkpoint": "#0072B2", "what-if": "#CC79A7", "flag": "#E69F00"}
_HATCHES = {"baseline": "", "checkpoint": "", "what-if": "//", "flag": ".."}


def plot_explanation(answer: Explanation, path: Path) -> None:
    """Three waterfalls side by side: stored, read per step, FLOPs per step. Each bar reaches from before to after."""
    from kvplan.report.plotting import new_figure, save

    steps = answer.steps
    figure = new_figure(path, 13, 1.9 + 0.55 * len(steps))
    panels = figure.subplots(1, 3, sharey=True)
    columns: tuple[tuple[str, list[int], Callable[[int], str], int], ...] = (
        ("stored", [step.stored_bytes for step in steps], gib, 2),
        ("read in one decode step", [step.read_bytes_per_step for step in steps], gib, 2),
        ("attention in one decode step", [step.attention_flops_per_step for step in steps], _flop, 10),
    )
    for axis, (title, values, text, base) in zip(panels, columns, strict=True):
        _panel(axis, steps, values, text, base)
        axis.set_title(title, fontsize=11, loc="left")
    panels[0].set_yticks(range(len(steps)), [_label(step) for step in steps])
    panels[0].invert_yaxis()
    used = dict.fromkeys(step.decided_by for step in steps)
    handles = [_patch(name) for name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    batch = "" if answer.batch == 1 else f"{answer.batch:,} sequences of "
    figure.suptitle(
        f"{answer.model.id}: {batch}{tokens(answer.context_tokens)} tokens, logarithmic scales", fontsize=12
    )
    save(figure, path)


def _flop(count: int) -> str:
    return f"{si(count)}FLOP"


def _label(step: Stage) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(step.title, 30))


def _patch(name: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=_COLOURS[name], hatch=_HATCHES[name], edgecolor="white", label=name)


def _panel(axis: Any, steps: tuple[Stage, ...], values: list[int], text: Callable[[int], str], base: int) -> None:
    from kvplan.report.plotting import style

    style(axis)
    axis.grid(False, axis="y")
    axis.set_xscale("log")
    positive = [value for value in values if value] or [1]
    low, high = min(positive), max(positive)
    axis.set_xlim(low / 1.6, high * max(8, (high / low) ** 0.75))
    for row, (step, value) in enumerate(zip(steps, values, strict=True)):
        before = values[row - 1] if row else value
        left, right = sorted((max(before, low), max(value, low)))
        colour = _COLOURS[step.decided_by]
        if row and left != right:
            axis.barh(
                row, right - left, left=left, height=0.5, color=colour, hatch=_HATCHES[step.decided_by],
                edgecolor="white", linewidth=0,
            )  # fmt: skip
        if row:
            axis.plot([max(before, low)] * 2, [row - 1, row + 0.25], color="#8A8A8A", linewidth=0.8)
        axis.plot([max(value, low)] * 2, [row - 0.33, row + 0.33], color=colour, linewidth=2.5)
        factor = value / before if row and before else 1
        change = "" if factor == 1 else f"  ({_factor(factor)})"
        axis.annotate(
            f"{text(value)}{change}", (right, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9
        )
    axis.xaxis.set_major_formatter(lambda value, _: text(round(value)))
    axis.xaxis.set_major_locator(_locator(axis, high / low, base))
    axis.minorticks_off()
    axis.tick_params(axis="x", labelsize=8)


def _locator(axis: Any, span: float, base: int) -> Any:
    """Powers within the panel, away from its sides, where their labels would meet those of the next panel."""
    from math import log

    from matplotlib.ticker import FixedLocator, LogLocator

    if base == 10:
        locator = LogLocator(base=10, subs=(1, 3) if span < 10 else (1,), numticks=6)
    else:
        locator = LogLocator(base=2 if span < 8 else 4 if span < 64 else 8, numticks=5)
    left, right = axis.get_xlim()
    shares = [(tick, log(tick / left) / log(right / left)) for tick in locator.tick_values(left, right)]
    return FixedLocator([tick for tick, share in shares if 0.1 <= share <= 0.9])
