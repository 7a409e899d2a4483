"""From what a user typed to a ModelSpec: a registered name, a config.json, a folder, a GGUF file, or a hub id."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.registry import Registry, user_dirs

if TYPE_CHECKING:
    from kvplan.spec.importers.tensors import CheckpointTensors


@record
class LoadedModel:
    """A spec, and the checkpoint's exact tensor sizes where its headers could be read."""

    spec: ModelSpec
    tensors: CheckpointTensors | None = None


@cache
def _registry(directories: tuple[Path, ...]) -> Registry:
    return Registry(directories)


def registry(model_dir: Path | None = None) -> Registry:
    """The registry with the user's directories (KVPLAN_MODEL_PATH, then `model_dir`) on top."""
    return _registry(tuple(user_dirs(model_dir)))


def resolve_model(
    name: str, *, model_dir: Path | None = None, hub: bool = False, assume_dense: bool = False
) -> LoadedModel:
    """Load the model that `name` means. The network is used only with `hub`.

    A path (something that exists, or ends in .json, .gguf or .yaml) is read; else the registry is asked. Raises
    InputError for what can't be read or isn't known, UnsupportedArchitectureError for a layout that would be a guess
    (`assume_dense` takes full attention on every layer instead, and marks the spec).
    """
    if hub:
        return _from_hub(name, assume_dense)
    path = Path(name)
    if not name.strip():
        raise InputError(
            "model: found an empty name, expected a name of `kvplan models list`, a config.json or a folder"
        )
    if path.suffix.lower() in (".json", ".gguf", ".yaml", ".yml") or _exists(path):
        return _from_path(path, assume_dense)
    return LoadedModel(registry(model_dir).find(name))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for a path, or with a null byte
        return False


def _from_path(path: Path, assume_dense: bool) -> LoadedModel:
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
