"""What a technique is: one record that says which term of the formula it changes, when it applies and its price."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvplan.record import record

Term: TypeAlias = Literal["heads", "layers", "tokens", "width", "bits", "reads", "slots", "duplicates", "place"]
Support: TypeAlias = Literal["yes", "partly", "no"]


@record
class EngineSupport:
    """Whether one engine release has a technique, and how."""

    engine: str
    version: str
    support: Support
    note: str
    source: str


@record
class Technique:
    """One of the twelve.

    `term` is the factor of the formula that it changes. `stored`, `read` and `computed` say what happens to bytes held,
    bytes loaded and FLOPs of a decode step. `needs_training` parts what a checkpoint fixes from what a flag switches
    on; `what_if` and `option` are how kvplan is asked for it. `kinds` are the layer kinds it touches, `untouched` what
    it leaves alone; `metadata`, `quality` and `kernel` are what it costs. `headline` is the published figure, with the
    reading that makes it true.
    """

    number: int
    name: str
    title: str
    term: Term
    stored: str
    read: str
    computed: str
    needs_training: bool
    kinds: tuple[str, ...]
    untouched: str
    metadata: str
    quality: str
    kernel: str
    headline: str
    source: str
    what_if: str | None = None
    option: str | None = None

    @property
    def engines(self) -> tuple[EngineSupport, ...]:
        """Each engine's support, from the support matrix."""
        return engine_support()[self.name]


@cache
def engine_support() -> Mapping[str, tuple[EngineSupport, ...]]:
    """The support matrix (`support.yaml`): technique name to each engine's support, in the order of the file."""
    import yaml

    text = (Path(__file__).parent / "support.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    engines: dict[str, dict[str, str]] = data["engines"]
    return {
        technique: tuple(
            EngineSupport(engine, engines[engine]["version"], support, note, engines[engine]["source"])
            for engine, (support, note) in rows.items()
        )
        for technique, rows in data["techniques"].items()
    }
