"""The model registry: look-up by slug, alias or Hugging Face id, case-insensitive, offline.

Family files are not parsed at start-up: `index.json` beside them tells in which byte range of which file a model
stands. A slice whose checksum is the indexed one was validated when the index was made; anything else, a changed
file or a user's own directory, is read and validated in full.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, nearest, show
from kvplan.files import is_folder, write_text_atomic
from kvplan.record import record
from kvplan.resources import data_dir
from kvplan.spec.model import ModelSpec
from kvplan.spec.spec_file import read_specs, spec_from_trusted, split_documents

INDEX_NAME = "index.json"
INDEX_SCHEMA = 1
MODEL_PATH_VARIABLE = "KVPLAN_MODEL_PATH"


@record
class Entry:
    """Where one model stands: a byte range of a family file and its CRC-32."""

    id: str
    file: str
    offset: int
    length: int
    crc: int


class Registry:
    """The specs of the shipped directory, overridden by those of the user's directories, later ones winning."""

    def __init__(self, user_dirs: Iterable[Path] = ()) -> None:
        self._dir = data_dir("model_specs")
        index = json.loads((self._dir / INDEX_NAME).read_text(encoding="utf-8"))
        self._entries = {row[0]: Entry(*row) for row in index["models"]}
        self._names: dict[str, str] = index["names"]
        self._read_specs: dict[str, ModelSpec] = {}
        for directory in user_dirs:
            self._add(directory)

    def _add(self, directory: Path) -> None:
        own = [spec for path in sorted(directory.glob("*.yaml")) for spec in read_specs(path)]
        self._names = {**self._names, **names_of(own)}
        self._read_specs.update({spec.id: spec for spec in own})

    def ids(self) -> list[str]:
        """Every model's id, sorted."""
        return sorted({*self._entries, *self._read_specs})

    def names(self) -> list[str]:
        """Every spelling the registry answers to, lower case."""
        return sorted(self._names)

    def get(self, model_id: str) -> ModelSpec:
        """The spec of an id that ids() lists."""
        if model_id not in self._read_specs:
            self._read_specs[model_id] = self._read(self._entries[model_id])
        return self._read_specs[model_id]

    def knows(self, name: str) -> bool:
        """Whether `name` is one model's slug, alias or Hugging Face id."""
        return _fold(name) in self._names

    def find(self, name: str) -> ModelSpec:
        """The spec of a slug, alias or Hugging Face id.

        Raises InputError: an unknown name with the nearest three, an ambiguous one with its candidates.
        """
        wanted = _fold(name)
        if wanted in self._names:
            return self.get(self._names[wanted])
        candidates = sorted({model for spelling, model in self._names.items() if spelling.startswith(wanted)})
        if len(candidates) > 1:
            more = f" and {len(candidates) - 8} more" if len(candidates) > 8 else ""
            listed = ", ".join(candidates[:8]) + more
            raise InputError(
                f"model: found {show(name)}, which is short for {len(candidates)} models, expected one of {listed}"
            )
        close = list(dict.fromkeys(self._names[spelling] for spelling in nearest(wanted, self._names, 12)))[:3]
        hint = f"; nearest: {', '.join(close)}" if close else ""
        raise InputError(
            f"model: found {show(name)}, which is no known model, expected a name of `kvplan models list`, "
            f"a config.json, a folder with one, or a .gguf file{hint}"
        )

    def _read(self, entry: Entry) -> ModelSpec:
        import yaml

        with (self._dir / entry.file).open("rb") as stream:
            stream.seek(entry.offset)
            data = stream.read(entry.length)
        if zlib.crc32(data) != entry.crc:
            fresh = {spec.id: spec for spec in read_specs(self._dir / entry.file)}
            if entry.id not in fresh:
                raise InputError(
                    f"model: {entry.id} is gone from {entry.file}, expected an index made by `kvplan models index`"
                )
            return fresh[entry.id]
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return spec_from_trusted(yaml.load(data, Loader=loader))  # noqa: S506


def user_dirs(option: str | os.PathLike[str] | None) -> list[Path]:
    """The user's spec directories: KVPLAN_MODEL_PATH (separated as PATH is), then `--model-dir`.

    Raises InputError for one that isn't there.
    """
    listed = os.environ.get(MODEL_PATH_VARIABLE, "").split(os.pathsep)
    named: list[tuple[str, Any]] = [(MODEL_PATH_VARIABLE, part) for part in listed if part]
    if option is not None:
        named.append(("--model-dir", option))
    for source, path in named:
        if not isinstance(path, str | os.PathLike) or not is_folder(Path(path)):
            shown = show(os.fspath(path) if isinstance(path, os.PathLike) else path)
            raise InputError(f"{source}: found {shown}, expected a directory with model spec files")
    return [Path(path) for _, path in named]


def _fold(name: str) -> str:
    return name.strip().lower()


def names_of(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Every spelling of every spec, folded, to its id. Raises InputError when two models claim the same one."""
    names: dict[str, str] = {}
    ids: set[str] = set()
    for spec in specs:
        if spec.id in ids:
            raise InputError(f"id: found {show(spec.id)} twice, expected each model once")
        ids.add(spec.id)
        short = (hf_id.split("/", 1)[-1] for hf_id in spec.hf_ids)
        for spelling in dict.fromkeys(map(_fold, (spec.id, *spec.aliases, *spec.hf_ids, *short))):
            if names.setdefault(spelling, spec.id) != spec.id:
                raise InputError(
                    f"aliases: {show(spelling)} names both {names[spelling]} and {spec.id}, expected one model"
                )
    return names


def build_index(directory: Path) -> dict[str, Any]:
    """Validate every family file of `directory` and return the index that belongs to it."""
    rows: list[list[Any]] = []
    specs: list[ModelSpec] = []
    for path in sorted(directory.glob("*.yaml")):
        data = path.read_bytes()
        slices = split_documents(data.decode("utf-8"))
        for spec, (offset, length) in zip(read_specs(path), slices, strict=True):
            rows.append([spec.id, path.name, offset, length, zlib.crc32(data[offset : offset + length])])
            specs.append(spec)
    return {"schema": INDEX_SCHEMA, "models": rows, "names": names_of(specs)}


def write_index(directory: Path) -> int:
    """Write `index.json` into `directory` and return the number of models it lists."""
    index = build_index(directory)
    lines = ",\n".join(json.dumps(row) for row in index["models"])
    names = json.dumps(index["names"], indent=0, sort_keys=True)
    write_text_atomic(
        directory / INDEX_NAME, f'{{"schema": {INDEX_SCHEMA},\n"models": [\n{lines}\n],\n"names": {names}}}\n'
    )
    return len(index["models"])
