"""Decode attention over lengths: bytes really read against time, a line through some lengths, the others predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvplan.cache.layout import KV, LATENT
from kvplan.cache.precision import resolve_precision
from kvplan.cache.techniques.paging import TABLE_ENTRY_BYTES
from kvplan.errors import InputError
from kvplan.spec.model import ModelSpec
from kvplan.units import MIB
from kvplan.validate.attention import pool_problem
from kvplan.validate.device import Device
from kvplan.validate.fit import Line, fit_line, summary
from kvplan.validate.groups import PoolGroup, pool_groups
from kvplan.validate.kernels.backends import Backend, own_backend
from kvplan.validate.kernels.problem import Decode, shuffled_table
from kvplan.validate.kernels.triton_decode import LAUNCHES, Launch, TritonDecode
from kvplan.validate.pools import GroupPool, allocate_layer
from kvplan.validate.timing import pace

CACHE_FACTOR = 5  # a pool below five times L2 measures the cache
CPU_CACHE_BYTES = 6 * MIB
ROTATION = 64
FEWEST_SHAPES = 3


@dataclass(frozen=True)
class Point:
    """One shape: `bytes` really read and written in a step of one layer, its median seconds and spread."""

    batch: int
    length: int
    bytes: int
    seconds: float
    spread: float

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Sweep:
    """All points of one part and dtype, the line fitted without the held-out ones, and how far off it is on those."""

    name: str
    part: str
    dtype: str
    points: tuple[Point, ...]
    held_out: tuple[Point, ...]
    line: Line
    launch: Launch | None

    def predicted(self, point: Point) -> float:
        return self.line.seconds(point.bytes)


class Bench:
    """One layer's pool of `budget` bytes, filled, from which steps of any batch and length are cut.

    Steps rotate through disjoint blocks, so that no call finds its pages in the cache.
    """

    def __init__(self, device: Device, group: PoolGroup, budget: int, generator: Any) -> None:
        self.device, self.group, self.generator = device, group, generator
        one = replace(group, layers=1)
        self.blocks = max(1, budget // one.bytes(1))
        tensors = allocate_layer(device, group.entry, self.blocks, group.entries_per_block)
        tensors.fill(device.torch, generator)
        self.pool = GroupPool(one, self.blocks, [tensors])
        self.template = pool_problem(device, self.pool, generator, group.block_tokens)

    def close(self) -> None:
        """Drop the tensors."""
        self.pool.layers.clear()
        del self.template
        self.device.release()

    def steps(self, batch: int, length: int, shuffle: bool = True) -> list[Decode]:
        """As many disjoint steps as the pool holds, up to ROTATION. Raises InputError when it holds none."""
        torch, device, page = self.device.torch, self.device.handle, self.group.block_tokens
        each = batch * -(-length // page)
        copies = min(ROTATION, self.blocks // each)
        if copies == 0:
            raise InputError(
                f"--pool: found room for {self.blocks} blocks, expected {each} for {batch} x {length:,} tokens"
            )
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        if shuffle:
            table = shuffled_table(torch, self.blocks, [length] * batch * copies, page, self.generator, device)
        else:
            table = torch.arange(each * copies, dtype=torch.int32, device=device).reshape(batch * copies, -1)
        shape = (batch, *self.template.query.shape[1:])
        query = self.device.empty(shape, "bfloat16").normal_(generator=self.generator)
        step = replace(self.template, query=query)
        return [step.with_table(part.contiguous(), lengths) for part in table.split(batch)]

    def measure(self, batch: int, length: int, backend: Backend, full: bool, shuffle: bool = True) -> Point:
        """Time one shape over rotated steps."""
        steps = self.steps(batch, length, shuffle)
        return self.time_steps(steps, length, backend, full)

    def time_steps(self, steps: Sequence[Decode], length: int, backend: Backend, full: bool) -> Point:
        """Time `steps` in turn with one prepared kernel where it can take other pages, else one each."""
        prepared = backend.prepare(steps[0])
        calls: list[Callable[[], Any]]
        if isinstance(prepared, TritonDecode):
            calls = [partial(prepared, step) for step in steps]
            workspace = 2 * prepared.workspace_bytes  # partial outputs are written once and read once
        else:
            calls = [prepared, *(backend.prepare(step) for step in steps[1:])]
            workspace = 0
        at = pace(self.device, full)
        samples = self.device.time_calls(lambda number: calls[number % len(calls)](), at.warm, at.repeats)
        seconds, spread = summary(samples)
        batch = int(steps[0].lengths.numel())
        return Point(batch, length, self.read_bytes(steps[0]) + workspace, seconds, spread)

    def read_bytes(self, step: Decode) -> int:
        """Bytes one step moves: its tokens with their scales, the table, the query, the output."""
        tokens = step.attended()
        page = self.group.block_tokens
        table = sum(-(-length // page) for length in step.lengths.tolist()) * TABLE_ENTRY_BYTES
        query = step.query.numel() * step.query.element_size()
        out = step.query.shape[0] * step.query.shape[1] * step.value_width * 4
        return int(self.group.part.bytes(tokens) + table + query + out)


def attention_group(spec: ModelSpec, dtype: str, block: int) -> PoolGroup:
    """The model's group that grows without a bound and is attended: what a decode step spends its time on."""
    groups = pool_groups(spec, resolve_precision(dtype, model_dtype=spec.dtype), block)
    for group in groups:
        if group.grows and group.window is None and group.part.name in (KV, LATENT):
            return group
    raise InputError(f"model: found no layer of {spec.id} whose cache grows with the context, expected one to time")


