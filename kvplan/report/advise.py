"""Advice for people, and as a decision record in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.answers.advise import Advice, Lever
from kvplan.files import write_text_atomic
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import seconds, tokens

_GOALS = {
    "capacity": "More sequences of {context} tokens at once.",
    "latency": "Shorter decode steps for {batch} of {context} tokens.",
    "idle-sessions": "More idle sessions of {context} tokens kept, and not computed anew.",
    "context": "A longer context for {batch}.",
}
_SUPPORT = {"Y": "yes", "P": "partly", "N": "no", "-": "does not apply"}


def print_advice(answer: Advice) -> None:
    """The constraint, the ranked levers, the choice with its tests and rollback, and what is ruled out."""
    console = stdout()
    console.print(Text(f"{_title(answer)}: {answer.goal}", style="bold"))
    console.print(answer.constraint)
    console.print()
    if answer.levers:
        table = plain_table("", "lever", "risk", "gain")
        table.columns[2].no_wrap = True
        for lever in answer.levers:
            mark = "*" if lever.rank == answer.choice else ""
            table.add_row(f"{lever.rank}{mark}", lever.setting, lever.risk, lever.gain)
        console.print(table)
    else:
        console.print("No lever of this checkpoint and engine helps.")
    if answer.chosen is not None:
        _chosen(console, answer, answer.chosen)
    if answer.present:
        _heading(console, "In the checkpoint already")
        for present in answer.present:
            console.print(
                f"- {_present(present.technique, present.memory_saved, present.reads_saved)}; {answer.engine} "
                f"has it: {_SUPPORT[present.support]}{_because(present.note)}"
            )
    _heading(console, "Ruled out")
    for ruled in answer.ruled_out:
        console.print(f"- {ruled.technique}: {ruled.reason}")
    notes(console, answer.assumptions, answer.warnings)


def _title(answer: Advice) -> str:
    devices = answer.gpu if answer.gpus == 1 else f"{answer.gpus} x {answer.gpu}"
    return f"{answer.model.id} on {devices} with {answer.engine}"


def _chosen(console: Console, answer: Advice, lever: Lever) -> None:
    _heading(console, f"* {lever.setting}")
    rows = Table.grid(padding=(0, 2))
    rows.add_row("gain", lever.gain)
    rows.add_row("memory", lever.memory)
    rows.add_row(answer.engine, f"{_SUPPORT[lever.support]}{_because(lever.note)}")
    for title, lines in (("test first", lever.tests), ("guard", lever.guardrails), ("roll back", (lever.rollback,))):
        for number, line in enumerate(lines):
            rows.add_row(title if number == 0 else "", line)
    console.print(rows)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _present(technique: str, memory: float, reads: float) -> str:
    parts = [
        f"{'saves' if share >= 0 else 'costs'} {abs(share):.1%} of {what}"
        for share, what in ((memory, "stored bytes"), (reads, "reads"))
    ]
    return f"{technique} {' and '.join(parts)}"


def _because(note: str) -> str:
    return f" ({note})" if note else ""


def write_record(answer: Advice, path: Path) -> None:
    """The decision record: goal, options considered, choice, assumptions, evidence, guardrails, rollback."""
    write_text_atomic(path, record_text(answer))


def record_text(answer: Advice) -> str:
    """The record's Markdown."""
    batch = "one sequence" if answer.batch == 1 else f"{answer.batch:,} sequences"
    choice = answer.chosen
    lines = [
        f"# {_title(answer)}: {answer.goal}", "",
        "## Goal", "",
        _GOALS[answer.goal].format(batch=batch, context=tokens(answer.context_tokens)), "",
        answer.constraint, "",
        "## Options considered", "",
    ]  # fmt: skip
    if answer.levers:
        lines += ["| | option | gain | memory | risk | engine |", "| ---: | --- | --- | --- | --- | --- |"]
        for lever in answer.levers:
            cells = (
                str(lever.rank), lever.setting, lever.gain, lever.memory, lever.risk, _SUPPORT[lever.support],
            )  # fmt: skip
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    lines += ["Ruled out:", "", *(f"- {ruled.technique}: {ruled.reason}" for ruled in answer.ruled_out), ""]
    if answer.present:
        saved = (_present(item.technique, item.memory_saved, item.reads_saved) for item in answer.present)
        lines += ["In the checkpoint already:", "", *(f"- {text}" for text in saved), ""]
    lines += ["## Choice", ""]
    if choice is None:
        why = "runs one sequence of this context" if answer.levers else "helps"
        lines += [f"None: no lever of this checkpoint and engine {why}.", ""]
    else:
        lines += [
            f"{choice.setting}: {choice.gain}. Here {choice.memory}.", "",
            "It has the largest gain among the options that keep answers exact or take 8 bits and run "
            "the batch or a part of it; more GPUs come last."
            if choice.risk in ("exact", "low") and choice.technique != "parallel"
            else "No option that keeps answers exact or takes 8 bits on the same GPUs helps enough; this is the "
            "largest gain of the others.",
            "",
            "Before it ships, test:", "", *_list(choice.tests),
        ]  # fmt: skip
    lines += ["## Assumptions", "", *_list(answer.assumptions), "## Evidence", "", *_list(_evidence(answer))]
    if choice is not None:
        lines += ["## Guardrails", "", *_list(choice.guardrails), "## Rollback", "", f"{choice.rollback}.", ""]
    return "\n".join(lines)


def _evidence(answer: Advice) -> Iterable[str]:
    yield from answer.evidence
    if answer.weight_read_seconds is not None:
        yield f"reading all weights once takes {seconds(answer.weight_read_seconds)} at the roofline"
    yield from answer.warnings


def _list(items: Iterable[str]) -> list[str]:
    return [*(f"- {item}" for item in items), ""]
