"""`kvplan report`: a saved answer as a file to share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.errors import InputError, show


def report(
    answer: Annotated[Path, typer.Argument(help="What a command printed with --json.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .html or .md file. Default: the answer's name with .html.")
    ] = None,
) -> None:
    """Turn a saved JSON answer into one HTML file, or Markdown: what was asked, the answer, pictures, every figure.

    Takes answers of estimate, explain, compare, advise, plan, simulate, validate, audit and techniques. The HTML file
    needs nothing else: it opens without a network, and holds no script.
    """
    from kvplan.files import write_text_atomic
    from kvplan.report.document.answers import document, read_answer
    from kvplan.report.document.html import html
    from kvplan.report.document.markdown import markdown

    target = output or answer.with_suffix(".html")
    writers = {".html": html, ".htm": html, ".md": markdown, ".markdown": markdown}
    writer = writers.get(target.suffix.lower())
    if writer is None:
        raise InputError(f"--output: found {show(target.name)}, expected a name ending in .html or .md")
    write_text_atomic(target, writer(document(read_answer(answer))))
    print(target)
