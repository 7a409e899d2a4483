"""Accelerators as deployment files name them: labels, instance types, resources, variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.check.manifests.reading import AcceleratorReading
from kvplan.engines.commands import Word
from kvplan.errors import InputError
from kvplan.hardware.accelerators import find

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
           "ASCEND_RT_VISIBLE_DEVICES")  # fmt: skip
_SLICE = re.compile(r"[-_]?mig[-_].*$", re.IGNORECASE)


@cache
def catalog() -> dict[str, Any]:
    """devices.yaml: how files name accelerators."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    path = Path(__file__).with_name("devices.yaml")
    loaded: dict[str, Any] = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506
    return loaded


@dataclass(frozen=True, slots=True)
class Named:
    """A device that a text names: its name in `kvplan gpus list`, and a doubt where the text fits several."""

    name: str | None
    doubt: str | None = None


def named_device(text: str) -> Named | None:
    """The device behind a product name; None when the text names none that is known."""
    key = re.sub(r"[\s_]+", "-", text.strip().lower())
    if not key or len(key) > 100:
        return None
    plain = _SLICE.sub("", key)
    spelled = catalog()["names"].get(plain, plain)
    try:
        device = find(str(spelled))
    except InputError as error:
        return Named(None, f"{text} is several devices") if "several devices" in str(error) else None
    return Named(device.name, catalog()["shared_names"].get(plain))


def instance_device(instance: str) -> tuple[str, int | None] | None:
    """The device in a cloud's instance type, and how many it has."""
    text = instance.strip().lower()
    if len(text) > 100:
        return None
    for row in catalog()["instances"]:
        match = re.fullmatch(row["type"], text)
        if match:
            count = row.get("count", int(match.group(1)) if match.groups() else None)
            return find(row["device"]).name, count
    return None


def family_device(family: str) -> str | None:
    """The device of an instance family such as p5."""
    slug = catalog()["families"].get(family.strip().lower())
    return find(slug).name if slug else None


def from_labels(labels: Mapping[str, str], count: int | None) -> AcceleratorReading | None:
    """The device that node labels ask for. A product label states it, an instance type lets it be inferred."""
    for key in catalog()["product_labels"]:
        for label, value in labels.items():
            if label == key and _SLICE.search(value):
                return AcceleratorReading(None, count, f"{label}: {value}", "unknown: a slice of a device")
            if label == key and (device := named_device(value)):
                certainty = "stated" if device.name and not device.doubt else f"inferred: {device.doubt}"
                if key != "gpu" and "/" in key and device.name:
                    certainty = "stated"
                return AcceleratorReading(
                    device.name, count, f"{label}: {value}", certainty if device.name else "unknown"
                )
    for label, value in labels.items():
        if label in catalog()["instance_labels"] and (found := instance_device(value)):
            name, held = found
            size = f" ({held} x {name})" if held else ""
            asked = f"; {count} requested" if count is not None else ""
            stated = f"{label.rpartition('/')[2]} {value}{size}{asked}"
            return AcceleratorReading(name, count if count is not None else held, stated, "inferred")
        if label in catalog()["family_labels"] and (device_name := family_device(value)):
            return AcceleratorReading(device_name, count, f"{label}: {value}", "inferred")
    return None


def resource_count(resources: Mapping[str, str]) -> tuple[str, int | None] | None:
    """The accelerator resource that a container asks for, and how many; a part of a device counts as unknown."""
    for name, value in resources.items():
        if name in catalog()["resources"] or re.fullmatch(catalog()["slices"], name):
            return name, int(value) if value.isdecimal() and len(value) < 6 else None
    return None


def visible_devices(environment: Mapping[str, Word | str | None]) -> tuple[str, tuple[str, ...]] | None:
    """The variable that picks devices and the ids it picks; no ids for `all`, and None when nothing picks."""
    for name in VISIBLE:
        value = environment.get(name)
        if value is None or (isinstance(value, Word) and value.unknown):
            continue
        text = value.text if isinstance(value, Word) else value
        ids = tuple(part.strip() for part in text.split(",") if part.strip())
        if text.strip().lower() in ("all", "void", "none", ""):
            continue
        return name, ids
    return None


def read_gpu_spec(text: str) -> tuple[str | None, int | None]:
    """`H100:8`, `8xH100`, `h100:8`, `8`: a device name and a count."""
    match = re.fullmatch(r"\s*(?:(\d{1,4})\s*[xX]\s*)?([A-Za-z][\w. -]*?)?(?::(\d{1,4}))?\s*", text)
    if text.strip().isdecimal():
        return None, int(text.strip()[:6])
    if match is None:
        return None, None
    count = match.group(1) or match.group(3)
    return match.group(2), int(count) if count else None


def from_name(text: str, count: int | None, stated: str) -> AcceleratorReading:
    """The device that a field names outright, such as `accelerators: {H200: 8}`."""
    device = named_device(text)
    if device is None or device.name is None:
        return AcceleratorReading(None, count, stated, "unknown")
    return AcceleratorReading(device.name, count, stated, f"inferred: {device.doubt}" if device.doubt else "stated")


def first_known(readings: Iterable[AcceleratorReading | None]) -> AcceleratorReading | None:
    """The first reading that names a device, else the first at all."""
    found = [reading for reading in readings if reading is not None]
    return next((reading for reading in found if reading.name), found[0] if found else None)
