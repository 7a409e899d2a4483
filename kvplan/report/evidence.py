"""The record for people: its cases, and how they came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvplan.evidence.case import Case, Outcome
from kvplan.report.console import plain_table, stdout


def print_cases(cases: Sequence[Case]) -> None:
    """Print one line a case."""
    table = plain_table("case", "engine", "model", "verdict", "source")
    for case in cases:
        engine = f"{case.run.engine} {case.run.version or ''}".strip()
        table.add_row(case.id, engine, case.model or "unknown", case.verdict or "", case.source)
    console = stdout()
    console.print(table)
    console.print(f"{len(cases)} cases")


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print one line a case and the count of each verdict; a case that got worse says so."""
    console, table = stdout(), plain_table("case", "figure")
    for heading in ("observed", "predicted", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for outcome in outcomes:
        numbers = ["" if value is None else f"{value:,.2f}" for value in (outcome.observed, outcome.predicted)]
        error = "" if outcome.error is None else f"{outcome.error:+.2%}"
        was = "" if outcome.held else f", was {outcome.recorded}"
        table.add_row(outcome.id, outcome.figure or "", *numbers, error, f"{outcome.verdict}{was}")
    console.print(table)
    counts = Counter(outcome.verdict for outcome in outcomes)
    console.print(f"{len(outcomes)} cases: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    worse = [outcome.id for outcome in outcomes if not outcome.held]
    if worse:
        console.print(f"worse than recorded: {', '.join(worse)}")
