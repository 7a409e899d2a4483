"""The one way kvplan writes for people: no colours under NO_COLOR or in a pipe, no line broken inside a word.

A terminal, or COLUMNS, says how wide lines may be. Without either, in a pipe or a file, lines are as long as they are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing import TextIO

NARROWEST = 80
UNBROKEN = 1 << 16


def stdout() -> Console:
    """A console on stdout that neither highlights nor interprets markup in figures and names."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    width = max(console.width, NARROWEST) if os.environ.get("COLUMNS", "").isdecimal() else UNBROKEN
    return Console(
        highlight=False, markup=False, emoji=False, width=width, file=cast("TextIO", _WithoutTrailingBlanks())
    )


class _WithoutTrailingBlanks:
    """stdout, less the blanks that fill the cells at the end of a line. rich writes whole lines at once."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def plain_table(*headings: str) -> Table:
    """A table with a rule under its header and no frame, which copies well and survives a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def notes(console: Console, assumptions: Iterable[str], warnings: Iterable[str]) -> None:
    """The assumptions and warnings that end an answer, one a line. KVPLAN_QUIET leaves the assumptions out."""
    if os.environ.get("KVPLAN_QUIET"):
        assumptions = ()
    for title, lines in (("Assumptions", tuple(assumptions)), ("Warnings", tuple(warnings))):
        if lines:
            console.print()
            console.print(Text(title, style="bold"))
            for line in lines:
                console.print(f"- {line}")
