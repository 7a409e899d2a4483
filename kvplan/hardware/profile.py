"""A device profile: what was measured on one device, for those who predict with it instead of with a datasheet.

Written by `kvplan validate --save-profile`, read wherever `--profile` is taken. One YAML file a device.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from kvplan.errors import InputError, show
from kvplan.files import parse_yaml, read_text, write_text_atomic
from kvplan.hardware.accelerators import Positive
from kvplan.spec.layers import Whole

MAX_BYTES = 10**15

Way: TypeAlias = Literal["host to device", "device to host", "both at once"]
Bytes = Annotated[int, Whole(high=MAX_BYTES)]
BytesOrZero = Annotated[int, Whole(low=0, high=MAX_BYTES)]
PerSecond = Annotated[float, Positive(10**18)]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Bounds of a fixed cost, in the form pydantic asks of a metadata object: 0 to a minute, no strings."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "ge": 0, "le": 60, "strict": True}


Delay = Annotated[float, Seconds()]


@dataclass(frozen=True)
class AttentionProfile:
    """Decode attention of one layer: seconds = t0_seconds + bytes / bytes_per_second, one line a cache dtype.

    `efficiency` is bytes_per_second over the copy ceiling.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    part: Literal["K+V", "latent"]
    dtype: str
    t0_seconds: Delay
    bytes_per_second: PerSecond
    efficiency: Annotated[float, Positive(100)]


@dataclass(frozen=True)
class GemmProfile:
    """One bf16 product [m, k] x [k, n]: FLOP a second, two for each multiply-add."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    m: Annotated[int, Whole()]
    n: Annotated[int, Whole()]
    k: Annotated[int, Whole()]
    flops_per_second: PerSecond


@dataclass(frozen=True)
class LinkProfile:
    """One way of the host link: seconds of a block = latency_seconds + bytes / bytes_per_second."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: Way
    latency_seconds: Delay
    bytes_per_second: PerSecond


@dataclass(frozen=True)
class DeviceProfile:
    """One device as measured. `accelerator` is its slug where kvplan knows it; `how` says what measured it.

    `usable_bytes` was free to a process once it had its context, which costs `context_bytes` (None where the driver
    keeps it to itself). The ceilings are bytes a second, reads and writes counted in a copy.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    schema_version: Literal[1]
    device: str
    kind: Literal["cuda", "cpu"]
    recorded: str
    how: str
    total_bytes: Bytes
    usable_bytes: Bytes
    copy_bytes_per_second: PerSecond
    read_bytes_per_second: PerSecond
    accelerator: str | None = None
    slice: str | None = None
    context_bytes: BytesOrZero | None = None
    attention: tuple[AttentionProfile, ...] = ()
    gemm: tuple[GemmProfile, ...] = ()
    links: tuple[LinkProfile, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def attention_line(self, dtype: str, part: str = "K+V") -> AttentionProfile | None:
        """The line measured for that cache dtype, None where it wasn't."""
        return next((line for line in self.attention if (line.part, line.dtype) == (part, dtype)), None)

    def link(self, name: str) -> LinkProfile | None:
        """That way of the host link, None where it wasn't measured."""
        return next((link for link in self.links if link.name == name), None)


def load_profile(path: Path) -> DeviceProfile:
    """Read a profile. Raises InputError naming the field at fault."""
    from pydantic import TypeAdapter, ValidationError

    data = parse_yaml(read_text(path), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: found {show(data)} at the top, expected the fields of a device profile")
    try:
        return TypeAdapter(DeviceProfile).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: found {show(first['input'])}, {first['msg'].lower()}") from None


def save_profile(path: Path, profile: DeviceProfile) -> None:
    """Write a profile as YAML, whole or not at all. Raises InputError where the folder can't be written."""
    import yaml

    data = {
        name: [dict(item) for item in value] if isinstance(value, tuple) else value
        for name, value in asdict(profile).items()
        if value not in (None, (), {})
    }
    write_text_atomic(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
