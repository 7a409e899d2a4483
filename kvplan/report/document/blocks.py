"""What a document is made of. Text is plain; the writers escape it."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.record import record


@record
class Heading:
    """A section's title, of level 2 or 3."""

    text: str
    level: int = 2


@record
class Text:
    """A paragraph. `tone` is good or bad for a verdict, "" otherwise."""

    text: str
    tone: str = ""


@record
class Items:
    """A list of sentences."""

    texts: tuple[str, ...]


@record
class Table:
    """Rows of texts. `numbers` are the columns that are set to the right; `caption` says what it is."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@record
class Picture:
    """An SVG, and the same in words for whoever doesn't see it."""

    svg: str
    says: str


@record
class Code:
    """Something to be copied as it is."""

    text: str


Block = Heading | Text | Items | Table | Picture | Code


@record
class Document:
    """A title and what follows it."""

    title: str
    blocks: tuple[Block, ...]


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> Table:
    """A table of any sequences."""
    return Table(caption, tuple(headings), tuple(tuple(row) for row in rows), frozenset(numbers))


def pairs(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    """A table of names and values."""
    return table(caption, ("what", "value"), rows)
