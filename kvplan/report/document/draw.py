"""Which pictures an answer has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.report.document.blocks import Block, Heading
from kvplan.report.document.pictures import bars, curves, stacked
from kvplan.units import gib, seconds, si, tokens


def pictures(answer: Mapping[str, Any]) -> list[Block]:
    """The pictures of an answer with their headings; none for one that has nothing to draw."""
    draw = _BY_COMMAND.get(answer["command"])
    return [] if draw is None else draw(answer)


def _estimate(answer: Mapping[str, Any]) -> list[Block]:
    made: list[Block] = []
    memory, fit = answer.get("memory"), answer["fit"]
    if memory:
        for number, stage in enumerate(memory["stages"], 1):
            parts = [("KV cache", max(0, stage["nominal"]))]
            parts += [(term["name"], term["nominal"]) for term in stage["terms"]]
            name = f"memory of a GPU of stage {number}" if len(memory["stages"]) > 1 else "memory of one GPU"
            made += [Heading(name), stacked(name, parts, memory["total_bytes"])]
    elif fit:
        size = fit["kv_bytes_per_sequence_per_gpu"] * answer["batch"]
        parts = [("weights", fit["weights_bytes_per_gpu"]), ("KV cache", size)]
        made += [Heading("memory of one GPU"), stacked("memory of one GPU", parts, fit["memory_bytes_per_gpu"])]
    components = answer["cache"]["components"]
    if len(components) > 1:
        rows = [(part["name"], float(part["bytes"]), gib(part["bytes"])) for part in components]
        made += [Heading("what the cache is made of"), bars("one sequence", rows)]
    return made


def _explain(answer: Mapping[str, Any]) -> list[Block]:
    made: list[Block] = []
    columns = (("stored", "stored_bytes", gib), ("read in one decode step", "read_bytes_per_step", gib))
    for name, key, words in columns:
        rows = [(step["title"], float(step[key]), words(step[key])) for step in answer["steps"]]
        made += [Heading(f"{name}, after each technique"), bars(name, rows, logarithmic=True)]
    flops = "attention_flops_per_step"
    rows = [(step["title"], float(step[flops]), f"{si(step[flops])}FLOP") for step in answer["steps"]]
    return [*made, Heading("attention in one decode step"), bars("attention", rows, logarithmic=True)]


def _compare(answer: Mapping[str, Any]) -> list[Block]:
    lines = [
        (", ".join(filter(None, (curve["model"], curve["setting"]))), curve["contexts"], curve["stored_bytes"])
        for curve in answer["curves"]
    ]
    drawn = curves("stored bytes", lines)
    made: list[Block] = [] if drawn is None else [Heading("stored bytes over the context"), drawn]
    longest = max(range(len(answer["contexts"])), key=lambda place: answer["contexts"][place])
    rows = []
    for row in answer["rows"]:
        size = row["cells"][longest]["stored_bytes"]
        name = ", ".join(filter(None, (row["model"], row["setting"])))
        rows.append((name, float(size or 0), "refused" if size is None else gib(size)))
    title = f"stored at {tokens(answer['contexts'][longest])} tokens"
    return [*made, Heading(title), bars(title, rows)]


def _audit(answer: Mapping[str, Any]) -> list[Block]:
    memory = answer["memory"]
    parts = [(term["name"], max(0, term["observed"] or term["predicted"] or 0)) for term in memory["terms"]]
    parts = [(name, size) for name, size in parts if size]
    if not parts:
        return []
    total = memory["total_bytes"] or sum(size for _, size in parts)
    return [Heading("memory of one GPU, as printed"), stacked("memory of one GPU", parts, total)]


def _plan(answer: Mapping[str, Any]) -> list[Block]:
    options = (answer["options"] or answer["nearest"])[:12]
    if not options:
        return []
    rows = [
        (each["name"], float(each["cost_per_hour"]), f"{answer['currency']} {each['cost_per_hour']:,.2f} an hour")
        for each in options
    ]
    return [Heading("cost of each configuration"), bars("cost an hour", rows)]


def _simulate(answer: Mapping[str, Any]) -> list[Block]:
    rows = [
        (f"{name.removesuffix('_s').upper()}, {share}", float(found[share]), seconds(found[share]))
        for name, found in (answer.get("latency") or {}).items()
        for share in ("p50", "p99")
        if isinstance(found, Mapping) and isinstance(found.get(share), (int, float)) and found[share] >= 0
    ]
    return [Heading("latency"), bars("latency", rows, logarithmic=True)] if rows else []


def _validate(answer: Mapping[str, Any]) -> list[Block]:
    counted: dict[str, int] = {}
    for check in answer["checks"]:
        counted[check["section"]] = counted.get(check["section"], 0) + 1
    rows = [(name, float(count), f"{count} rows") for name, count in counted.items()]
    return [Heading("what was measured"), bars("rows by section", rows)] if rows else []


_BY_COMMAND = {
    "estimate": _estimate, "explain": _explain, "compare": _compare, "audit": _audit, "plan": _plan,
    "simulate": _simulate, "validate": _validate,
}  # fmt: skip
