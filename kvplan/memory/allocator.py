"""What torch's CUDA caching allocator makes of tensors: bytes requested, allocated in blocks, reserved in segments.

Rules of a fresh allocator without options, torch 2.13 (c10/core/AllocatorConfig.h, c10/cuda/CUDACachingAllocator.cpp):
sizes are rounded up to 512 B; up to 1 MiB they share 2 MiB segments, below 10 MiB 20 MiB segments, above that a segment
is the size rounded up to 2 MiB. The smallest free block that is large enough is taken, and split unless what would be
left is too small to keep: then the block is handed out whole, and counts as allocated whole.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.units import MIB

MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_SIZE = 10 * MIB
ROUND_LARGE = 2 * MIB


@dataclass(frozen=True)
class AllocatorFigures:
    """Bytes as torch.cuda.memory_stats names them: `requested_bytes`, `allocated_bytes`, `reserved_bytes`."""

    requested: int
    allocated: int
    reserved: int

    @property
    def waste(self) -> int:
        """Bytes taken from the driver that no tensor asked for."""
        return self.reserved - self.requested


def allocated_bytes(requested: int) -> int:
    """Bytes a request occupies once its block is split to size: a multiple of 512, at least 512."""
    return max(1, -(-requested // MIN_BLOCK)) * MIN_BLOCK


def reserved_bytes(requested: int) -> int:
    """The segment that a request takes from the driver when no free block fits: what the first one reserves."""
    size = allocated_bytes(requested)
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < LARGE_SIZE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


def predict_allocations(sizes: Iterable[int]) -> AllocatorFigures:
    """The figures after tensors of `sizes` bytes were allocated in that order in a fresh process and none was freed.

    A tensor of 0 bytes takes nothing.
    """
    requested = allocated = reserved = 0
    small: list[int] = []
    large: list[int] = []
    for size in sizes:
        if size == 0:
            continue
        need = allocated_bytes(size)
        free = small if need <= SMALL_SIZE else large
        fitting = bisect_left(free, need)
        if fitting < len(free):
            block = free.pop(fitting)
        else:
            block = reserved_bytes(need)
            reserved += block
        left = block - need
        keeps = left >= MIN_BLOCK if free is small else left > SMALL_SIZE
        if keeps:
            insort(free, left)
        requested += size
        allocated += need if keeps else block
    return AllocatorFigures(requested, allocated, reserved)
