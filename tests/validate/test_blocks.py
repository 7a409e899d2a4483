"""The block book-keeping: rings, shared prefixes, and no block lost or given twice whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.validate.blocks import BlockPool, GroupTables, IntegrityError, PoolExhausted, check_integrity


def tables(count: int, block: int = 4, window: int | None = None) -> tuple[GroupTables, dict[int, int]]:
    """Tables over a pool of `count` blocks, and what each block holds on a pretended device."""
    device: dict[int, int] = {}
    return GroupTables(
        count, block, window, lambda blocks, marks: device.update(zip(blocks, marks, strict=True))
    ), device


def own(request: int) -> Callable[[int], int]:
    return lambda position: request * 1000 + position


def test_a_sequence_takes_a_block_when_the_last_is_full() -> None:
    table, _ = tables(10)
    held = []
    for tokens in range(1, 10):
        table.grow(1, tokens, own(1))
        held.append(table.used)
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("window", "block", "most"),
    # vLLM's rule ceil((W - 1) / B) + 1, by hand
    [(1024, 16, 65), (128, 16, 9), (128, 64, 3), (5, 4, 2), (6, 4, 3), (1, 4, 1), (48, 7, 8)],
)
def test_a_window_is_a_ring(window: int, block: int, most: int) -> None:
    table, _ = tables(100, block, window)
    seen = 0
    for tokens in range(1, 4 * window + 3 * block):
        table.grow(1, tokens, own(1))
        seen = max(seen, table.used)
        newest = {position // block for position in range(max(0, tokens - window), tokens)}
        assert newest <= {at for at, block_ in enumerate(table.tables[1].blocks) if block_ >= 0}
    assert seen == most
    table.free(1)
    assert table.used == 0


def test_a_shared_prefix_is_stored_once_and_goes_with_its_last_holder() -> None:
    table, device = tables(10)
    for request in (1, 2):
        table.grow(request, 16, own(request), prefix=(0, 2))
    assert (table.used, table.pool.shared) == (2 + 2 + 2, 2)
    assert table.tables[1].blocks[:2] == table.tables[2].blocks[:2]
    table.free(1)
    assert (table.used, table.pool.shared) == (4, 0)
    check_integrity(table)
    assert all(device[block] == mark for block, mark in table.held(2)[2:])
    table.free(2)
    assert table.used == 0
    table.grow(3, 8, own(3), prefix=(0, 2))
    assert table.used == 2


def test_a_block_released_twice_or_shared_when_free_is_an_error() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release(block)
    with pytest.raises(AssertionError):
        pool.release(block)
    with pytest.raises(AssertionError):
        pool.share(block)


def test_a_full_pool_refuses() -> None:
    table, _ = tables(2)
    table.grow(1, 8, own(1))
    with pytest.raises(PoolExhausted):
        table.grow(2, 1, own(2))
    table.free(2)
    check_integrity(table)


def test_a_lost_and_a_doubled_block_are_found() -> None:
    table, _ = tables(4)
    table.grow(1, 8, own(1))
    table.tables[1].blocks.pop()
    with pytest.raises(IntegrityError, match="counts 1 holders, expected 0"):
        check_integrity(table)
    table, _ = tables(4)
    table.grow(1, 8, own(1))
    table.tables[1].blocks.append(table.tables[1].blocks[0])
    with pytest.raises(IntegrityError, match="counts 1 holders, expected 2"):
        check_integrity(table)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([None, 3, 8, 13]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans(), st.integers(0, 2)), max_size=60),
)
def test_whatever_happens_every_block_is_free_or_held(
    window: int | None, steps: list[tuple[int, int, bool, int]]
) -> None:
    table, device = tables(16, 4, window)
    for request, tokens, leaves, prefix in steps:
        if leaves and request in table.tables:
            table.free(request)
        elif request not in table.tables:
            shared = (prefix, tokens // 8) if window is None and prefix else None

            def mark(position: int, request: int = request, shared: tuple[int, int] | None = shared) -> int:
                inside = shared is not None and position < shared[1]
                return -1000 * shared[0] - position if inside and shared else request * 1000 + position

            try:
                table.grow(request, tokens, mark, shared)
            except PoolExhausted:
                table.free(request)
        check_integrity(table)
        for holder in table.tables:
            assert all(device[block] == expected for block, expected in table.held(holder))
    for request in list(table.tables):
        table.free(request)
    assert table.used == 0
    assert table.pool.free == 16
