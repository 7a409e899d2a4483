"""Storage formats of weights as data (`weight_formats.yaml`): exact bits a weight, scales included."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.files import parse_yaml, read_text
from kvplan.record import record
from kvplan.spec.model import WeightQuantization

FORMATS_PATH = Path(__file__).with_name("weight_formats.yaml")
DEFAULT_PACKS = ("attention", "dense_mlp", "experts", "shared_experts")


@record
class WeightFormat:
    """`bits` of payload a weight, and `scale_bits` + `zero_bits` once per `group` weights."""

    name: str
    bits: int
    says: str
    scale_bits: int = 0
    zero_bits: int = 0
    group: int = 1

    @property
    def bits_per_weight(self) -> Fraction:
        return self.bits + Fraction(self.scale_bits + self.zero_bits, self.group)


@record
class Method:
    """What one quantization method stores: a format by payload bits, one for block scales, the parts it packs.

    `mixed` says that layers differ and the config's summary doesn't tell which has which.
    """

    by_bits: dict[int, str]
    block: str | None = None
    packs: tuple[str, ...] = DEFAULT_PACKS
    mixed: bool = False


@cache
def _tables() -> tuple[dict[str, WeightFormat], dict[str, Method], dict[int, str]]:
    data: Any = parse_yaml(read_text(FORMATS_PATH), FORMATS_PATH.name)
    formats = {name: WeightFormat(name=name, **entry) for name, entry in data["formats"].items()}
    methods = {
        name: Method(
            entry["by_bits"],
            entry.get("block"),
            tuple(entry.get("packs", DEFAULT_PACKS)),
            entry.get("mixed", False),
        )
        for name, entry in data["methods"].items()
    }
    return formats, methods, data["experts"]


def weight_formats() -> dict[str, WeightFormat]:
    """Every known format by name."""
    return _tables()[0]


def weight_methods() -> tuple[str, ...]:
    """Every known method by name."""
    return tuple(_tables()[1])


def method_format(quantization: WeightQuantization) -> tuple[WeightFormat | None, tuple[str, ...]]:
    """The format a checkpoint stores its linear layers in, and the parts it packs; None when it isn't known.

    Group size and block shape of the checkpoint win over the format's own; without a width the widest format counts.
    """
    formats, methods, _ = _tables()
    name = quantization.method.lower()
    method = methods.get(name)
    if method is None:  # a method that names its float format, such as nvfp4-pack-quantized or MIXED_NVFP4
        named = next((known for known in ("nvfp4", "mxfp4", "mxfp8") if known in name), None)
        return (formats[named] if named else None), DEFAULT_PACKS
    if quantization.block_shape is not None and method.block is not None:
        rows, columns = quantization.block_shape
        return replace(formats[method.block], group=rows * columns), method.packs
    chosen = method.by_bits.get(quantization.bits or max(method.by_bits))
    if chosen is None:
        return None, method.packs
    return _grouped(formats[chosen], quantization.group_size), method.packs


def mixed(quantization: WeightQuantization) -> bool:
    """Whether the method stores some layers otherwise than others."""
    method = _tables()[1].get(quantization.method.lower())
    return method is not None and method.mixed


def expert_format(bits: int, group: int | None) -> WeightFormat | None:
    """The format of experts stored narrower than the rest: NVFP4 where the groups hold 16 weights, else MXFP4."""
    formats, _, experts = _tables()
    if bits == 4 and group == 16:
        return formats["nvfp4"]
    name = experts.get(bits)
    return None if name is None else formats[name]


def _grouped(weight_format: WeightFormat, group: int | None) -> WeightFormat:
    scaled = weight_format.scale_bits + weight_format.zero_bits > 0
    return replace(weight_format, group=group) if scaled and group else weight_format