def tune(bench: Bench, batch: int, length: int) -> Launch | None:
    """The fastest launch for this shape on a GPU; those the device refuses (shared memory) are passed over."""
    if bench.device.kind != "cuda" or not own_backend(bench.device).name.startswith("triton"):
        return None
    best: tuple[float, Launch] | None = None
    for launch in LAUNCHES:
        try:
            point = bench.measure(batch, length, own_backend(bench.device, launch), full=False)
        except Exception as error:
            if "OutOfResources" not in type(error).__name__:
                raise
            continue
        if best is None or point.seconds < best[0]:
            best = (point.seconds, launch)
    return None if best is None else best[1]


def sweep(bench: Bench, name: str, batches: Sequence[int], lengths: Sequence[int], full: bool) -> Sweep:
    """Measure every batch and length the pool holds; the longest and a middle length are held out of the fit.

    Raises InputError when the pool holds too few of them.
    """
    page = bench.group.block_tokens
    shapes = [(batch, length) for batch in batches for length in lengths if batch * -(-length // page) <= bench.blocks]
    if len(shapes) < FEWEST_SHAPES:
        raise InputError(
            f"--pool: found room for {len(shapes)} of the shapes to time, expected at least {FEWEST_SHAPES}"
        )
    # The tuned shape is the middle one, the held-out ones were never looked at before.
    launch = tune(bench, *shapes[len(shapes) // 2])
    backend = own_backend(bench.device, launch)
    points = [bench.measure(batch, length, backend, full) for batch, length in shapes]
    points.sort(key=lambda point: point.bytes)
    held = {len(points) - 1, len(points) // 2} if len(points) >= 5 else {len(points) - 1}
    fitted = [point for number, point in enumerate(points) if number not in held]
    line = fit_line([point.bytes for point in fitted], [point.seconds for point in fitted])
    part = bench.group.part
    return Sweep(
        name, part.name, part.dtype, tuple(points), tuple(points[number] for number in sorted(held)), line, launch
    )


def pool_bytes(device: Device, asked: int) -> int:
    """At least five times the last cache, at most what was asked for beyond that."""
    cache = device.facts().l2_bytes or CPU_CACHE_BYTES
    return max(asked, CACHE_FACTOR * cache)
