"""The registry for people."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.report.console import plain_table, stdout
from kvplan.spec.model import ModelSpec
from kvplan.units import counted, tokens


def print_models(rows: Sequence[tuple[ModelSpec, list[str]]]) -> None:
    """Print one line a model: id, layers, context limit, traits."""
    table = plain_table("model")
    table.columns[0].no_wrap = True
    for heading in ("layers", "context"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("traits", overflow="fold")
    for spec, found in rows:
        limit = "-" if spec.max_context is None else tokens(spec.max_context)
        table.add_row(spec.id, str(spec.layer_count), limit, ", ".join(found))
    console = stdout()
    console.print(table)
    console.print()
    console.print(counted(len(rows), "model"))
