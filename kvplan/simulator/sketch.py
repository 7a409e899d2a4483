"""Distributions in constant memory: exact while small, then logarithmic bins that keep every quantile to 0.5 %.

The bins are those of DDSketch (arXiv 1908.10693): value v lies in bin ceil(log v / log gamma), a bin's midpoint differs
from each of its values by at most 0.5 %. Counts, sums and extremes stay exact.
"""

from __future__ import annotations

from math import ceil, exp, log

ACCURACY = 0.005
EXACT_VALUES = 20_000
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_SCALE = 1 / log(_GAMMA)


class Sketch:
    """A distribution of values from 0. `add` may carry a weight; weighted values go to the bins at once."""

    __slots__ = ("_bins", "_values", "count", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = float("inf")
        self.largest = 0.0
        self._values: list[float] | None = []
        self._bins: dict[int, int] = {}

    def add(self, value: float, weight: int = 1) -> None:
        """Count `value` `weight` times."""
        self.count += weight
        self.total += value * weight
        if value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        values = self._values
        if values is not None and weight == 1 and len(values) < EXACT_VALUES:
            values.append(value)
            return
        if values is not None:
            self._values = None
            for known in values:
                self._bin(known, 1)
        self._bin(value, weight)

    def add_ramp(self, first: float, last: float, count: int, weight: int) -> None:
        """Count `count` values evenly spaced from `first` to `last`, `weight` times each."""
        if count < 3 or last <= first * _GAMMA:
            middle = (first + last) / 2
            self.add(middle, count * weight)
            return
        half = count // 2
        middle = first + (last - first) * (half - 1) / (count - 1)
        self.add_ramp(first, middle, half, weight)
        self.add_ramp(first + (last - first) * half / (count - 1), last, count - half, weight)

    def _bin(self, value: float, weight: int) -> None:
        index = ceil(log(value) * _SCALE) if value > 1e-12 else -(1 << 40)
        self._bins[index] = self._bins.get(index, 0) + weight

    @property
    def mean(self) -> float:
        """The mean, 0 without values."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of the values don't exceed (nearest rank)."""
        if not self.count:
            return 0.0
        rank = max(1, ceil(share * self.count - 1e-9))
        if self._values is not None:
            self._values.sort()
            return self._values[rank - 1]
        seen = 0
        for index in sorted(self._bins):
            seen += self._bins[index]
            if seen >= rank:
                middle = 2 * exp(index / _SCALE) / (1 + _GAMMA) if index > -(1 << 40) else 0.0
                return min(max(middle, self.smallest), self.largest)
        return self.largest

    def points(self, count: int = 200) -> list[tuple[float, float]]:
        """(value, share of values not above it) along the distribution."""
        return [(self.quantile(step / count), step / count) for step in range(1, count + 1)] if self.count else []
