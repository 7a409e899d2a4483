"""torch's own figures against the allocator's prediction: single tensors, whole pools, the peak of a decode step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan.memory.allocator import AllocatorFigures, predict_allocations
from kvplan.units import GIB, MIB
from kvplan.validate.checks import Check, skipped
from kvplan.validate.device import Device
from kvplan.validate.kernels.backends import own_backend
from kvplan.validate.kernels.triton_decode import TritonDecode
from kvplan.validate.pools import Pools, tensor_bytes

SECTION = "allocator"
#: both sides of every rule: shared 2 MiB and 20 MiB segments, rounding to 2 MiB, a rest too small to split off
FIRST_SIZES = (1, 600_000, MIB, 5_000_000, 10 * MIB, 11 * MIB + MIB // 2, 1_310_720_001, 2 * GIB)


def first_allocations(device: Device) -> Iterator[Check]:
    """The first tensor of each size in an empty allocator; sizes beyond a quarter of what is free are left out."""
    if device.allocator() is None:
        return
    options = device.allocator_options()
    for size in FIRST_SIZES:
        device.release()
        before = device.allocator()
        if before is None or size > device.free_bytes // 4:
            continue
        tensor = device.empty((size,), "uint8")
        after = device.allocator()
        assert after is not None
        predicted = predict_allocations([size])
        fresh = options is None and before.reserved == 0
        for name in ("allocated", "reserved"):
            yield Check(SECTION, "first tensor", f"{name} for {size:,} B", getattr(predicted, name),
                        getattr(after, name) - getattr(before, name), "B", judged=fresh)  # fmt: skip
        del tensor
    device.release()


def allocator_rows(pools: Pools, before: AllocatorFigures | None, free: int, used: int | None) -> Iterator[Check]:
    """torch's own figures against the prediction for these tensors in this order.

    `free` bytes by torch and `used` ones by NVML (None without it) were read before the pools were made.
    """
    device, case = pools.device, pools.case.name
    after = device.allocator()
    if before is None or after is None:
        yield skipped(SECTION, case, "requested, allocated, reserved", "torch keeps no figures for a CPU")
        return
    options = device.allocator_options()
    predicted = predict_allocations(pools.sizes)
    fresh = options is None and before.reserved == 0
    note = "" if fresh else f"not judged: {options or 'the allocator already held segments'}"
    yield Check(SECTION, case, "requested", predicted.requested, after.requested - before.requested, "B")
    for name in ("allocated", "reserved"):
        measured = getattr(after, name) - getattr(before, name)
        yield Check(SECTION, case, name, getattr(predicted, name), measured, "B", judged=fresh, note=note)
    yield Check(SECTION, case, "taken from the driver", predicted.reserved, free - device.free_bytes, "B",
                judged=False)  # fmt: skip
    now = device.driver_now().used_bytes
    if used is not None and now is not None:
        yield Check(SECTION, case, "taken from the card as NVML sees it", predicted.reserved, now - used, "B",
                    judged=False)  # fmt: skip
    slab = predict_allocations([sum(pools.sizes)])
    yield Check(SECTION, case, "waste of one tensor a layer (one slab: predicted)", slab.waste,
                after.reserved - before.reserved - predicted.requested, "B", judged=False)  # fmt: skip


def peak_row(device: Device, case: str, problem: Any) -> Iterator[Check]:
    """The most memory during a decode step against the pool and the step's own workspace."""
    before = device.allocator()
    backend = own_backend(device)
    if before is None or not backend.name.startswith("triton"):
        return
    device.reset_peak()
    call = backend.prepare(problem)
    assert isinstance(call, TritonDecode)
    call()
    device.synchronize()
    extra = predict_allocations(map(tensor_bytes, (call.parts, call.sums, call.out)))
    peak = device.peak_allocated()
    yield Check(SECTION, case, "peak of a decode step", before.allocated + extra.allocated, peak, "B", "within",
                0.001)  # fmt: skip
