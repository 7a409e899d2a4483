"""How many requests a pool holds: real tables over real blocks, filled until the next request is refused, then churned.

Every block that is handed out gets its owner's mark written into device memory. A block given to two owners, lost or
overwritten shows when the marks are read back through the tables.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvplan.validate.blocks import GroupTables, IntegrityError, PoolExhausted, check_integrity
from kvplan.validate.checks import Check, Series
from kvplan.validate.groups import PoolGroup
from kvplan.validate.pools import GroupPool, Pools

SECTION = "capacity"
_PREFIX_MARK = 1 << 62
_POSITIONS = 1 << 32


@dataclass(frozen=True)
class Churn:
    """How long to churn: `steps` arrivals and departures, marks read back every `verify` of them."""

    steps: int = 120
    verify: int = 20
    prefixes: int = 3


def capacity_checks(
    pools: Pools, churn: Churn, seed: int, tick: Callable[[], None] = lambda: None
) -> tuple[list[Check], list[Series]]:
    """Fill, refuse, read back, churn; rows per group and for the whole, and the fill as a plot."""
    rows: list[Check] = []
    for pool in pools.groups:
        rows.extend(_fill_group(pools, pool))
        tick()
    filled, series = _fill_all(pools)
    rows.extend(filled)
    tick()
    rows.extend(_churn(pools, churn, random.Random(seed)))  # noqa: S311 (lengths of test requests, no secrets)
    return rows, [series]


def _tables(pools: Pools, pool: GroupPool) -> GroupTables:
    torch = pools.device.torch
    group = pool.group
    window = group.window if group.grows else None
    return GroupTables(
        pool.blocks, group.block_tokens, window, lambda blocks, marks: pool.write_marks(torch, blocks, marks)
    )


def _tokens(group: PoolGroup, length: int) -> int:
    """Tokens the table of a request of `length` tokens holds: all in a growing group, one block's worth in a state."""
    return length + group.part.stored.constant if _pins(group) else length if group.grows else group.block_tokens


def _pins(group: PoolGroup) -> bool:
    return group.grows and group.window is None and group.part.stored.constant > 0


def _owner(request: int) -> Callable[[int], int]:
    return lambda position: request * _POSITIONS + position + 1


def _fill_group(pools: Pools, pool: GroupPool) -> Iterator[Check]:
    """One group alone: requests of the case's length until refusal, then one sequence that takes the whole pool."""
    group, case = pool.group, pools.case
    predicted = pool.blocks // group.blocks_for(case.length)
    tables = _tables(pools, pool)
    admitted = 0
    while _try_grow(tables, admitted, _tokens(group, case.length)):
        admitted += 1
    tables.free(admitted)
    yield Check(SECTION, case.name, f"{group.name}: requests of {case.length:,} at refusal", predicted, admitted,
                "requests")  # fmt: skip
    yield Check(SECTION, case.name, f"{group.name}: blocks overwritten", 0, _wrong(pools, pool, tables), "blocks")
    if group.grows and group.window is None and not group.part.stored.constant:
        tables = _tables(pools, pool)
        held = 0
        while _try_grow(tables, 0, held + 1):
            held += group.block_tokens
        yield Check(SECTION, case.name, f"{group.name}: tokens of one sequence at refusal",
                    pool.blocks * group.block_tokens, held, "tokens")  # fmt: skip


def _try_grow(tables: GroupTables, request: int, tokens: int) -> bool:
    try:
        tables.grow(request, tokens, _owner(request))
    except PoolExhausted:
        return False
    return True


def _wrong(pools: Pools, pool: GroupPool, tables: GroupTables) -> int:
    held = [pair for request in tables.tables for pair in tables.held(request)]
    if not held:
        return 0
    blocks, marks = zip(*held, strict=True)
    return pool.wrong_marks(pools.device.torch, blocks, marks)


