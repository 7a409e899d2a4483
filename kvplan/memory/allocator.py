"""How the CUDA caching allocator rounds: what a tensor occupies and what its first segment reserves.

Source: torch 2.13.0 c10/core/AllocatorConfig.h (expandable segments off).
"""

from __future__ import annotations

from kvplan.units import MIB

ROUND_BYTES = 512
SMALL_LIMIT = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_LIMIT = 10 * MIB
LARGE_SEGMENT = 20 * MIB
SEGMENT_ROUND = 2 * MIB


def allocated_bytes(requested: int) -> int:
    """Bytes a request occupies: a multiple of 512, at least 512."""
    return -(-max(requested, 1) // ROUND_BYTES) * ROUND_BYTES


def reserved_bytes(requested: int) -> int:
    """Bytes the first such request reserves in an empty allocator: its segment of 2 MiB, of 20 MiB, or rounded."""
    size = allocated_bytes(requested)
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size < LARGE_LIMIT:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUND) * SEGMENT_ROUND
