"""Factors that turn nominal rates into reached ones, read from factors.yaml beside this file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, did_you_mean, show

if TYPE_CHECKING:
    from kvplan.hardware.accelerators import Accelerator
    from kvplan.hardware.profile import DeviceProfile

DATA_FILE = Path(__file__).with_name("factors.yaml")
ROOFLINE = "roofline"
FALLBACK = "other"


@dataclass(frozen=True)
class Factors:
    """Shares in (0, 1], times in seconds. The tables are (size, share) points in rising order of size.

    `scale` multiplies every step: the one constant that a calibration run fits.
    """

    name: str
    gemm_mbu: float
    gemm_mfu: tuple[tuple[float, float], ...]
    prefill_mfu: tuple[tuple[float, float], ...]
    decode_share: Mapping[int, float]
    decode_start: Mapping[int, float]
    sequence_floor: float
    host: float
    link_share: float
    all_reduce: float
    source: str
    scale: float = 1.0

    def gemm_efficiency(self, tokens: int) -> float:
        """Share of the dense rate that a linear layer of `tokens` rows reaches."""
        return _between(self.gemm_mfu, tokens)

    def prefill_efficiency(self, context: int) -> float:
        """Share of the dense rate that causal prefill attention over `context` tokens reaches."""
        return _between(self.prefill_mfu, context)


def _between(points: Sequence[tuple[float, float]], size: float) -> float:
    """The value at `size`, straight between points on a logarithmic axis and flat beyond them."""
    if size <= points[0][0]:
        return points[0][1]
    for (low, left), (high, right) in pairwise(points):
        if size <= high:
            return left + (right - left) * math.log(size / low) / math.log(high / low)
    return points[-1][1]


@cache
def all_factors() -> dict[str, tuple[tuple[str, ...], Factors]]:
    """Every set of factors by name, with the devices it was measured on."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, dict[str, Any]] = yaml.load(DATA_FILE.read_bytes(), Loader=loader)  # noqa: S506
    return {name: (tuple(entry["devices"]), _factors(name, entry)) for name, entry in data.items()}


def _factors(name: str, entry: Mapping[str, Any]) -> Factors:
    return Factors(
        name=name,
        gemm_mbu=entry["gemm_mbu"],
        gemm_mfu=tuple((size, share) for size, share in entry["gemm_mfu"]),
        prefill_mfu=tuple((size, share) for size, share in entry["prefill_mfu"]),
        decode_share=dict(entry["decode_share"]),
        decode_start={bits: time * 1e-6 for bits, time in entry["decode_start_us"].items()},
        sequence_floor=entry["sequence_floor_us"] * 1e-6,
        host=entry["host_ms"] * 1e-3,
        link_share=entry["link_share"],
        all_reduce=entry["all_reduce_us"] * 1e-6,
        source=entry["source"],
    )


def with_profile(factors: Factors, profile: DeviceProfile, device: Accelerator) -> Factors:
    """`factors` with what a device profile measured in its place: decode attention by dtype, and linear layers.

    Shares stay relative to the data sheet's rates, which the step model multiplies them with.
    """
    share, start = dict(factors.decode_share), dict(factors.decode_start)
    for bits, dtypes in ((16, ("bf16", "fp16")), (8, ("fp8", "int8"))):
        line = next((line for line in map(profile.attention_line, dtypes) if line is not None), None)
        if line is not None:
            share[bits] = line.bytes_per_second / device.memory_bandwidth
            start[bits] = line.t0_seconds
    by_rows: dict[int, list[float]] = {}
    for product in profile.gemm:
        if device.bf16_flops is not None:
            by_rows.setdefault(product.m, []).append(product.flops_per_second / device.bf16_flops)
    # A product of few rows is bound by its weights: its rate says what share of the bandwidth it reaches.
    compute = tuple((float(rows), median(rates)) for rows, rates in sorted(by_rows.items()) if rows >= 256)
    loads = [
        product.flops_per_second / (2 * product.m) * 2 / device.memory_bandwidth
        for product in profile.gemm
        if product.m <= 64
    ]
    return replace(
        factors,
        name=f"{factors.name} with the profile of {profile.device}",
        decode_share=share,
        decode_start=start,
        gemm_mfu=compute or factors.gemm_mfu,
        gemm_mbu=median(loads) if loads else factors.gemm_mbu,
        source=f"measured on {profile.device}, {profile.recorded}: {profile.how}; the rest: {factors.source}",
    )


def find_factors(device: str, model: str = "calibrated") -> Factors:
    """The factors for the accelerator of slug `device`: "calibrated" or "roofline".

    A device without measurements takes those of another, and its `source` says so. Raises InputError for another name.
    """
    known = all_factors()
    if model == ROOFLINE:
        return known[ROOFLINE][1]
    if model != "calibrated":
        names = ("calibrated", ROOFLINE)
        raise InputError(f"step_time: found {show(model)}, expected calibrated or roofline{did_you_mean(model, names)}")
    for devices, factors in known.values():
        if device in devices:
            return factors
    return known[FALLBACK][1]
