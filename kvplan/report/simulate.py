"""Replays and simulations for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplan.report.console import plain_table, stdout

if TYPE_CHECKING:
    from kvplan.simulator.replay import ReplayRow


def print_replay(rows: Sequence[ReplayRow], block: int) -> None:
    """One line a capacity and policy, with the definition of every rate."""
    table = plain_table("policy")
    for heading in ("blocks", "hit blocks", "hit tokens", "of tokens", "last half"):
        table.add_column(heading, justify="right", no_wrap=True)
    split = any(row.misses is not None for row in rows)
    for heading in ("never reusable", "lost to capacity", "lost to policy") if split else ():
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [
            row.policy,
            "unbounded" if row.capacity_blocks is None else f"{row.capacity_blocks:,}",
            f"{row.hit_blocks:,}",
            f"{row.hit_tokens:,}",
            f"{row.token_hit_rate:.2%}",
            f"{row.last_half_token_hit_rate:.2%}",
        ]
        if row.misses is not None:
            misses = row.misses
            lost = (misses.never_reusable_blocks, misses.lost_to_capacity_blocks, misses.lost_to_policy_blocks)
            cells += [f"{count:,}" for count in lost]
        table.add_row(*cells)
    console = stdout()
    console.print(table)
    first = rows[0]
    order = first.touch_order.replace("_", "-")
    console.print(
        f"{first.requests:,} requests, {first.total_blocks:,} blocks of {block} tokens, {first.total_tokens:,} prompt "
        f"tokens; touch order {order}. A hit is the longest leading run of a prompt's blocks that is resident on "
        "arrival; `of tokens` counts the whole trace from a cold cache, `last half` the second half of the requests "
        "with the cache warm."
    )
