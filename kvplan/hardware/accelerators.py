"""Accelerators: device memory, bandwidth, arithmetic rates and links, read from accelerators.yaml beside this file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from kvplan.errors import InputError, nearest, show
from kvplan.files import parse_yaml, read_text

DATA_FILE = Path(__file__).with_name("accelerators.yaml")

MIB = 1 << 20
GIGA = 1e9
TERA = 1e12

_MAKERS = ("nvidia-", "geforce-", "tesla-", "amd-", "instinct-", "radeon-", "intel-", "apple-", "google-", "aws-")
_SIZED = re.compile(r"(.+)-([0-9]{1,4})gb")


@dataclass(frozen=True, slots=True)
class Positive:
    """Bounds of a figure, in the form pydantic asks of a metadata object: above zero, at most `high`, no strings."""

    high: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "gt": 0, "le": self.high, "strict": True}


Rate = Annotated[float, Positive(10**6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. The fields are as accelerators.yaml has them (GB, GB/s, TFLOPs); the properties are bytes,
    bytes/s and FLOP/s. None means unknown, or that the device has no such thing.

    The arithmetic rates are dense. `pcie_bandwidth` is one way; `device_link_bandwidth` (NVLink and its like) and
    `c2c_bandwidth` (the CPU link of the Grace parts) count both ways together.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    slug: str
    name: str
    vendor_class: str
    memory_gb: Annotated[int, Positive(10**5)]
    memory_type: str
    source: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    compute_capability: str | None = None
    memory_mib_driver: Annotated[int, Positive(10**8)] | None = None
    memory_mib_driver_recalled: bool = False
    memory_bandwidth_gbs: Rate
    bf16_tflops: Rate | None = None
    fp8_tflops: Rate | None = None
    fp4_tflops: Rate | None = None
    pcie_gbs: Rate | None = None
    device_link_gbs: Rate | None = None
    c2c_gbs: Rate | None = None
    note: str | None = None

    @property
    def memory_bytes_driver(self) -> int | None:
        """The total that the driver reports, in bytes. A framework can allocate some hundred MiB less."""
        return None if self.memory_mib_driver is None else self.memory_mib_driver * MIB

    @property
    def memory_bytes_marketing(self) -> int:
        """The size as sold, in bytes, a GB being 10^9: no more than what is there."""
        return self.memory_gb * 10**9

    @property
    def memory_bytes(self) -> int:
        """The device memory to plan with: the driver's total where it is known, else the size as sold."""
        return self.memory_bytes_marketing if self.memory_bytes_driver is None else self.memory_bytes_driver

    @property
    def memory_source(self) -> str:
        """Where `memory_bytes` comes from, as a sentence without a full stop."""
        shared = ", shared with the CPU" if "unified" in self.memory_type else ""
        if self.memory_mib_driver is None:
            return f"{self.memory_gb} GB as sold, read as 10^9 bytes each since the driver's total is unknown{shared}"
        doubt = " (recalled, not read off a printout)" if self.memory_mib_driver_recalled else ""
        return f"{self.memory_mib_driver:,} MiB, the total that the driver reports{doubt}{shared}"

    @property
    def memory_bandwidth(self) -> float:
        """Nominal memory bandwidth in bytes/s."""
        return self.memory_bandwidth_gbs * GIGA

    @property
    def bf16_flops(self) -> float | None:
        """Dense bf16 (fp16 on devices without bf16) FLOP/s."""
        return _scaled(self.bf16_tflops, TERA)

    @property
    def fp8_flops(self) -> float | None:
        """Dense fp8 FLOP/s."""
        return _scaled(self.fp8_tflops, TERA)

    @property
    def fp4_flops(self) -> float | None:
        """Dense fp4 FLOP/s."""
        return _scaled(self.fp4_tflops, TERA)

    @property
    def pcie_bandwidth(self) -> float | None:
        """PCIe bandwidth in bytes/s, one way."""
        return _scaled(self.pcie_gbs, GIGA)

    @property
    def device_link_bandwidth(self) -> float | None:
        """Device-to-device link in bytes/s, both ways together."""
        return _scaled(self.device_link_gbs, GIGA)

    @property
    def c2c_bandwidth(self) -> float | None:
        """CPU-GPU link in bytes/s, both ways together."""
        return _scaled(self.c2c_gbs, GIGA)


