"""Matrices and layouts for people."""

from __future__ import annotations

from kvplan.answers.tables import Layouts, Matrix
from kvplan.report.console import plain_table, stdout
from kvplan.units import gib, tokens


def print_matrix(grid: Matrix) -> None:
    """Print sizes with a dash where they don't fit, and the greatest concurrency at the right."""
    console = stdout()
    where = f", {grid.engine} on {grid.gpu}" if grid.engine else f", {grid.gpu}" if grid.gpu else ""
    console.print(f"{grid.model}: KV cache {grid.size}, by context and batch{where}")
    console.print()
    table = plain_table()
    table.add_column("context", justify="right", no_wrap=True)
    for batch in grid.batches:
        table.add_column(f"x {batch}", justify="right", no_wrap=True)
    if any(row.max_concurrency is not None for row in grid.rows):
        table.add_column("most at once", justify="right", no_wrap=True)
    for row in grid.rows:
        cells = [gib(size) if size is not None else "-" for size in row.bytes]
        most = [] if row.max_concurrency is None else [f"{row.max_concurrency:,.2f}".removesuffix(".00")]
        table.add_row(tokens(row.context_tokens), *cells, *most)
    console.print(table)


def print_layouts(found: Layouts) -> None:
    """Print one line a layout, the most concurrency first."""
    console = stdout()
    console.print(f"{found.model} with {found.engine} on {found.count} x {found.gpu}, most requests at once first")
    console.print()
    table = plain_table()
    for heading in ("TP", "PP", "DP", "DCP", "weights/GPU", "KV/request", "tokens", "at once"):
        table.add_column(heading, justify="right", no_wrap=True)
    refused = []
    for row in found.rows:
        ranks = f"TP {row.tensor} PP {row.pipeline} DP {row.data}"
        sizes = [
            gib(size) if size is not None else "-"
            for size in (row.weights_bytes_per_rank, row.reserved_bytes_one_request)
        ]
        count = tokens(row.capacity_tokens) if row.capacity_tokens is not None else "-"
        most = f"{row.max_concurrency:,.2f}" if row.max_concurrency is not None else "no start"
        table.add_row(str(row.tensor), str(row.pipeline), str(row.data), str(row.decode_context), *sizes, count, most)
        if not row.starts:
            refused.append(f"- {ranks}: {row.says}")
    console.print(table)
    if refused:
        console.print()
        for line in refused:
            console.print(line)
