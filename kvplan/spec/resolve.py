"""From what a user typed to a ModelSpec: a registered name, a config.json, a folder, a GGUF file, or a hub id."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import InputError, show
from kvplan.files import is_folder, is_there
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.registry import Registry, user_dirs

if TYPE_CHECKING:
    from kvplan.spec.importers.tensors import CheckpointTensors


@record
class LoadedModel:
    """A spec, the checkpoint's exact tensor sizes where its headers could be read, and what to say of the loading."""

    spec: ModelSpec
    tensors: CheckpointTensors | None = None
    notes: tuple[str, ...] = ()


@cache
def _registry(directories: tuple[Path, ...]) -> Registry:
    return Registry(directories)


def registry(model_dir: str | os.PathLike[str] | None = None) -> Registry:
    """The registry with the user's directories (KVPLAN_MODEL_PATH, then `model_dir`) on top.

    Raises InputError for one that isn't there.
    """
    return _registry(tuple(user_dirs(model_dir)))


def resolve_model(
    name: str | os.PathLike[str],
    *,
    model_dir: str | os.PathLike[str] | None = None,
    hub: bool = False,
    assume_dense: bool = False,
) -> LoadedModel:
    """Load the model that `name` means. The network is used only with `hub`.

    A path is read: a file, a folder with a config.json or .gguf, or what ends in .json, .gguf or .yaml; else the
    registry is asked. Raises InputError for what can't be read or isn't known, UnsupportedArchitectureError for a
    layout that would be a guess (`assume_dense` takes full attention on every layer instead, and marks the spec).
    """
    loaded = _load(name, model_dir, hub, assume_dense)
    if assume_dense and loaded.spec.provenance.confidence != "assumed":
        return LoadedModel(
            loaded.spec, loaded.tensors, ("--assume dense has no effect: the layers of this model are known",)
        )
    return loaded


def _load(
    name: str | os.PathLike[str], model_dir: str | os.PathLike[str] | None, hub: bool, assume_dense: bool
) -> LoadedModel:
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"model: found {show(name)}, expected a name, a path or a spec")
    name = os.fspath(name)
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f"model: found {show(name) if name else 'an empty name'}, expected a name of `kvplan models list`, "
            "a config.json or a folder"
        )
    if hub:
        return _from_hub(name, assume_dense)
    path = Path(name)
    # A device or a pipe is read too, such as a shell's <(command).
    is_file = is_there(path) and not is_folder(path)
    if path.suffix.lower() in SUFFIXES or is_file or _model_in(path) is not None:
        return _from_path(path, assume_dense)
    known = registry(model_dir)
    if is_folder(path) and not known.knows(name):
        raise InputError(f"model: found the folder {show(name)} without config.json or .gguf, expected one of them")
    return LoadedModel(known.find(name))


SUFFIXES = (".json", ".gguf", ".yaml", ".yml")


def _model_in(folder: Path) -> Path | None:
    """The folder's config.json, or else its only GGUF model; None without any. Raises InputError for several."""
    if not is_folder(folder):
        return None
    if (folder / "config.json").exists():
        return folder / "config.json"
    found = sorted(path for path in folder.glob("*.gguf") if not _LATER_PART.search(path.name))
    if len(found) > 1:
        listed = ", ".join(path.name for path in found[:8])
        raise InputError(f"{folder}: found {len(found)} GGUF models ({listed}), expected the path of one")
    return found[0] if found else None


#: a part of a split GGUF model but its first
_LATER_PART = re.compile(r"-(?!00001)[0-9]{5}-of-[0-9]{5}\.gguf$")


def _from_path(path: Path, assume_dense: bool) -> LoadedModel:
    inside = _model_in(path)
    if inside is not None and inside.suffix == ".gguf":
        path = inside
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from kvplan.spec.importers.gguf import load_gguf

        spec, tensors = load_gguf(path, assume_dense=assume_dense)
        return LoadedModel(spec, tensors)
    if suffix in (".yaml", ".yml"):
        from kvplan.spec.spec_file import read_specs

        specs = read_specs(path)
        if len(specs) != 1:
            raise InputError(f"{path}: found {len(specs)} models, expected one (use --model-dir for a file of several)")
        return LoadedModel(specs[0])
    from kvplan.spec.importers.config import load_config

    spec = load_config(path, assume_dense=assume_dense)
    folder = path if path.is_dir() else path.parent
    is_checkpoint = path.is_dir() or path.name == "config.json"
    if is_checkpoint and (any(folder.glob("*.safetensors")) or (folder / "model.safetensors.index.json").is_file()):
        from kvplan.spec.importers.safetensors import read_headers

        return LoadedModel(spec, read_headers(folder))
    return LoadedModel(spec)


def _from_hub(name: str, assume_dense: bool) -> LoadedModel:
    from kvplan.spec.importers.config import import_config
    from kvplan.spec.importers.hub import fetch

    files = fetch(name)
    spec = import_config(
        files.config, name=name.split("@")[0], quant_config=files.quant_config, assume_dense=assume_dense
    )
    return LoadedModel(spec, files.tensors)
