"""A document as GitHub-flavoured Markdown. Pictures are given in words: their tables stand beside them."""

from __future__ import annotations

import re

from kvplan.report.document.blocks import Block, Code, Document, Heading, Items, Picture, Table, Text

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(document: Document) -> str:
    """The whole text."""
    return "\n\n".join([f"# {_escaped(document.title)}", *(_block(block) for block in document.blocks)]) + "\n"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _block(block: Block) -> str:
    match block:
        case Heading(text=text, level=level):
            return f"{'#' * level} {_escaped(text)}"
        case Text(text=text, tone=tone):
            return f"**{_escaped(text)}**" if tone else _escaped(text)
        case Items(texts=texts):
            return "\n".join(f"- {_escaped(text)}" for text in texts)
        case Picture(says=says):
            return f"*{_escaped(says)}*"
        case Code(text=text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{fence}\n{text}\n{fence}"
        case Table():
            return _table(block)


def _table(found: Table) -> str:
    rule = ["--:" if place in found.numbers else "---" for place in range(len(found.headings))]
    lines = [found.headings, rule, *found.rows]
    first, _, *rest = (
        "| " + " | ".join(cell if row is rule else _escaped(cell) for cell in row) + " |" for row in lines
    )
    return "\n".join([first, "| " + " | ".join(rule) + " |", *rest])
