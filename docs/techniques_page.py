"""docs/techniques.md and its pictures: text from the techniques' own records, curves and miniatures from the code."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
MODEL = "llama-3.1-70b"
CONTEXTS = tuple(1 << power for power in range(10, 18))

NOT_FOR = {
    "gqa": "You serve a finished checkpoint: the number of KV heads is fixed in its weights. More tensor-parallel "
    "ranks than KV heads copy heads instead of splitting them.",
    "cla": "You want faster decoding: a layer without a cache still reads its owner's. A finished checkpoint can't be "
    "switched to it.",
    "window": "Answers depend on tokens far back and the model has few full layers; or the engine stores window layers "
    "in full, which saves nothing.",
    "mla": "You split one copy of the model over many tensor-parallel ranks: each holds the whole latent. Without "
    "an absorbed kernel the cache is expanded again.",
    "hybrid": "Contexts are short: the state costs as much for ten tokens as for a million. Prefixes are reused "
    "rarely, since a state can be taken up only where it was saved.",
    "csa": "The model wasn't trained with it. At short contexts the raw window and the compressor's state are "
    "most of it.",
    "quest": "Memory is what you lack: everything stays stored, and more. Below the budget nothing is saved.",
    "quantization": "Weights or the activation peak leave no room: the cache is then not what binds. With 4 bits and "
    "fewer, not before an evaluation on your own task.",
    "eviction": "Tokens that look useless now may be asked for later: retrieval, several turns, agents. Dropped tokens "
    "are gone, and shared prefixes can't be reused.",
    "paging": "There is one sequence of a known length: a contiguous reservation of that length is as good.",
    "prefix": "Prompts differ from their first block on, or a load is so low that nothing is resident at the same "
    "time.",
    "offload": "The link is slower than computing the prefix again; see the scenario scenarios/offload-slow-link.yaml.",
}


def page() -> str:
    """The text of docs/techniques.md."""
    from kvplan.cache.techniques.catalog import TECHNIQUES
    from kvplan.cache.techniques.miniatures import miniature

    parts = [_HEAD.format(model=MODEL)]
    for technique in TECHNIQUES:
        run = miniature(technique)
        how = technique.option or (technique.what_if and f"--what-if {technique.what_if}")
        trained = "no: trained into the checkpoint" if technique.needs_training else "yes"
        rows = {
            "stored": technique.stored, "read in a step": technique.read, "computed": technique.computed,
            "a flag switches it on": trained, "costs": technique.metadata, "quality": technique.quality,
            "kernel": technique.kernel, "leaves alone": technique.untouched, "published": technique.headline,
            "source": technique.source, "ask kvplan": f"`{how}`",
        }  # fmt: skip
        table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
        engines = "; ".join(
            f"{each.engine} {each.support}" + (f" ({each.note})" if each.note else "") for each in technique.engines
        )
        parts.append(
            f"## {technique.number}. {technique.title}\n\nIt changes the term *{technique.term}*.\n\n"
            f"![{technique.name}: shares of stored and read bytes over the context](pictures/{technique.name}.svg)\n\n"
            f"| | |\n| --- | --- |\n{table}\n| engines | {_cell(engines)} |\n\n"
            f"**When not to use it.** {NOT_FOR[technique.name]}\n\n"
            f"In small, by `kvplan techniques demo {technique.name}`: {run.shows}.\n\n"
            f"```text\n{_values('given', run.inputs)}\n{_values('found', run.outputs)}\n```\n"
        )
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _values(title: str, values: dict[str, Any]) -> str:
    return "\n".join(f"{title}  {name} = {_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def pictures() -> dict[Path, str]:
    """One SVG a technique: what is stored and read with it, in percent of the same model without it."""
    from kvplan.cache.techniques.technique_map import technique_map
    from kvplan.spec.resolve import registry

    spec = registry().get(MODEL)
    curves: dict[str, list[tuple[Fraction | None, Fraction | None, str]]] = {}
    for context in CONTEXTS:
        for place in technique_map(spec, context):
            curves.setdefault(place.technique, []).append((place.memory_saved, place.reads_saved, place.setting))
    return {DOCS / "pictures" / f"{name}.svg": _svg(name, rows) for name, rows in curves.items()}


def _svg(name: str, rows: list[tuple[Fraction | None, Fraction | None, str]]) -> str:
    left, top, width, height, most = 46, 34, 470, 150, 125

    def line(column: int, style: str) -> str:
        points = []
        for index, row in enumerate(rows):
            saved = row[column]
            if saved is None or isinstance(saved, str):
                continue
            share = 100 - 100 * float(saved)
            x = left + width * index / (len(rows) - 1)
            points.append(f"{x:.1f},{top + height * (1 - share / most):.1f}")
        return f'<polyline points="{" ".join(points)}" fill="none" {style}/>'

    grid = "".join(
        f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#cccccc"/>'
        f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share} %</text>'
        for share in (0, 50, 100)
        for y in (top + height * (1 - share / most),)
    )
    ticks = "".join(
        f'<text x="{left + width * index / (len(rows) - 1):.1f}" y="{top + height + 18}" text-anchor="middle">'
        f"{context // 1024}k</text>"
        for index, context in enumerate(CONTEXTS)
    )
    stored, read = 'stroke="#0b6e99" stroke-width="3"', 'stroke="#c2410c" stroke-width="2" stroke-dasharray="6 4"'
    setting = rows[-1][2].replace("&", "&amp;").replace("<", "&lt;")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 540 226" role="img"'
        ' font-family="sans-serif" font-size="12">'
        f"<title>{name}: stored and read bytes of {MODEL} with it, in percent of those without it</title>"
        f'<rect width="540" height="226" fill="#ffffff"/>'
        f'<text x="{left}" y="18" font-size="13">{setting}: % of the bytes without it</text>'
        f"{grid}{ticks}{line(0, stored)}{line(1, read)}"
        f'<line x1="{left}" x2="{left + 26}" y1="{top + height + 34}" y2="{top + height + 34}" {stored}/>'
        f'<text x="{left + 32}" y="{top + height + 38}">stored</text>'
        f'<line x1="{left + 96}" x2="{left + 122}" y1="{top + height + 34}" y2="{top + height + 34}" {read}/>'
        f'<text x="{left + 128}" y="{top + height + 38}">read in one decode step</text>'
        f'<text x="{left + width}" y="{top + height + 38}" text-anchor="end">context, tokens</text>'
        "</svg>\n"
    )


_HEAD = """\
# The twelve techniques

Made from the code by `python docs/generate.py`; a test fails when it is out of date.

```text
stored = sum over cache groups:  owning layers x entries(tokens) x bytes of an entry   + state of recurrent layers
read in one decode step = the same sum over the entries that are read
```

An entry is heads x width x bits. Each technique changes one term: *heads*, *layers*, *tokens* (entries), *width*,
*bits*, *reads*, *slots* (blocks instead of a reservation), *duplicates* (one copy for several sequences) or *place*
(which memory). Those of different terms multiply; those of the same term don't, and kvplan refuses combinations without
meaning. `kvplan explain MODEL` shows the terms of one model, `kvplan techniques map MODEL` all twelve for it.

The pictures are drawn from the code that plans real models, on {model}: what is stored and read with the
technique, in percent of the same model without it. A line at 100 % saves nothing; one above costs.
"""
