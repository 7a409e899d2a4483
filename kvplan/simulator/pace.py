"""Many decode steps at once: with fixed members each step adds the same number of ticks to the one before.

    step k lasts  base + max(least, reads + k x slope)

Everything is a whole number of ticks, so the sum over steps equals stepping through them, to the tick.
"""

from __future__ import annotations

from math import sqrt


def span(base: int, least: int, reads: int, slope: int, steps: int) -> int:
    """Ticks that `steps` steps take together."""
    if reads >= least:
        return steps * (base + reads) + slope * (steps * (steps - 1) // 2)
    flat = steps if not slope else min(steps, -((reads - least) // slope))
    rest = steps - flat
    return steps * base + flat * least + rest * (reads + flat * slope) + slope * (rest * (rest - 1) // 2)


def steps_until(base: int, least: int, reads: int, slope: int, ticks: int) -> int:
    """The fewest steps, at least one, that take `ticks` ticks or more."""
    if ticks <= 0:
        return 1
    start, done, left = base + max(least, reads), 0, ticks
    if reads < least:
        flat = -((reads - least) // slope) if slope else 0
        if not slope or flat * start >= ticks:
            return -(-ticks // start)
        done, left = flat, ticks - flat * start
        start = base + reads + flat * slope
    if not slope:
        return max(1, done - (-left // start))
    linear = start - slope / 2
    steps = max(1, int((sqrt(linear * linear + 2.0 * slope * left) - linear) / slope))
    while start * steps + slope * (steps * (steps - 1) // 2) < left:
        steps += 1
    while steps > 1 and start * (steps - 1) + slope * ((steps - 1) * (steps - 2) // 2) >= left:
        steps -= 1
    return max(1, done + steps)
