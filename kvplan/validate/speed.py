"""The rows about time: ceilings, decode sweeps with a held-out length, what skipping saves, products, the host link."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvplan.cache.layout import KV
from kvplan.cache.techniques.offload import break_even_bandwidth
from kvplan.errors import InputError
from kvplan.hardware.profile import AttentionProfile, GemmProfile, LinkProfile
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import resolve_model
from kvplan.units import GIB, MIB, gib
from kvplan.validate.attention import numerics
from kvplan.validate.checks import Check, Series, skipped
from kvplan.validate.decode_sweep import Bench, Sweep, attention_group, pool_bytes, sweep
from kvplan.validate.device import Device, OutOfMemory
from kvplan.validate.kernels.backends import other_backends, own_backend
from kvplan.validate.sparse import select_pages
from kvplan.validate.timing import Ceilings, Product, ceilings, host_links, products

SECTION = "bandwidth"
HELD_OUT_TOLERANCE = 0.15
#: share of the measured copy ceiling that the kernel must reach above 1 GiB of KV, by dtype (Hopper), and elsewhere
HOPPER = (9, 0)
HOPPER_SHARE = {"bf16": 0.85, "fp8": 0.75}
OTHER_SHARE = 0.60
BIG_READ = GIB
GPU_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
GPU_BATCHES = (8, 64)
CPU_LENGTHS = (128, 256, 512, 1024, 2048)
CPU_BATCHES = (1, 2)
PAGE = 16
PAGES = (8, 16, 32, 64, 128, 256)


@dataclass
class Speed:
    """What `speed_checks` found: rows and plots, and the figures of a device profile."""

    ceilings: Ceilings
    rows: list[Check] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    attention: list[AttentionProfile] = field(default_factory=list)
    gemm: list[GemmProfile] = field(default_factory=list)
    links: list[LinkProfile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def speed_checks(
    device: Device, spec: ModelSpec, budget: int, generator: Any, full: bool, tick: Callable[[str], None]
) -> Speed:
    """Measure everything that takes time. On a CPU the figures are the CPU's and none is judged."""
    top = ceilings(device, generator, full)
    found = Speed(top)
    device.release()
    _ceiling_rows(found, device, top)
    size = pool_bytes(device, budget) if device.kind == "cuda" else 8 * MIB
    size = min(size, device.pool_limit // 2)
    sweeps = []
    for name, timed, dtype in _timed(spec, full or device.kind == "cuda"):
        tick(f"decode {name}")
        done = _run_sweep(found, device, name, timed, dtype, size, generator, full)
        if done is not None:
            sweeps.append(done)
    if len(sweeps) > 1 and sweeps[0].name == sweeps[1].name.replace("fp8", "bf16"):
        found.rows.append(_dtype_row(sweeps[0], sweeps[1]))
    if full or device.kind == "cuda":
        tick("page sizes")
        found.rows.extend(_page_rows(device, spec, size, generator, full))
    tick("products and host link")
    measured = list(products(device, generator, full))
    _product_rows(found, device, measured)
    device.release()
    _link_rows(found, device, spec, measured, full)
    device.release()
    return found


def _run_sweep(
    found: Speed, device: Device, name: str, spec: ModelSpec, dtype: str, size: int, generator: Any, full: bool
) -> Sweep | None:
    """One dtype of one model from a pool of its own; None, and a row that says why, where it can't be timed."""
    try:
        bench = Bench(device, attention_group(spec, dtype, PAGE), size, generator)
        try:
            refused = own_backend(device).refuses(bench.template)
            if refused is not None:
                raise InputError(refused)
            lengths, batches = (GPU_LENGTHS, GPU_BATCHES) if device.kind == "cuda" else (CPU_LENGTHS, CPU_BATCHES)
            done = sweep(bench, name, batches, lengths, full)
            _sweep_rows(found, device, done)
            far = f"over a layer of {gib(bench.pool.measured_bytes)}"
            found.rows.extend(numerics(device, name, far, bench.steps(2, 3 * PAGE + 1)[0], extra=False))
            if bench.group.part.name == KV and dtype == "auto":
                found.rows.extend(_bench_rows(bench, name, done, full))
        finally:
            bench.close()
    except OutOfMemory:
        raise
    except InputError as error:
        found.rows.append(skipped(SECTION, name, "decode sweep", str(error)))
        return None
    return done


def _timed(spec: ModelSpec, wide: bool) -> Iterator[tuple[str, ModelSpec, str]]:
    yield f"{spec.id} bf16", spec, "auto"
    if wide:
        yield f"{spec.id} fp8", spec, "fp8"
        if any(block.kind == "latent_attention" for block in spec.blocks.values()):
            return
        latent = resolve_model("deepseek-v3").spec
        yield f"{latent.id} bf16", latent, "auto"


def _ceiling_rows(found: Speed, device: Device, top: Ceilings) -> None:
    facts = device.facts()
    for name, rate in (("copy, reads and writes counted", top.copy), ("read only", top.read)):
        found.rows.append(
            Check(SECTION, device.name, f"ceiling: {name}", _datasheet(device), rate.per_second, "B/s", judged=False)
        )
    if device.kind == "cuda" and facts.accelerator is None:
        found.notes.append(f"{device.name} is no accelerator kvplan knows: nothing is compared with a datasheet")


def _datasheet(device: Device) -> float | None:
    """The whole card's bandwidth by datasheet in bytes a second; None for a slice or an unknown device."""
    facts = device.facts()
    if facts.accelerator is None or facts.slice is not None:
        return None
    from kvplan.hardware.accelerators import find

    return find(facts.accelerator).memory_bandwidth


def _sweep_rows(found: Speed, device: Device, done: Sweep) -> None:
    top, judged = found.ceilings, device.kind == "cuda"
    for point in done.held_out:
        found.rows.append(
            Check(SECTION, done.name, f"held out: {point.batch} x {point.length:,} tokens, one layer",
                  done.predicted(point), point.seconds, "s", "within", HELD_OUT_TOLERANCE, judged)
        )  # fmt: skip
    targeted = device.facts().compute_capability == HOPPER and done.part == KV
    share = HOPPER_SHARE.get(done.dtype, OTHER_SHARE) if targeted else OTHER_SHARE
    best = max(done.points, key=lambda point: point.rate)
    big = [point for point in done.points if point.bytes >= BIG_READ]
    chosen = max(big, key=lambda point: point.rate) if big else best
    found.rows.append(
        Check(SECTION, done.name, f"share of the copy ceiling at {chosen.batch} x {chosen.length:,} tokens", share,
              chosen.rate / top.copy.per_second, "share", "at least", judged=judged and bool(big))
    )  # fmt: skip
    sheet = _datasheet(device)
    if sheet is not None:
        found.rows.append(Check(SECTION, done.name, "MBU by datasheet at that shape", None, chosen.rate / sheet,
                                "share", judged=False))  # fmt: skip
    part: Literal["K+V", "latent"] = "latent" if done.part == "latent" else "K+V"
    if math.isfinite(done.line.rate):
        efficiency = done.line.rate / top.copy.per_second
        found.attention.append(AttentionProfile(part, done.dtype, done.line.t0, done.line.rate, efficiency))
    else:
        found.notes.append(f"{done.name}: time did not grow with bytes, so no line goes into the profile")
    if done.launch is not None:
        found.notes.append(f"{done.name}: tuned launch {done.launch}")
    for batch in sorted({point.batch for point in done.points}):
        points = sorted((point for point in done.points if point.batch == batch), key=lambda point: point.length)
        found.series.append(
            Series(f"{done.name}, batch {batch}", "tokens a request", "bytes/s",
                   [float(point.length) for point in points], [point.rate for point in points],
                   [point.rate * point.spread / point.seconds for point in points])
        )  # fmt: skip


def _bench_rows(bench: Bench, name: str, done: Sweep, full: bool) -> Iterator[Check]:
    """Shuffled against contiguous tables, sparse reads against dense ones, other kernels where there are any."""
    device = bench.device
    dense = done.points[-1]
    backend = own_backend(device, done.launch)
    straight = bench.measure(dense.batch, dense.length, backend, full, shuffle=False)
    yield Check(SECTION, name, "paging tax: shuffled / contiguous table", 1.0, dense.seconds / straight.seconds,
                "ratio", judged=False)  # fmt: skip
    steps = bench.steps(dense.batch, dense.length)
    page = bench.group.block_tokens
    budget = max(1, dense.length // page // 8)
    chosen = [select_pages(step, budget) for step in steps]
    sparse = bench.time_steps(chosen, dense.length, backend, full)
    yield Check(SECTION, name, f"reads of 1/8: time over dense time (bytes {sparse.bytes / dense.bytes:.3f})",
                1.0, sparse.seconds / dense.seconds, "ratio", "at most", judged=device.kind == "cuda")  # fmt: skip
    for other in other_backends(device):
        reason = other.refuses(steps[0])
        if reason is not None or device.kind == "cpu":
            yield skipped(SECTION, name, f"{other.name} at that shape", reason or "compared on a GPU only")
            continue
        try:
            point = bench.time_steps(steps[:1], dense.length, other, full)
        except Exception as failure:
            yield skipped(
                SECTION, name, f"{other.name} at that shape", f"failed: {' '.join(str(failure).split())[:120]}"
            )
            continue
        yield Check(SECTION, name, f"{other.name}'s time over ours", 1.0, point.seconds / dense.seconds, "ratio",
                    judged=False)  # fmt: skip


def _dtype_row(wide: Sweep, narrow: Sweep) -> Check:
    ratio = narrow.points[-1].seconds / wide.points[-1].seconds
    return Check(SECTION, narrow.name, "time of fp8 over bf16 (bytes: 0.5)", 0.5, ratio, "ratio", judged=False)


def _page_rows(device: Device, spec: ModelSpec, size: int, generator: Any, full: bool) -> Iterator[Check]:
    """The same tokens in pages of other sizes, against the largest."""
    batch, length = (GPU_BATCHES[0], GPU_LENGTHS[3]) if device.kind == "cuda" else (CPU_BATCHES[0], CPU_LENGTHS[2])
    seconds: dict[int, float] = {}
    try:
        for page in PAGES:
            bench = Bench(device, attention_group(spec, "auto", page), size, generator)
            try:
                seconds[page] = bench.measure(batch, length, own_backend(device), full).seconds
            finally:
                bench.close()
    except InputError as error:
        yield skipped(SECTION, spec.id, "page sizes", str(error))
        return
    for page in PAGES[:-1]:
        yield Check(SECTION, spec.id, f"pages of {page} / pages of {PAGES[-1]} tokens", 1.0,
                    seconds[page] / seconds[PAGES[-1]], "ratio", judged=False)  # fmt: skip


def _product_rows(found: Speed, device: Device, measured: list[Product]) -> None:
    sheet = None
    facts = device.facts()
    if facts.accelerator is not None and facts.slice is None:
        from kvplan.hardware.accelerators import find

        sheet = find(facts.accelerator).bf16_flops
    for product in measured:
        name = f"bf16 product {product.m} x {product.n} x {product.k}"
        found.rows.append(Check("products", device.name, name, sheet, product.flops.per_second, "FLOP/s", judged=False))
        found.gemm.append(GemmProfile(product.m, product.n, product.k, product.flops.per_second))


def _link_rows(found: Speed, device: Device, spec: ModelSpec, measured: list[Product], full: bool) -> None:
    """The host link, and above which rate fetching a token beats computing it again."""
    links = list(host_links(device, full))
    if not links:
        found.rows.append(skipped("host link", device.name, "host to device, device to host", "a CPU has no host link"))
    for link in links:
        found.rows.append(
            Check("host link", device.name, f"{link.name}: fitted bandwidth", None, link.line.rate, "B/s", judged=False)
        )
        found.links.append(LinkProfile(link.name, link.line.t0, link.line.rate))
        found.series.append(
            Series(link.name, "bytes a block", "bytes/s", [float(size) for size in link.sizes],
                   [size / seconds for size, seconds in zip(link.sizes, link.seconds, strict=True)])
        )  # fmt: skip
    if spec.parameters is None:
        return
    try:
        group = attention_group(spec, "auto", 16)
    except InputError:
        return
    flops = max(product.flops.per_second for product in measured)
    token = replace(group, entries_per_block=1).bytes(1)
    even = break_even_bandwidth(token, spec.parameters.active, flops)
    fetched = links[0].line.rate if links else None
    found.rows.append(
        Check("host link", spec.id, "link above which fetching beats computing again", even, fetched, "B/s", "at least",
              judged=False, note="" if links else "the measured link is missing")
    )  # fmt: skip
