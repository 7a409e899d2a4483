"""A caching allocator with torch's CUDA rules, freeing and merging included, and a device that allocates through it.

Written from torch 2.13 c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp, apart from kvplan's
prediction: it keeps addresses and free lists, where the prediction keeps sizes.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

from kvplan.memory.allocator import AllocatorFigures
from kvplan.validate.device import Device

MIB = 1 << 20


@dataclass(eq=False)
class Block:
    segment: int
    start: int
    size: int
    requested: int = 0
    used: bool = False


class CachingAllocator:
    """`malloc` and `free` by handle; `limit` is the device's memory."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.segments: dict[int, list[Block]] = {}
        self.small: set[int] = set()
        self.peak = 0
        self.calls = 0
        self.fail_at: int | None = None
        self._next = 0

    @property
    def reserved(self) -> int:
        return sum(block.size for blocks in self.segments.values() for block in blocks)

    def figures(self) -> AllocatorFigures:
        used = [block for blocks in self.segments.values() for block in blocks if block.used]
        return AllocatorFigures(
            sum(block.requested for block in used), sum(block.size for block in used), self.reserved
        )

    def malloc(self, size: int) -> Block | None:
        """A block, or None when the device has no room left."""
        self.calls += 1
        if self.calls == self.fail_at:
            return None
        need = max(512, (size + 511) // 512 * 512)
        is_small = need <= MIB
        fitting = [
            block
            for segment, blocks in self.segments.items()
            if (segment in self.small) == is_small
            for block in blocks
            if not block.used and block.size >= need
        ]
        block = min(fitting, key=lambda block: (block.size, block.segment, block.start), default=None)
        if block is None:
            length = (
                2 * MIB if is_small else 20 * MIB if need < 10 * MIB else (need + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            )
            if self.reserved + length > self.limit:
                return None
            self._next += 1
            block = Block(self._next, 0, length)
            self.segments[self._next] = [block]
            if is_small:
                self.small.add(self._next)
        rest = block.size - need
        if rest >= 512 if is_small else rest > MIB:
            blocks = self.segments[block.segment]
            blocks.insert(blocks.index(block) + 1, Block(block.segment, block.start + need, rest))
            block.size = need
        block.used, block.requested = True, size
        self.peak = max(self.peak, self.figures().allocated)
        return block

    def free(self, block: Block) -> None:
        """Give a block back and merge it with free neighbours."""
        block.used, block.requested = False, 0
        merged: list[Block] = []
        for one in self.segments[block.segment]:
            if merged and not one.used and not merged[-1].used:
                merged[-1].size += one.size
            else:
                merged.append(one)
        self.segments[block.segment] = merged

    def release(self) -> None:
        """Give wholly free segments back to the device."""
        for segment in [number for number, blocks in self.segments.items() if not any(b.used for b in blocks)]:
            del self.segments[segment]
            self.small.discard(segment)


class FakeDevice(Device):
    """A CPU device that counts its tensors as a GPU would, and runs out of memory when told to."""

    def __init__(self, torch: Any, memory: CachingAllocator) -> None:
        super().__init__(torch, "fake card", memory.limit)
        self.memory = memory

    @property
    def free_bytes(self) -> int:
        return self.memory.limit - self.memory.reserved

    @property
    def pool_limit(self) -> int:
        return self.free_bytes

    def new(self, shape: tuple[int, ...], dtype: Any) -> Any:
        tensor = super().new(shape, dtype)
        size = tensor.numel() * tensor.element_size()
        if size:
            block = self.memory.malloc(size)
            if block is None:
                raise self.torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
            weakref.finalize(tensor.untyped_storage(), self.memory.free, block)
        return tensor

    def allocator(self) -> AllocatorFigures:
        return self.memory.figures()

    def release(self) -> None:
        self.memory.release()
        if self.memory.reserved:  # reference cycles, as a GPU's release collects them
            gc.collect()
            self.memory.release()
