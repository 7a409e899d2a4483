"""Holding specs against the config.json they were made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvplan.errors import InputError, KvplanError, show
from kvplan.resources import data_dir
from kvplan.spec.importers.config import load_config
from kvplan.spec.model import ModelSpec
from kvplan.spec.registry import INDEX_NAME, build_index
from kvplan.spec.spec_file import read_specs

COMPARED = (
    "blocks", "layers", "draft_layers", "dtype", "max_context", "hidden_size", "vocab_size", "meta_tokens",
    "model_type", "quantization", "kv_quantization", "tied_embeddings", "parameters",
)  # fmt: skip


@dataclass
class LintResult:
    """How many specs were read and held against a config.json, and what was found, one sentence each."""

    specs: int = 0
    compared: int = 0
    problems: list[str] = field(default_factory=list)


def lint_specs(files: list[Path], configs: Path | None) -> LintResult:
    """Validate spec files (every shipped one when `files` is empty) and compare them with `configs`.

    A spec's config is `configs`/owner--name.json in lower case, or `configs`/owner/name/config.json.
    """
    result = LintResult()
    if configs is not None and not configs.is_dir():
        raise InputError(f"--configs: found {show(str(configs))}, expected a folder of config files")
    if not files:
        directory = data_dir("model_specs")
        files = sorted(directory.glob("*.yaml"))
        result.problems += _index_problems(directory)
    places: dict[str, Path] = {}
    for path in files:
        try:
            specs = read_specs(path)
        except KvplanError as error:
            result.problems.append(str(error))
            continue
        if not specs:
            result.problems.append(f"{path}: found no model, expected at least one")
        for spec in specs:
            result.specs += 1
            result.problems += _own_problems(spec, path, places)
            if configs is not None:
                _compare(spec, configs, result)
    return result


def _own_problems(spec: ModelSpec, path: Path, places: dict[str, Path]) -> Iterator[str]:
    """What a valid spec hides: an id that another has, a block without use. `places` has the file of each id so far."""
    if spec.id in places:
        yield f"{path}: id: found {show(spec.id)}, which {places[spec.id].name} has too, expected each model once"
    places.setdefault(spec.id, path)
    used = {*spec.counts, *spec.draft_counts}
    for name in spec.blocks:
        if name not in used:
            yield f"{path}: {spec.id}: blocks.{name}: found a block that no layer uses, expected it in layers or gone"


def _index_problems(directory: Path) -> list[str]:
    import json

    try:
        current = build_index(directory)
    except KvplanError as error:
        return [str(error)]
    stored = json.loads((directory / INDEX_NAME).read_text(encoding="utf-8"))
    return [] if stored == current else [f"{INDEX_NAME}: is not current, expected the output of `kvplan models index`"]


def _compare(spec: ModelSpec, configs: Path, result: LintResult) -> None:
    for hf_id in spec.hf_ids:
        for path in (configs / f"{hf_id.replace('/', '--').lower()}.json", configs / hf_id / "config.json"):
            if not path.is_file():
                continue
            result.compared += 1
            try:
                fresh = load_config(path)
            except KvplanError as error:
                result.problems.append(f"{spec.id}: {error}")
                continue
            for name in COMPARED:
                ours, theirs = getattr(spec, name), getattr(fresh, name)
                if ours != theirs:
                    result.problems.append(
                        f"{spec.id}: {name} is {show(ours, 160)}, {path.name} says {show(theirs, 160)}"
                    )
