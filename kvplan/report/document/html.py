"""A document as one HTML file: its style is inside, and its policy forbids it to load or run anything."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

from kvplan.report.document.blocks import Block, Code, Document, Heading, Items, Picture, Table, Text


def html(document: Document) -> str:
    """The whole file."""
    style = Path(__file__).with_name("style.css").read_text("utf-8")
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'"
    body = "\n".join(_block(block) for block in document.blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(document.title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(text=text, level=level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Text(text=text, tone=tone):
            return f'<p class="{f"verdict {tone}" if tone else "text"}">{escape(text)}</p>'
        case Items(texts=texts):
            return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
        case Picture(svg=svg):
            return f"<figure>{svg}</figure>"
        case Code(text=text):
            return f'<pre tabindex="0">{escape(text)}</pre>'
        case Table():
            return _table(block)


def _table(found: Table) -> str:
    def cell(kind: str, place: int, text: str, more: str = "") -> str:
        number = ' class="n"' if place in found.numbers else ""
        return f"<{kind}{more}{number}>{escape(text)}</{kind}>"

    head = "".join(cell("th", place, text, ' scope="col"') for place, text in enumerate(found.headings))
    rows = "".join(
        "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>" for row in found.rows
    )
    label = escape(found.caption, quote=True)
    kind = ' class="pairs"' if len(found.headings) == 2 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table{kind}>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
