"""The twelve techniques for people."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.answers.techniques import Entry, Map, Miniatures, TechniqueList
from kvplan.report.console import plain_table, stdout
from kvplan.units import tokens

WIDE = 120


def print_list(answer: TechniqueList) -> None:
    """One line a technique; with room also what it leaves alone and who has it."""
    console = stdout()
    wide = console.width >= WIDE
    table = plain_table("", "name", "changes", "stored", "when", *(("reads", "engines that have it") if wide else ()))
    for column in (1, 2, 4):
        table.columns[column].no_wrap = True
    for entry in answer.techniques:
        row = [str(entry.number), entry.name, entry.term, entry.stored, "trained" if entry.needs_training else "flag"]
        if wide:
            have = [
                f"{support.engine}{_partly(support.support)}" for support in entry.engines if support.support != "no"
            ]
            row += [entry.read, ", ".join(have) or "none read so far"]
        table.add_row(*row)
    console.print(table)
    console.print()
    console.print("`kvplan techniques show NAME` has the rest, `demo NAME` runs it in small.")


def _partly(support: str) -> str:
    return " (partly)" if support == "partly" else ""


def print_technique(entry: Entry) -> None:
    """Everything about one technique."""
    console = stdout()
    console.print(Text(f"{entry.number}. {entry.title} ({entry.name})", style="bold"))
    console.print()
    rows = _rows()
    rows.add_row("changes", entry.term)
    rows.add_row("stored", entry.stored)
    rows.add_row("read", entry.read)
    rows.add_row("computed", entry.computed)
    rows.add_row("when", "trained into the checkpoint" if entry.needs_training else "a runtime flag or patch")
    rows.add_row("layer kinds", ", ".join(kind.replace("_", " ") for kind in entry.kinds))
    rows.add_row("leaves alone", entry.untouched)
    rows.add_row("metadata", entry.metadata)
    rows.add_row("quality", entry.quality)
    rows.add_row("kernel", entry.kernel)
    rows.add_row("published", entry.headline)
    rows.add_row("source", entry.source)
    asked = [f"--what-if {entry.what_if}"] * (entry.what_if is not None) + [entry.option] * (entry.option is not None)
    rows.add_row("ask kvplan", " or ".join(filter(None, asked)) or "give a model that has it")
    console.print(rows)
    console.print()
    table = plain_table("engine", "version", "has it", "how")
    for column in table.columns[:3]:
        column.no_wrap = True
    for support in entry.engines:
        table.add_row(support.engine, support.version, support.support, support.note)
    console.print(table)


def print_miniatures(answer: Miniatures) -> None:
    """Inputs and outputs of each miniature."""
    console = stdout()
    for number, run in enumerate(answer.miniatures):
        if number:
            console.print()
        console.print(Text(f"{run.number}. {run.technique}: {run.shows}", style="bold"))
        _values(console, "given", run.inputs)
        _values(console, "found", run.outputs)


def _values(console: Console, title: str, values: dict[str, Any]) -> None:
    rows = _rows()
    for number, (name, value) in enumerate(values.items()):
        rows.add_row(title if number == 0 else "", name.replace("_", " "), _value(value))
    console.print(rows)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_value(item)}" for name, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "\n".join(_value(item) for item in value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def print_map(answer: Map) -> None:
    """Memory saved and reads saved by each technique, and why some have no place."""
    console = stdout()
    console.print(
        Text(
            f"{answer.model} at {tokens(answer.context_tokens)} tokens: what each technique saves on its own",
            style="bold",
        )
    )
    console.print()
    table = plain_table("", "name", "by")
    for heading in ("memory", "reads"):
        table.add_column(heading, justify="right")
    table.add_column("setting", overflow="fold")
    for column in table.columns[1:3]:
        column.no_wrap = True
    for place in answer.places:
        memory, reads = ("-" if share is None else f"{share:.1%}" for share in (place.memory_saved, place.reads_saved))
        setting = place.setting if place.note is None else f"{place.setting}: {place.note}"
        table.add_row(str(place.number), place.technique, place.decided_by, memory, reads, setting)
    console.print(table)
    refused = [place for place in answer.places if place.reason is not None]
    if refused:
        console.print()
        console.print(Text("Without a place here", style="bold"))
        for place in refused:
            console.print(f"- {place.technique}: {place.reason}")


def _rows() -> Table:
    return Table.grid(padding=(0, 2))
