"""What this installation can do: its extras, the devices its driver shows, its data, its settings.

Packages are looked up in their metadata and never imported, so that an answer takes no seconds for torch.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import kvplan
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.resources import data_dir

DISTRIBUTION = "kvplan-llm"
ENABLES = {
    "gpu": "kvplan validate; GPU and driver below",
    "hub": "--hub with the token of a stored log-in",
    "gguf": "the GGUF tests; reading .gguf files needs no package",
    "plot": "--plot",
    "sweep": "kvplan sweep --format parquet",
    "ray": "kvplan sweep on a Ray cluster",
    "web": "kvplan serve",
    "mcp": "kvplan mcp",
}


@record
class Package:
    """A package of an extra: what is required, and the installed version, None where it is missing."""

    name: str
    required: str
    installed: str | None
    enough: bool


@record
class Extra:
    """An extra of the distribution and what it enables; `installed` says that all its packages are there."""

    name: str
    enables: str
    installed: bool
    packages: tuple[Package, ...]


@record
class Device:
    """One device as the driver names it."""

    name: str
    memory_bytes: int | None


@record
class Devices:
    """The devices and the driver's version; `unknown` says why nothing could be asked."""

    driver: str | None
    devices: tuple[Device, ...]
    unknown: str | None


@record
class Registry:
    """The shipped data. `current` says that the index belongs to the specs; `problem` what is wrong otherwise."""

    folder: str
    models: int
    accelerators: int
    current: bool
    problem: str | None


@record
class Setting:
    """One setting of the environment with what it means here."""

    name: str
    value: str | None
    meaning: str


@record
class Installation:
    """All of it, as `kvplan doctor --json` prints it."""

    schema_version: int
    command: str
    version: str
    python: str
    platform: str
    distribution: str | None
    extras: tuple[Extra, ...]
    gpu: Devices
    registry: Registry
    settings: tuple[Setting, ...]

    @property
    def healthy(self) -> bool:
        """Whether kvplan can answer: a missing extra or GPU is no fault, a damaged registry is."""
        return self.registry.current


def inspect_installation() -> Installation:
    """Look at this installation. Opens no connection, starts no process and imports no extra but pynvml."""
    return Installation(
        1, "doctor", kvplan.__version__, platform.python_version(), f"{platform.system()} {platform.machine()}",
        _version(DISTRIBUTION), extras(), devices(), registry(), settings(),
    )  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def extras() -> tuple[Extra, ...]:
    """The extras that add a feature, by the distribution's own metadata; none where it isn't installed as one."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ()
    found: dict[str, list[Package]] = {name: [] for name in ENABLES}
    for line in required:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*;.*\bextra == ['\"]([\w-]+)['\"]", line)
        if match and match[3] in found:
            found[match[3]].append(_package(match[1], match[2]))
    return tuple(
        Extra(name, ENABLES[name], all(package.enough for package in packages), tuple(packages))
        for name, packages in found.items()
        if packages
    )


def _package(name: str, required: str) -> Package:
    version = _version(name)
    least = re.search(r">=\s*([\d.]+)", required)
    enough = version is not None and (least is None or _release(version) >= _release(least[1]))
    return Package(name, required, version, enough)


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def devices(nvml: Any = None) -> Devices:
    """The devices that NVML lists. Never raises. `nvml` is the pynvml module, imported when not given."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Devices(None, (), "the package nvidia-ml-py (extra `gpu`) is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Devices(None, (), f"the driver offers no NVML ({error})")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = tuple(Device(_text(nvml.nvmlDeviceGetName(handle)), _memory(nvml, handle)) for handle in handles)
        return Devices(_text(nvml.nvmlSystemGetDriverVersion()), found, None)
    except nvml.NVMLError as error:
        return Devices(None, (), f"NVML lists no devices ({error})")
    finally:
        nvml.nvmlShutdown()


def _memory(nvml: Any, handle: Any) -> int | None:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def registry() -> Registry:
    """Validate every shipped spec and hold the index beside them against it."""
    from kvplan.hardware.accelerators import all_accelerators
    from kvplan.spec.registry import INDEX_NAME, build_index

    try:
        folder = data_dir("model_specs")
    except InputError as error:
        return Registry("", 0, 0, False, str(error))
    try:
        models, accelerators = build_index(folder), len(all_accelerators())
        shipped = json.loads((folder / INDEX_NAME).read_text(encoding="utf-8"))
    except (InputError, OSError, ValueError) as error:
        return Registry(str(folder), 0, 0, False, str(error))
    current = shipped == models
    problem = None if current else f"{INDEX_NAME} is not the one of these specs: run `kvplan models index {folder}`"
    return Registry(str(folder), len(models["models"]), accelerators, current, problem)


def settings() -> tuple[Setting, ...]:
    """What the environment sets. A token is never shown, only that there is one."""
    from kvplan.check.cache import default_folder

    def told(name: str) -> str | None:
        return os.environ.get(name) or None

    models, endpoint = told("KVPLAN_MODEL_PATH"), told("HF_ENDPOINT")
    return (
        Setting("KVPLAN_MODEL_PATH", models, _model_path(models or "")),
        Setting("KVPLAN_CACHE_DIR", told("KVPLAN_CACHE_DIR"), f"answers of kvplan check: {default_folder()}"),
        Setting("HF_ENDPOINT", endpoint and re.sub(r"//[^/@]*@", "//", endpoint), "where --hub asks"),
        Setting("HF_TOKEN", "set" if told("HF_TOKEN") else None, "sent with --hub"),
        Setting("KVPLAN_QUIET", told("KVPLAN_QUIET"), "as kvplan --quiet"),
        Setting("NO_COLOR", told("NO_COLOR"), "no colours" if told("NO_COLOR") else "colours on a terminal"),
    )


def _model_path(value: str) -> str:
    folders = [Path(part) for part in value.split(os.pathsep) if part]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        return f"no such folder: {', '.join(missing)}"
    return f"{len(folders)} folders of your own model specs" if folders else "no model specs of your own"
