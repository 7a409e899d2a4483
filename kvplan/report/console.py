"""The one way kvplan writes to a terminal: no colours under NO_COLOR or in a pipe, no line broken inside a word."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

NARROWEST = 80


def stdout() -> Console:
    """A console on stdout that neither highlights nor interprets markup in figures and names."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < NARROWEST and not console.is_terminal:
        console.width = NARROWEST
    return console


def plain_table(*headings: str) -> Table:
    """A table with a rule under its header and no frame, which copies well and survives a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def notes(console: Console, assumptions: Iterable[str], warnings: Iterable[str]) -> None:
    """The assumptions and warnings that end an answer, one a line."""
    for title, lines in (("Assumptions", tuple(assumptions)), ("Warnings", tuple(warnings))):
        if lines:
            console.print()
            console.print(Text(title, style="bold"))
            for line in lines:
                console.print(f"- {line}")
