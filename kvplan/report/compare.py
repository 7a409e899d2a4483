"""A comparison for people and spreadsheets."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich.console import Console

from kvplan.answers.compare import Cell, Comparison
from kvplan.files import write_text_atomic
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import gib, tokens

WIDE_CELL = 19


def print_comparison(answer: Comparison) -> None:
    """Stored bytes by context, then bytes read in one decode step where they differ; each with its ratio."""
    console = stdout()
    _table(console, answer, "stored")
    if any(cell.read_bytes_per_step != cell.stored_bytes for row in answer.rows for cell in row.cells):
        console.print()
        _table(console, answer, "read in one decode step")
    console.print()
    console.print(f"Ratios are over {answer.baseline} at the same context.")
    if any(cell.beyond_model_limit for row in answer.rows for cell in row.cells):
        console.print("* beyond what the model declares.")
    notes(console, (), answer.warnings)


def _table(console: Console, answer: Comparison, what: str) -> None:
    labels = max(len(row.model) for row in answer.rows), max(len(row.setting) for row in answer.rows)
    wide = console.width >= sum(labels) + 4 + len(answer.contexts) * WIDE_CELL
    table = plain_table(what, *(("setting",) if wide else ()))
    for context in answer.contexts:
        table.add_column(tokens(context), justify="right", no_wrap=True)
    for row in answer.rows:
        names = (row.model, row.setting) if wide else (f"{row.model}\n  {row.setting}",)
        table.add_row(*names, *(_cell(cell, what == "stored", "  " if wide else "\n") for cell in row.cells))
    console.print(table)


def _cell(cell: Cell, stored: bool, between: str) -> str:
    count, ratio = (cell.stored_bytes, cell.stored_ratio) if stored else (cell.read_bytes_per_step, cell.read_ratio)
    if count is None:
        return "refused"
    times = "" if ratio is None else f"{between}x{ratio:.3g}"
    return f"{gib(count)}{'*' if cell.beyond_model_limit else ''}{times}"


_COLUMNS = (
    "context_tokens", "stored_bytes", "stored_ratio", "read_bytes_per_step", "read_ratio", "attention_flops_per_step",
    "beyond_model_limit", "refused",
)  # fmt: skip


def write_csv(answer: Comparison, path: Path) -> None:
    """One line a model, setting and context, in bytes; the columns have the names of the JSON document."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("model", "setting", *_COLUMNS))
    for row in answer.rows:
        for cell in row.cells:
            writer.writerow((row.model, row.setting, *(getattr(cell, column) for column in _COLUMNS)))
    write_text_atomic(path, text.getvalue())


def write_markdown(answer: Comparison, path: Path) -> None:
    """A table of stored bytes and one of bytes read in a decode step, in Markdown."""
    heads = ["model", "setting", *(f"{tokens(context)} tokens" for context in answer.contexts)]
    lines = []
    for title, stored in (("Stored", True), ("Read in one decode step", False)):
        lines += [f"{title}, with the ratio to {answer.baseline}:", ""]
        lines += ["| " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * len(answer.contexts)]
        for row in answer.rows:
            cells = [_cell(cell, stored, " ") for cell in row.cells]
            lines.append("| " + " | ".join((row.model, row.setting.replace("|", "\\|"), *cells)) + " |")
        lines.append("")
    lines += [f"- {warning}" for warning in answer.warnings]
    write_text_atomic(path, "\n".join(lines).rstrip() + "\n")
