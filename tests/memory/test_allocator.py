"""The allocator's prediction against figures worked out by hand from torch's published rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.memory.allocator import allocated_bytes, predict_allocations, reserved_bytes

MIB = 1 << 20

# First allocation of one size, from the constants of torch 2.13.0 c10/core/AllocatorConfig.h, by hand.
FIRST = [
    (600_000, 600_064, 2_097_152),
    (5_000_000, 5_000_192, 20_971_520),
    (1_310_720_001, 1_310_720_512, 1_312_817_152),
    (8_589_934_592, 8_589_934_592, 8_589_934_592),
]


@pytest.mark.parametrize(("size", "rounded", "reserved"), FIRST)
def test_first_allocation(size: int, rounded: int, reserved: int) -> None:
    figures = predict_allocations([size])
    assert (allocated_bytes(size), reserved_bytes(size)) == (rounded, reserved)
    assert (figures.requested, figures.allocated, figures.reserved) == (size, rounded, reserved)


@pytest.mark.parametrize(
    ("size", "allocated"),
    [
        # 11.5 MiB takes a 12 MiB segment; half a MiB is too little to split off, so all 12 MiB count as allocated.
        (11 * MIB + MIB // 2, 12 * MIB),
        # Exactly 1 MiB left is not more than 1 MiB: still whole.
        (11 * MIB, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512),
        (10 * MIB, 10 * MIB),
    ],
)
def test_a_large_block_that_leaves_a_mib_or_less_is_handed_out_whole(size: int, allocated: int) -> None:
    figures = predict_allocations([size])
    assert figures.allocated == allocated
    assert figures.reserved == -(-size // (2 * MIB)) * 2 * MIB


def test_tensors_share_segments() -> None:
    # Four of 512 KiB fill one 2 MiB segment, a fifth opens another.
    assert predict_allocations([MIB // 2] * 4).reserved == 2 * MIB
    assert predict_allocations([MIB // 2] * 5).reserved == 4 * MIB
    # Four of 5 MiB fill one 20 MiB segment.
    assert predict_allocations([5 * MIB] * 4).reserved == 20 * MIB
    # The 15 MiB that a 5 MiB tensor leaves serve one of 12 MiB.
    assert predict_allocations([5 * MIB, 12 * MIB]).reserved == 20 * MIB


def test_one_tensor_a_layer_wastes_more_than_a_slab() -> None:
    layer = 107_270_144  # 102.3 MiB, a multiple of 512
    layers = predict_allocations([layer] * 80)
    slab = predict_allocations([layer * 80])
    assert layers.waste == 80 * (104 * MIB - layer)
    assert slab.waste < 2 * MIB < layers.waste


def test_nothing_takes_nothing() -> None:
    figures = predict_allocations([0, 0])
    assert (figures.requested, figures.allocated, figures.reserved) == (0, 0, 0)


@given(st.lists(st.integers(1, 64 * MIB), max_size=40))
def test_the_three_figures_are_ordered(sizes: list[int]) -> None:
    figures = predict_allocations(sizes)
    assert sum(sizes) == figures.requested <= figures.allocated <= figures.reserved
    assert figures.allocated % 512 == 0
    assert figures.reserved % (2 * MIB) == 0
