"""What the device itself can do: copy and read ceilings, matrix products, the link to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.hardware.profile import Way
from kvplan.units import GIB, KIB, MIB
from kvplan.validate.device import Device
from kvplan.validate.fit import Line, fit_line, summary

BLOCK_SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)


@dataclass(frozen=True)
class Pace:
    """How often a call is made before and while it is timed."""

    warm: int
    repeats: int


def pace(device: Device, full: bool) -> Pace:
    """At least 10 warm and 30 timed calls on a GPU, whose clocks ramp; a few on a CPU."""
    if device.kind == "cuda":
        return Pace(10, 50 if full else 30)
    return Pace(1, 7 if full else 3)


@dataclass(frozen=True)
class Rate:
    """A rate in units a second: median and half the 10-to-90 percentile spread of the seconds behind it."""

    per_second: float
    seconds: float
    spread: float


def rate(amount: float, samples: Sequence[float]) -> Rate:
    seconds, spread = summary(samples)
    return Rate(amount / seconds, seconds, spread)


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second of a large copy (reads and writes counted) and of a reduction that only reads."""

    copy: Rate
    read: Rate
    size: int


def ceilings(device: Device, generator: Any, full: bool) -> Ceilings:
    """Measure both on buffers well beyond any cache, filled with random values (zeros run faster)."""
    size = min(4 * GIB, device.free_bytes // 4) if device.kind == "cuda" else 64 * MIB
    count = size // 4
    source = device.empty((count,), "float32").normal_(generator=generator)
    target = device.empty((count,), "float32")
    at = pace(device, full)
    copied = rate(2 * count * 4, device.time_calls(lambda number: target.copy_(source), at.warm, at.repeats))
    read = rate(count * 4, device.time_calls(lambda number: source.sum(), at.warm, at.repeats))
    return Ceilings(copied, read, count * 4)


@dataclass(frozen=True)
class Product:
    """One matrix product [m, k] x [k, n]: FLOP a second, two for each multiply-add."""

    m: int
    n: int
    k: int
    flops: Rate


def products(device: Device, generator: Any, full: bool) -> Iterator[Product]:
    """bf16 products of a few heights on random values, from one decode row to a prefill."""
    side = 4096 if device.kind == "cuda" else 512
    heights = (1, 16, 256, 1024, 4096) if device.kind == "cuda" else (1, 256)
    weight = device.empty((side, side), "bfloat16").normal_(generator=generator)
    at = pace(device, full)
    for height in heights:
        rows = device.empty((height, side), "bfloat16").normal_(generator=generator)
        samples = device.time_calls(lambda number, rows=rows: rows @ weight, at.warm, at.repeats)  # type: ignore[misc]
        yield Product(height, side, side, rate(2 * height * side * side, samples))


@dataclass(frozen=True)
class Link:
    """One direction of the host link: seconds by block size, and the line through them."""

    name: Way
    sizes: list[int]
    seconds: list[float]
    line: Line


def host_links(device: Device, full: bool) -> Iterator[Link]:
    """Pinned copies to the device, from it, and both at once (bytes of both counted), over block sizes.

    Yields nothing on a CPU, which has no link.
    """
    if device.kind != "cuda":
        return
    torch = device.torch
    most = BLOCK_SIZES[-1]
    host_in, host_out = (torch.empty(most, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    inward, outward = (device.empty((most,), "uint8") for _ in range(2))
    other = torch.cuda.Stream(device.handle)

    def both(size: int) -> None:
        other.wait_stream(torch.cuda.current_stream(device.handle))
        inward[:size].copy_(host_in[:size], non_blocking=True)
        with torch.cuda.stream(other):
            host_out[:size].copy_(outward[:size], non_blocking=True)
        torch.cuda.current_stream(device.handle).wait_stream(other)

    ways: dict[Way, tuple[Any, int]] = {
        "host to device": (lambda size: inward[:size].copy_(host_in[:size], non_blocking=True), 1),
        "device to host": (lambda size: host_out[:size].copy_(outward[:size], non_blocking=True), 1),
        "both at once": (both, 2),
    }
    at = pace(device, full)
    for name, (move, times) in ways.items():
        seconds = []
        for size in BLOCK_SIZES:
            samples = device.time_calls(lambda number, move=move, size=size: move(size),  # type: ignore[misc]
                                        at.warm, at.repeats)  # fmt: skip
            seconds.append(summary(samples)[0])
        sizes = [size * times for size in BLOCK_SIZES]
        yield Link(name, sizes, seconds, fit_line(sizes, seconds))