def _scaled(figure: float | None, factor: float) -> float | None:
    return None if figure is None else figure * factor


def _fold(name: str) -> str:
    return re.sub(r"[\s_/()-]+", "-", name.strip().lower()).strip("-")


@cache
def all_accelerators() -> tuple[Accelerator, ...]:
    """Every known device, in the order of accelerators.yaml."""
    import yaml

    # The file ships with kvplan and `validate` holds it in the tests, so the strict reader's second pass is saved here.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    devices = yaml.load(DATA_FILE.read_bytes(), Loader=loader)  # noqa: S506 (a SafeLoader either way)
    return tuple(_device(slug, entry) for slug, entry in devices.items())


def _device(slug: str, entry: dict[str, Any]) -> Accelerator:
    lists: dict[str, Any] = {key: tuple(entry[key]) for key in ("aliases", "source") if key in entry}
    return Accelerator(slug=slug, **{**entry, **lists})


@cache
def _by_name() -> dict[str, Accelerator]:
    return {
        _fold(name): device for device in all_accelerators() for name in (device.slug, device.name, *device.aliases)
    }


def names() -> list[str]:
    """Every slug and alias, sorted, for shell completion."""
    return sorted(spelling for device in all_accelerators() for spelling in (device.slug, *device.aliases))


def find(name: str, field: str = "--gpu") -> Accelerator:
    """Look a device up by slug, alias or full name.

    Case, spaces, `-`, `_` and brackets don't matter, a maker's name may stand before it (`NVIDIA GeForce RTX 3090`),
    and the size as sold may follow (`H200 141GB`). Raises InputError, which `field` opens, when nothing or more than
    one device answers to `name`.
    """
    known = _by_name()
    key = _fold(name)
    while key not in known and (maker := next((maker for maker in _MAKERS if key.startswith(maker)), None)):
        key = key.removeprefix(maker)
    if key in known:
        return known[key]
    sized = _SIZED.fullmatch(key)
    stem, size = (sized[1], int(sized[2])) if sized else (key, None)
    fitting = {spelling: device for spelling, device in known.items() if size in (None, device.memory_gb)}
    if stem in fitting:
        return fitting[stem]
    family = list(dict.fromkeys(device.slug for spelling, device in fitting.items() if spelling.startswith(f"{stem}-")))
    if len(family) > 1:
        raise InputError(f"{field}: found {show(name)}, which is several devices, expected one of {', '.join(family)}")
    close = list(dict.fromkeys(known[match].slug for match in nearest(key, known, count=12)))[:3]
    hint = f"; nearest: {', '.join(close)}" if close else ""
    raise InputError(f"{field}: found the unknown device {show(name)}, expected a name from `kvplan gpus list`{hint}")


def validate(path: Path = DATA_FILE) -> None:
    """Check a file of accelerators: its fields, bounds and types, strictly.

    Raises InputError naming the device and the field at fault.
    """
    from pydantic import TypeAdapter, ValidationError

    entries = parse_yaml(read_text(path), str(path))
    if not isinstance(entries, dict):
        raise InputError(f"{path}: found a {type(entries).__name__} at the top, expected a mapping of slug to device")
    adapter = TypeAdapter(Accelerator)
    for slug, entry in entries.items():
        if not isinstance(entry, dict):
            raise InputError(f"{path}: {show(slug)}: found {show(entry)}, expected the fields of one device")
        try:
            adapter.validate_python({"slug": slug, **entry})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in (slug, *first["loc"]))
            raise InputError(f"{path}: {place}: found {show(first['input'])}, {first['msg'].lower()}") from None
