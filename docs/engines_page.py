"""docs/engines.md: how each engine lays out the cache, in words, and the support tables from the data."""

from __future__ import annotations

from pathlib import Path

WORDS = Path(__file__).resolve().parent / "engines.yaml"


def page() -> str:
    """The text of docs/engines.md."""
    import yaml

    from kvplan.cache.techniques.catalog import TECHNIQUES
    from kvplan.engines.registry import engine_names
    from kvplan.engines.support import supports, supports_kind
    from kvplan.spec.layers import LAYER_BY_KIND

    words = yaml.safe_load(WORDS.read_text("utf-8"))
    names = engine_names()
    if set(words["engines"]) != set(names):
        raise ValueError(f"{WORDS.name}: found {sorted(words['engines'])}, expected {sorted(names)}")
    parts = [words["head"]]
    for name in names:
        points = "\n".join(f"- {point}" for point in words["engines"][name])
        parts.append(f"## {name}\n\n{points}\n")
    head = f"| | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}"
    mark = {"Y": "yes", "P": "partly", "N": "no", "-": "-"}
    kinds = [kind for kind in LAYER_BY_KIND if kind != "parallel"]
    rows = "\n".join(
        f"| {kind} | {' | '.join(mark[supports_kind(name, kind).level] for name in names)} |" for kind in kinds
    )
    notes = "\n".join(
        f"- {kind}, {name}: {found.note}"
        for kind in kinds
        for name in names
        if (found := supports_kind(name, kind)).note and name not in ("ollama", "ik_llama.cpp")
    )
    parts.append(f"## Layer kinds\n\n{head}\n{rows}\n\n{notes}\n")
    rows = "\n".join(
        f"| {each.name} | {' | '.join(mark[supports(name, each.name).level] for name in names)} |"
        for each in TECHNIQUES
    )
    parts.append(f"## Techniques\n\n{head}\n{rows}\n\nHow, and where it was read: `kvplan techniques show NAME`.\n")
    return "\n".join(parts)
