"""The twelve techniques as documents: the list, one of them, its miniature, and the map of one model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from kvplan.answers.schema import document_schema
from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.catalog import TECHNIQUES, find_technique
from kvplan.cache.techniques.miniatures import miniature
from kvplan.cache.techniques.technique_map import Placement, technique_map
from kvplan.errors import InputError
from kvplan.estimator import loaded_model, resolve_context
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel


@record
class Support:
    """One engine's support of a technique; `source` says where it was read."""

    engine: str
    version: str
    support: Literal["yes", "partly", "no"]
    note: str
    source: str


@record
class Entry:
    """One of the twelve: what it changes, when it can be applied, what it leaves alone, its price, who has it.

    `what_if` and `option` are how kvplan is asked for it; null where there is no such way.
    """

    number: int
    name: str
    title: str
    term: str
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
    what_if: str | None
    option: str | None
    engines: tuple[Support, ...]


@record
class TechniqueList:
    """All twelve, or the one that was asked for."""

    schema_version: int
    command: Literal["techniques"]
    techniques: tuple[Entry, ...]


@record
class Miniature:
    """One technique at a size that fits in the head: what went in, what came out."""

    number: int
    technique: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    shows: str


@record
class Miniatures:
    """Miniatures that were just run on the code that plans real models."""

    schema_version: int
    command: Literal["techniques demo"]
    miniatures: tuple[Miniature, ...]


@record
class Place:
    """One technique on the map: shares of memory and of reads saved, negative where it costs.

    Both are null, with a `reason`, where the technique has no meaning for the model. `decided_by` says whether the
    checkpoint has it (measured against the same checkpoint without it), a what-if gives it, or a flag.
    """

    number: int
    technique: str
    setting: str
    decided_by: Literal["checkpoint", "what-if", "flag"]
    memory_saved: float | None
    reads_saved: float | None
    reason: str | None
    note: str | None


@record
class Map:
    """All twelve for one model at one context, each on its own against the same model without it."""

    schema_version: int
    command: Literal["techniques map"]
    model: str
    context_tokens: int
    places: tuple[Place, ...]


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the documents, by the command's words."""
    documents = {"techniques": TechniqueList, "techniques-demo": Miniatures, "techniques-map": Map}
    return {name: document_schema(answer, f"kvplan {name.replace('-', ' ')}") for name, answer in documents.items()}


def list_techniques(name: str | None = None) -> TechniqueList:
    """All twelve, or the one of that name, alias or number. Raises InputError with the nearest name."""
    chosen = TECHNIQUES if name is None else (find_technique(name),)
    return TechniqueList(1, "techniques", tuple(_entry(technique) for technique in chosen))


def _entry(technique: Technique) -> Entry:
    engines = tuple(Support(row.engine, row.version, row.support, row.note, row.source) for row in technique.engines)
    return Entry(**asdict(technique), engines=engines)


def run_miniatures(name: str | None = None) -> Miniatures:
    """Run the miniature of one technique, or all twelve."""
    chosen = TECHNIQUES if name is None else (find_technique(name),)
    found = [(technique, miniature(technique)) for technique in chosen]
    return Miniatures(
        1,
        "techniques demo",
        tuple(Miniature(each.number, each.name, run.inputs, run.outputs, run.shows) for each, run in found),
    )


def map_techniques(
    model: str | ModelSpec | LoadedModel, *, ctx: int | str | None = None, model_dir: Path | None = None
) -> Map:
    """Place all twelve for `model` at `ctx` tokens. Raises InputError for a context without a cache."""
    spec = loaded_model(model, model_dir).spec
    context, _ = resolve_context(spec, ctx)
    if not spec.counts:
        raise InputError(f"model: found {spec.id} without layers, expected a model with a cache")
    return Map(1, "techniques map", spec.id, context, tuple(_place(each) for each in technique_map(spec, context)))


def _place(placed: Placement) -> Place:
    memory, reads = placed.memory_saved, placed.reads_saved
    return Place(
        placed.number, placed.technique, placed.setting, placed.kind,
        None if memory is None else float(memory), None if reads is None else float(reads), placed.reason, placed.note,
    )  # fmt: skip
