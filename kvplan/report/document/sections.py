"""The parts of an answer that say more in a form of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvplan.report.document.anything import blocks
from kvplan.report.document.blocks import Block, Code, Heading, Items, Text, pairs, table
from kvplan.report.document.words import title, value
from kvplan.units import both, gib, tokens


def section(key: str, found: Any, answer: Mapping[str, Any]) -> list[Block]:
    """One part of an answer, in its own form where it has one."""
    own = _OWN.get((answer["command"], key))
    return blocks(key, found) if own is None else own(key, found, answer)


def _cache(key: str, found: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Block]:
    figures = [(title(name), value(name, item)) for name, item in found.items() if name != "components"]
    parts = found["components"]
    rows = [
        (
            part["name"], title(part["kind"]), part["dtype"], tokens(part["layers"]), tokens(part["entries"]),
            tokens(part["bytes_per_token"]), both(part["bytes"]), both(part["read_bytes"]),
        )
        for part in parts
    ]  # fmt: skip
    headings = ("part, one sequence", "kind", "dtype", "layers", "entries", "B/token", "stored", "read in a step")
    made: list[Block] = [
        Heading("cache"), pairs("cache", figures), Heading("components", 3),
        table("components", headings, rows, range(3, 8)), Heading("derivations"),
    ]  # fmt: skip
    for part in parts:
        made.append(Heading(part["name"], 3))
        made.append(Text(f"{part['derivation']['formula']} = {part['bytes']:,} B"))
        inputs = [(item["name"], item["value"], item["source"]) for item in part["derivation"]["inputs"]]
        made.append(table(f"inputs of {part['name']}", ("input", "value", "where it is from"), inputs))
    return made


def _rows(key: str, found: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> list[Block]:
    contexts = answer["contexts"]
    made: list[Block] = [Heading("side by side")]
    for name, key, ratio in (
        ("stored", "stored_bytes", "stored_ratio"),
        ("read in a step", "read_bytes_per_step", "read_ratio"),
    ):
        rows = [(row["model"], row["setting"], *(_cell(cell, key, ratio) for cell in row["cells"])) for row in found]
        headings = ("model", "setting", *(f"{tokens(context)} tokens" for context in contexts))
        made += [
            Heading(f"{name}, with the ratio to the first", 3),
            table(name, headings, rows, range(2, 2 + len(contexts))),
        ]
    refused = [
        (f"{row['model']} {row['setting']}", cell["refused"])
        for row in found
        for cell in row["cells"]
        if cell["refused"]
    ]
    return [*made, *([pairs("refused", list(dict.fromkeys(refused)))] if refused else [])]


def _cell(cell: Mapping[str, Any], key: str, ratio: str) -> str:
    if cell[key] is None:
        return "refused"
    return f"{gib(cell[key])} ({cell[ratio]:.3g})" if cell[ratio] is not None else gib(cell[key])


def _memory(key: str, found: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> list[Block]:
    if found is None:
        return []
    made: list[Block] = [Heading("memory, term by term"), Text(f"KV cache = {found['identity']}")]
    for number, stage in enumerate(found["stages"], 1):
        terms = [*stage["terms"], {**stage, "name": "KV cache", "says": "what is left", "source": "the identity"}]
        rows = [
            (
                term["name"],
                _signed(term["nominal"]),
                f"{_signed(term['low'])} to {_signed(term['high'])}",
                term["says"],
                term["source"],
            )
            for term in terms
        ]
        name = f"stage {number}, of {both(stage['start_bytes'])}"
        made += [
            Heading(name, 3),
            table(name, ("term", "expected", "from, to", "how", "where it is from"), rows, (1, 2)),
        ]
    outside = [(term["name"], gib(term["nominal"]), term["says"]) for term in found["outside"]]
    if outside:
        made += [Heading("beyond it", 3), table("beyond it", ("term", "expected", "how"), outside, (1,))]
    return made


def _signed(size: int) -> str:
    return gib(size) if size >= 0 else f"-{gib(-size)}"


def _engine(key: str, found: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Block]:
    rest = {
        name: item
        for name, item in found.items()
        if name not in ("settings", "setting_sources", "derivation", "log_line")
    }
    sources = found["setting_sources"]
    rows = [(name, _shown(item), sources.get(name, "")) for name, item in found["settings"].items()]
    return [
        *blocks("the engine's plan", rest), Heading("how the engine gets there", 3), Items(tuple(found["derivation"])),
        Heading("settings", 3), table("settings", ("setting", "value", "decided by"), rows),
    ]  # fmt: skip


def _shown(found: Any) -> str:
    """A setting's value in one cell."""
    return ", ".join(map(str, found)) if isinstance(found, (list, tuple)) else "-" if found is None else str(found)


_OPTION = (
    "name", "gpu", "replicas", "gpus", "cost_per_hour", "cost_per_million_output_tokens", "capacity", "headroom",
    "load", "binds", "basis",
)  # fmt: skip


def _options(key: str, found: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> list[Block]:
    if not found:
        return []
    rows = [
        (
            *(value(name, each[name]) for name in _OPTION),
            *(value("s", each["times"][name]) for name in ("ttft_s", "tpot_s")),
        )
        for each in found
    ]
    headings = (*(title(name) for name in _OPTION), "TTFT", "TPOT")
    made: list[Block] = [Heading(key), table(key, headings, rows, (2, 3, 4, 5, 6, 7, 8, 11, 12))]
    for each in found:
        made.append(Heading(each["name"], 3))
        made += [Code(each["command"])] if each["command"] else []
        lost = each["loss"]
        made.append(
            Text(
                f"Holds {tokens(each['kv_capacity_tokens'])} tokens a replica, {each['concurrent_requests']:.1f} "
                f"requests at once; with one machine lost, {lost['replicas_left']} replicas carry "
                f"{lost['carries']:.0%} of the demand and {'keep' if lost['meets'] else 'miss'} the limits "
                f"({lost['basis']})."
            )
        )
        made += [Text(each["why_not"])] if each["why_not"] else []
    return made


_Own = Callable[[str, Any, Mapping[str, Any]], list[Block]]
_OWN: dict[tuple[str, str], _Own] = {
    ("estimate", "cache"): _cache, ("estimate", "memory"): _memory, ("estimate", "engine"): _engine,
    ("compare", "rows"): _rows, ("compare", "curves"): lambda key, found, answer: [],  # drawn
    ("plan", "options"): _options, ("plan", "nearest"): _options,
}  # fmt: skip
