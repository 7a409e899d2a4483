"""How many blocks a sequence holds: one law a cache group, from the engine's own layout.

Blocks in use while tokens n+1..n+c are computed after n stored ones:
    full       ceil((n + c) / block)
    window     ceil((n + c) / block) - max(0, n + 1 - window) // block     (blocks wholly out of sight are given back)
    fixed      a constant: state slots, or a contiguous reservation
(vllm/v1/core/kv_cache_manager.py and single_type_kv_cache_manager.py.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["full", "window", "fixed"]


@dataclass(frozen=True, slots=True)
class GroupLaw:
    """One cache group: `block` tokens a block; `window` for windows; `blocks` for fixed groups."""

    kind: Kind
    block: int = 16
    window: int = 0
    blocks: int = 0

    def held(self, stored: int, computing: int) -> int:
        """Blocks a sequence holds while `computing` tokens follow `stored` ones."""
        if self.kind == "fixed":
            return self.blocks
        blocks = -(-(stored + computing) // self.block)
        if self.kind == "window":
            blocks -= max(0, stored + 1 - self.window) // self.block
        return blocks


@dataclass(frozen=True)
class Layout:
    """The groups that draw on one pool of `blocks` blocks."""

    groups: tuple[GroupLaw, ...]
    blocks: int

    def held(self, stored: int, computing: int) -> int:
        """Blocks over all groups."""
        if len(self.groups) == 1:  # the common case, asked several times a request
            return self.groups[0].held(stored, computing)
        return sum(group.held(stored, computing) for group in self.groups)

    def at_rest(self, stored: int) -> int:
        """Blocks between two steps, after the last of `stored` tokens was computed."""
        return self.held(stored - 1, 1) if stored else 0

    @property
    def shares_prefixes(self) -> bool:
        """Whether full blocks alone hold everything a later prompt needs."""
        return len(self.groups) == 1 and self.groups[0].kind == "full"


class Growth:
    """Decoding sequences by residue: how many blocks they take and give back together in the steps to come.

    A sequence that joins at step d with n stored tokens takes a block of a growing group whenever n + steps is a
    multiple of the block size, so only (d - n) mod block matters; a window gives blocks back in the same rhythm.
    """

    def __init__(self, layout: Layout) -> None:
        self._growing = [group for group in layout.groups if group.kind != "fixed"]
        sizes = sorted({group.block for group in self._growing})
        self._taken = {size: [0] * size for size in sizes}
        self._given = {group.block: [0] * group.block for group in self._growing if group.kind == "window"}
        self._per_sequence = [(size, sum(1 for group in self._growing if group.block == size)) for size in sizes]
        self.members = 0
        #: stored tokens at which a sequence changes its rhythm
        self.knees = tuple(sorted({group.window for group in self._growing if group.kind == "window"}))
        self.gives = bool(self._given)

    def change(self, step: int, stored: int, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a sequence that has `stored` tokens before step `step`."""
        self.members += sign
        for size, count in self._per_sequence:
            self._taken[size][(step - stored) % size] += sign * count
        if self.gives:
            for group in self._growing:
                if group.kind == "window" and stored >= group.window:
                    self._given[group.block][(step - stored + group.window - 1) % group.block] += sign

    def taken(self, step: int) -> int:
        """Blocks taken in step `step`."""
        total = 0
        for size, counts in self._taken.items():
            total += counts[step % size]
        return total

    def given(self, step: int) -> int:
        """Blocks given back in step `step`, before any is taken."""
        return sum(counts[step % size] for size, counts in self._given.items())

    def net(self, step: int, steps: int) -> int:
        """Blocks taken less blocks given back over `steps` steps from `step` on."""
        if steps == 1:
            return self.taken(step) - (self.given(step) if self.gives else 0)
        total = 0
        for size, counts in self._taken.items():
            total += _over(counts, size, step, steps)
        for size, counts in self._given.items():
            total -= _over(counts, size, step, steps)
        return total

    def steps_within(self, step: int, steps: int, available: int) -> int:
        """How many of `steps` steps can run before one needs more than the `available` blocks."""
        done = 0
        while done < steps:
            safe = self._safe(available)
            if safe:
                safe = min(safe, steps - done)
                available -= self.net(step + done, safe)
                done += safe
                continue
            need = self.net(step + done, 1)
            if need > available:
                return done
            available -= need
            done += 1
        return steps

    def _safe(self, available: int) -> int:
        """Steps that `available` blocks surely last: whole rounds of the smallest block with every member growing."""
        if not self.members:
            return 1 << 60
        if len(self._per_sequence) == 1:
            size, count = self._per_sequence[0]
            rounds = available // (self.members * count)
            return (rounds - 1) * size if rounds > 1 else 0
        if not self._per_sequence:
            return 1 << 60
        size = self._per_sequence[0][0]
        rounds = available // (self.members * sum(count for _, count in self._per_sequence))
        return (rounds - 1) * size if rounds > 1 else 0


def _over(counts: list[int], size: int, step: int, steps: int) -> int:
    rounds, rest = divmod(steps, size)
    total = rounds * sum(counts) if rounds else 0
    if rest:
        first = step % size
        last = first + rest
        total += sum(counts[first:last]) if last <= size else sum(counts[first:]) + sum(counts[: last - size])
    return total
