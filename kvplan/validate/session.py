"""One run from start to end: what is measured, in which order, and that everything is freed whatever happens."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import kvplan
from kvplan.cache.techniques.eviction import Eviction
from kvplan.cache.techniques.sparse_reads import Quest
from kvplan.errors import InputError
from kvplan.hardware.profile import DeviceProfile
from kvplan.memory.allocator import AllocatorFigures
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import resolve_model
from kvplan.units import GIB, MIB, both, gib
from kvplan.validate.allocator import allocator_rows, first_allocations, peak_row
from kvplan.validate.attention import (
    attention_checks,
    numerics,
    pool_problem,
    unsupported,
    window_and_sink_problem,
)
from kvplan.validate.capacity import Churn, capacity_checks
from kvplan.validate.checks import Check, DeviceFacts, Result, Series, skipped
from kvplan.validate.device import Device, open_device
from kvplan.validate.engine_pool import EnginePool, ask_engine, engine_checks
from kvplan.validate.groups import Case, lay_out, shortened
from kvplan.validate.pools import Pools
from kvplan.validate.sparse import sparse_checks
from kvplan.validate.speed import Speed, speed_checks

#: GQA, a window beside full attention, MLA, a hybrid of recurrent and attention layers; `full` adds the layouts after
QUICK = (("llama-3.1-8b", "auto"), ("gemma-3-27b", "fp8"), ("deepseek-v3", "auto"), ("qwen3-next-80b-a3b", "auto"))
FULL = (
    *QUICK,
    ("llama-3.1-8b", "int8_per_token_head"),
    ("gpt-oss-20b", "auto"),
    ("deepseek-v3.2", "fp8"),
    ("deepseek-v4-pro", "fp8"),
)


@dataclass(frozen=True)
class Scale:
    """What a run can afford on its kind of device."""

    pool: int
    keep_layers: int | None
    requests: int
    longest: int
    churn: Churn
    quest: Quest


CPU_QUICK = Scale(16 * MIB, 2, 4, 120, Churn(40, 20), Quest(16, 64))
CPU_FULL = Scale(64 * MIB, 4, 4, 400, Churn(200, 25), Quest(16, 128))
GPU_QUICK = Scale(4 * GIB, None, 8, 8192, Churn(120, 30), Quest(16, 2048))
GPU_FULL = Scale(8 * GIB, None, 8, 32768, Churn(400, 50), Quest(16, 2048))


@dataclass(frozen=True)
class Options:
    """What the user asked for. `pool` bytes or `fraction` of what is free, neither for the default of the device."""

    model: ModelSpec | None = None
    device: str = "auto"
    engine: str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    pool: int | None = None
    fraction: float | None = None
    full: bool = False
    seed: int | None = None


@dataclass
class Session:
    """A run in progress. `tick(text)` is told before each of about `steps` steps what comes next."""

    options: Options
    device: Device
    tick: Callable[[str], None]
    seed: int
    rows: list[Check] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def scale(self) -> Scale:
        if self.device.kind == "cpu":
            return CPU_FULL if self.options.full else CPU_QUICK
        return GPU_FULL if self.options.full else GPU_QUICK

    def generator(self) -> Any:
        """Random numbers of this run on its device."""
        return self.device.torch.Generator(device=self.device.handle).manual_seed(self.seed)


def run(options: Options, tick: Callable[[str], None] = lambda text: None, device: Device | None = None) -> Result:
    """Validate on one device and return the document of figures.

    Raises InputError for what can't run at all: no such device, a pool that is too large or too small, a dtype without
    tensors. Memory is given back before it returns or raises, on KeyboardInterrupt too.
    """
    _check(options)
    opened = open_device(options.device) if device is None else device
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    session = Session(options, opened, tick, seed)
    opened.release()
    before = opened.allocator()
    try:
        budget = _budget(session)
        facts = opened.facts()
        _device_rows(session)
        with opened.untimed():
            session.rows.extend(first_allocations(opened))
            _sinks(session)
            for case in _cases(session, budget):
                _run_case(session, case)
            if options.engine is not None:
                _run_engine(session, budget)
        tick("bandwidth")
        speed = speed_checks(opened, _timed_spec(options), budget, session.generator(), options.full, tick)
        session.rows.extend(speed.rows)
        session.series.extend(speed.series)
        session.notes.extend(speed.notes)
    finally:
        opened.release()
    session.rows.extend(_left_as_found(opened, before))
    recorded, versions = datetime.now(UTC).isoformat(timespec="seconds"), _versions(opened)
    return Result(
        command="validate", schema_version=1, recorded=recorded, device=facts, versions=versions,
        settings=_settings(options, budget, seed), checks=session.rows, series=session.series,
        profile=_profile(facts, speed, recorded, versions), notes=session.notes,
    )  # fmt: skip


def _profile(facts: DeviceFacts, speed: Speed, recorded: str, versions: dict[str, str]) -> DeviceProfile:
    return DeviceProfile(
        schema_version=1, device=facts.name, kind=facts.kind, recorded=recorded,
        how=f"measured by kvplan validate {kvplan.__version__}", total_bytes=facts.total_bytes,
        usable_bytes=facts.free_bytes, copy_bytes_per_second=speed.ceilings.copy.per_second,
        read_bytes_per_second=speed.ceilings.read.per_second, accelerator=facts.accelerator, slice=facts.slice,
        context_bytes=facts.context_bytes, attention=tuple(speed.attention), gemm=tuple(speed.gemm),
        links=tuple(speed.links), versions=versions,
    )  # fmt: skip


def steps(options: Options) -> int:
    """About how many steps a run tells of."""
    cases = 1 if options.model is not None else len(FULL if options.full else QUICK)
    engines = 0 if options.engine is None else 1 if options.model is not None else len(QUICK)
    return 3 * cases + engines + (7 if options.full else 4)


def _check(options: Options) -> None:
    if options.fraction is not None and not 0 < options.fraction <= 1:
        raise InputError(f"--fraction: found {options.fraction:g}, expected a share above 0 and at most 1 such as 0.5")
    if options.fraction is not None and options.pool is not None:
        raise InputError("--fraction: found it together with --pool, expected one of them")
    if not 1 <= options.block_size <= 4096:
        raise InputError(f"--block-size: found {options.block_size}, expected 1 to 4,096 tokens")


def _budget(session: Session) -> int:
    """Bytes of a pool. Raises InputError for more than the device has free."""
    device, options = session.device, session.options
    limit = device.pool_limit
    if options.fraction is not None:
        return int(limit * options.fraction)
    if options.pool is None:
        return min(session.scale.pool, limit // 2)
    if options.pool > limit:
        holders = ", ".join(_holder_words(device))
        beside = f" beside {holders}" if holders else ""
        raise InputError(
            f"--pool: found {both(options.pool)}, expected at most the {both(limit)} that can be taken on "
            f"{device.name}{beside}"
        )
    return options.pool


def _holder_words(device: Device) -> list[str]:
    return [
        f"{holder.name} (pid {holder.pid}, {'unknown' if holder.bytes is None else gib(holder.bytes)})"
        for holder in device.driver_now().foreign
    ]


def _cases(session: Session, budget: int) -> Iterator[Case]:
    """The layouts to allocate, one at a time."""
    options, scale = session.options, session.scale
    if options.model is not None:
        yield _case(session, options.model, options.kv_cache_dtype, budget)
        return
    for name, dtype in FULL if options.full else QUICK:
        spec, note = resolve_model(name).spec, ""
        if scale.keep_layers is not None:
            spec, note = shortened(spec, scale.keep_layers)
        asked = options.kv_cache_dtype if options.kv_cache_dtype != "auto" else dtype
        yield _case(session, spec, asked, budget, note)


def _case(session: Session, spec: ModelSpec, dtype: str, budget: int, note: str = "") -> Case:
    case = lay_out(
        spec, budget, kv_cache_dtype=dtype, block=session.options.block_size, requests=session.scale.requests, note=note
    )
    if note:
        session.notes.append(f"{case.name}: {note}, so that the pool holds requests")
    return case


def _device_rows(session: Session) -> None:
    facts, device = session.device.facts(), session.device
    if facts.context_bytes is not None:
        session.rows.append(
            Check("device", device.name, "context beside torch's memory", None, facts.context_bytes, "B", judged=False)
        )
    if device.kind == "cuda" and facts.nvml is not None:
        session.rows.append(skipped("device", device.name, "the driver's own figures", facts.nvml))
    if facts.slice is not None:
        session.notes.append(f"{facts.slice} is a slice of a card: nothing is compared with a whole card's datasheet")
    session.notes.extend(f"held by another process: {words}" for words in _holder_words(device))


def _sinks(session: Session) -> None:
    session.tick("attention with sinks")
    problem = window_and_sink_problem(session.device, session.generator())
    session.rows.extend(numerics(session.device, "16 query, 2 KV heads of 64", "window and sinks", problem))


def _run_case(session: Session, case: Case) -> None:
    device, scale = session.device, session.scale
    generator = session.generator()
    session.tick(f"{case.name}: pools")
    device.release()
    before, free, used = device.allocator(), device.free_bytes, device.driver_now().used_bytes
    with Pools(device, case) as pools:
        session.rows.extend(_pool_rows(pools))
        session.rows.extend(allocator_rows(pools, before, free, used))
        pools.fill(generator)
        session.tick(f"{case.name}: capacity")
        rows, series = capacity_checks(pools, scale.churn, session.seed)
        session.rows.extend(rows)
        session.series.extend(series)
        session.tick(f"{case.name}: attention")
        pools.fill(generator)  # the marks of the fill go
        session.rows.extend(attention_checks(pools, generator, scale.longest))
        session.rows.extend(_reads(session, pools, generator))


def _reads(session: Session, pools: Pools, generator: Any) -> Iterator[Check]:
    """Sparse reads, eviction and the peak of a decode step, on the first group of plain K and V heads."""
    device, scale = session.device, session.scale
    for pool in pools.groups:
        group = pool.group
        if unsupported(group) is None and group.window is None and {field.name for field in group.entry.fields} == {
            "key", "value"
        }:  # fmt: skip
            problem = pool_problem(device, pool, generator, 4 * scale.quest.budget)
            yield from sparse_checks(
                device, pools.case.name, problem, scale.quest, Eviction("streamingllm", 4, scale.quest.budget - 4)
            )
            yield from peak_row(device, pools.case.name, problem)
            return


def _pool_rows(pools: Pools) -> Iterator[Check]:
    for pool in pools.groups:
        group = pool.group
        yield Check(
            "pools", pools.case.name, f"{group.name}: {group.layers} layers x {pool.blocks} blocks, {group.part.dtype}",
            group.bytes(pool.blocks), pool.measured_bytes, "B",
        )  # fmt: skip


def _run_engine(session: Session, budget: int) -> None:
    options, device = session.options, session.device
    assert options.engine is not None
    names: Sequence[ModelSpec] = (
        [options.model] if options.model is not None else [resolve_model(name).spec for name, _ in QUICK]
    )
    settings = {} if options.kv_cache_dtype == "auto" else {"kv_cache_dtype": options.kv_cache_dtype}
    for spec in names:
        session.tick(f"{spec.id}: {options.engine}")
        try:
            answer = ask_engine(options.engine, spec, budget, device.facts(), settings)
        except InputError as error:
            if options.model is not None:
                raise
            session.rows.append(skipped("engine", spec.id, options.engine, str(error)))
            continue
        with EnginePool(device, answer) as pool:
            session.rows.extend(engine_checks(pool, spec.id, session.generator()))


def _left_as_found(device: Device, before: AllocatorFigures | None) -> Iterator[Check]:
    after = device.allocator()
    if before is None or after is None:
        return
    for name in ("allocated", "reserved"):
        yield Check("device", device.name, f"{name} after the run", getattr(before, name), getattr(after, name), "B")


def _timed_spec(options: Options) -> ModelSpec:
    return resolve_model(QUICK[0][0]).spec if options.model is None else options.model


def _versions(device: Device) -> dict[str, str]:
    found = {"kvplan": kvplan.__version__, "python": platform.python_version(), "torch": str(device.torch.__version__)}
    cuda = getattr(device.torch.version, "cuda", None)
    if cuda:
        found["cuda"] = str(cuda)
    with contextlib.suppress(ImportError):
        found["triton"] = str(importlib.import_module("triton").__version__)
    return found


def _settings(options: Options, budget: int, seed: int) -> dict[str, Any]:
    return {
        "model": None if options.model is None else options.model.id,
        "engine": options.engine,
        "kv_cache_dtype": options.kv_cache_dtype,
        "block_size": options.block_size,
        "pool_bytes": budget,
        "full": options.full,
        "seed": seed,
    }
