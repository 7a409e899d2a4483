"""The one way kvplan writes to a terminal: no colours under NO_COLOR or in a pipe, no line broken inside a word."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

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
