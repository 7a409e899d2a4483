"""The record for people: its cases, and how they came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from kvplan.evidence.case import Case, Outcome
from kvplan.report.console import stdout


def print_cases(cases: Sequence[Case]) -> None:
    """Print one line a case."""
    console, table = stdout(), _grid(4)
    for case in cases:
        engine = f"{case.run.engine} {case.run.version or ''}".strip()
        table.add_row(case.id, engine, case.model or "unknown", case.verdict or "")
    console.print(table)
    console.print(f"{len(cases)} cases")


def _grid(columns: int) -> Table:
    """A grid whose first column, the ids, is never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(columns - 1):
        table.add_column(overflow="fold")
    return table


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print one line a case and the count of each verdict; a case that got worse says so."""
    console, table = stdout(), _grid(4)
    for outcome in outcomes:
        error = "" if outcome.error is None else f"{outcome.error:+.2%}"
        was = "" if outcome.held else f", was {outcome.recorded}"
        figure = (outcome.figure or "").replace("_", " ")
        table.add_row(outcome.id, figure, Text(error, justify="right"), f"{outcome.verdict}{was}")
    console.print(table)
    counts = Counter(outcome.verdict for outcome in outcomes)
    console.print(f"{len(outcomes)} cases: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    worse = [outcome.id for outcome in outcomes if not outcome.held]
    if worse:
        console.print(f"worse than recorded: {', '.join(worse)}")