def _fill_all(pools: Pools) -> tuple[list[Check], Series]:
    """All groups together: a request runs only if each group has room for it."""
    case = pools.case
    tables = [_tables(pools, pool) for pool in pools.groups]
    limits = [pool.blocks // pool.group.blocks_for(case.length) for pool in pools.groups]
    used: list[float] = []
    admitted, refused = 0, ""
    while not refused:
        for pool, table in zip(pools.groups, tables, strict=True):
            if not _try_grow(table, admitted, _tokens(pool.group, case.length)):
                refused = pool.group.name
                break
        if not refused:
            admitted += 1
            used.append(float(sum(table.used for table in tables)))
    first = pools.groups[limits.index(min(limits))].group.name
    rows = [
        Check(SECTION, case.name, f"requests of {case.length:,} at refusal (by {first})", min(limits), admitted,
              "requests"),
        Check(SECTION, case.name, "tokens at refusal", min(limits) * case.length, admitted * case.length, "tokens"),
        Check(SECTION, case.name, "group that refuses is the one predicted", 1, int(refused == first), "yes/no"),
    ]  # fmt: skip
    series = Series(
        f"{case.name}: blocks used", "requests", "blocks", [float(number) for number in range(1, len(used) + 1)], used
    )
    return rows, series


def _churn(pools: Pools, churn: Churn, chance: random.Random) -> Iterator[Check]:
    """Arrivals of mixed lengths, some with a shared prefix, and departures: nothing may grow, get lost or mixed up."""
    case, torch_figures = pools.case, pools.device.allocator()
    tables = [_tables(pools, pool) for pool in pools.groups]
    running: list[int] = []
    wrong = refusals = broken = shared = 0
    for step in range(churn.steps):
        length = chance.randint(1, case.length)
        prefix = chance.randrange(churn.prefixes) if chance.random() < 0.5 else None
        while not _admit(pools, tables, step, length, prefix):
            refusals += 1
            if not running:
                break
            _leave(tables, running.pop(chance.randrange(len(running))))
        else:
            running.append(step)
        if running and chance.random() < 0.3:
            _leave(tables, running.pop(chance.randrange(len(running))))
        shared = max(shared, sum(table.pool.shared for table in tables))
        if step % churn.verify == churn.verify - 1:
            wrong += sum(_wrong(pools, pool, table) for pool, table in zip(pools.groups, tables, strict=True))
            broken += sum(_broken(table) for table in tables)
    for request in running:
        _leave(tables, request)
    lost = sum(table.used for table in tables)
    yield Check(SECTION, case.name, f"churn of {churn.steps} requests: blocks overwritten", 0, wrong, "blocks")
    yield Check(SECTION, case.name, "churn: times a request had to wait", None, refusals, "times", judged=False)
    yield Check(SECTION, case.name, "churn: most blocks shared at once", None, shared, "blocks", judged=False)
    yield Check(SECTION, case.name, "churn: tables that contradict the pool", 0, broken, "tables")
    yield Check(SECTION, case.name, "churn: blocks lost after all have left", 0, lost, "blocks")
    if torch_figures is not None:
        after = pools.device.allocator()
        assert after is not None
        yield Check(SECTION, case.name, "churn: growth of reserved memory", 0, after.reserved - torch_figures.reserved,
                    "B")  # fmt: skip


def _admit(pools: Pools, tables: list[GroupTables], request: int, length: int, prefix: int | None) -> bool:
    """Grow every group of `request`, or none."""
    for number, (pool, table) in enumerate(zip(pools.groups, tables, strict=True)):
        group = pool.group
        tokens = _tokens(group, length)
        # Only whole blocks of groups that keep everything can be shared: a window leaves its prefix behind.
        whole = tokens // group.block_tokens if group.grows and group.window is None else 0
        shared = (prefix, whole // 2) if prefix is not None and whole >= 2 else None
        try:
            table.grow(request, tokens, _mark(request, shared), shared)
        except PoolExhausted:
            for done in tables[: number + 1]:
                done.free(request)
            return False
    return True


def _mark(request: int, shared: tuple[int, int] | None) -> Callable[[int], int]:
    own = _owner(request)
    if shared is None:
        return own
    name, count = shared
    return lambda position: _PREFIX_MARK + name * _POSITIONS + position if position < count else own(position)


def _leave(tables: list[GroupTables], request: int) -> None:
    for table in tables:
        table.free(request)


def _broken(table: GroupTables) -> int:
    try:
        check_integrity(table)
    except IntegrityError:
        return 1
    return 0
