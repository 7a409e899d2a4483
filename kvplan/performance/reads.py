"""What a decode step loads for one sequence, as a sum of straight lines in the number of stored tokens.

    time(n) = start + sum over terms of slope x min(n, knee)

A window stops growing at its size, a sparse read at its budget. Compressed entries count as fractions here, since a
time needs no whole entries. Times are whole ticks, so that a sum over many steps has no rounding in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.cache.size import CachePlan
from kvplan.cache.techniques.flops import entry_flops, source_layer

#: ticks in a second: attoseconds. An hour is 3.6e21 of them, which Python's integers hold exactly.
TICKS = 10**18
NEVER = 1 << 62


@dataclass(frozen=True)
class Reads:
    """Ticks of decode attention for one sequence at n stored tokens; `terms` are (slope, knee), `knee` in tokens."""

    start: int
    terms: tuple[tuple[int, int], ...]

    def ticks(self, n: int) -> int:
        """Ticks one decode step spends on a sequence of `n` tokens."""
        total = self.start
        for slope, knee in self.terms:
            total += slope * (n if n < knee else knee)
        return total

    @property
    def knees(self) -> tuple[int, ...]:
        """Where the slope falls, in rising order, without the terms that never end."""
        return tuple(sorted({knee for _, knee in self.terms if knee != NEVER}))

    def slope(self, n: int) -> int:
        """Ticks that the step from n to n + 1 tokens adds."""
        total = 0
        for slope, knee in self.terms:
            if n < knee:
                total += slope
        return total


def reads_of(plan: CachePlan, seconds_per_byte: float, seconds_per_flop: float) -> Reads:
    """The line of `plan`: each entry costs its bytes or its arithmetic, whichever takes longer (MLA may compute)."""
    start = 0.0
    slopes: dict[int, float] = {}
    for group in plan.groups:
        part, law = group.part, group.part.read
        if not group.readers:
            continue
        if part.role == "state":
            start += group.readers * part.stored_bytes(1) * 2 * seconds_per_byte  # read and written back
            continue
        flops = entry_flops(source_layer(plan.spec, group), part.name)
        entry_bytes = _entry_bytes(part)
        cost = group.readers * max(entry_bytes * seconds_per_byte, flops * seconds_per_flop)
        start += cost * law.constant
        if not law.grows:
            continue
        knee = min(
            NEVER if law.window is None else law.window,
            NEVER if law.limit is None else law.limit * law.ratio,
        )
        slopes[knee] = slopes.get(knee, 0.0) + cost / law.ratio
    terms = tuple((round(slope * TICKS), knee) for knee, slope in sorted(slopes.items()))
    return Reads(round(start * TICKS), terms)


def _entry_bytes(part: object) -> float:
    grouped = getattr(part, "grouped", None)
    if grouped is None:
        return float(part.entry_bytes)  # type: ignore[attr-defined]
    period = grouped.residual
    return float((part.bytes(2 * period) - part.bytes(period)) / period)  # type: ignore[attr-defined]
