"""Straight lines through measured times: a fixed cost and a rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvplan.errors import InputError


@dataclass(frozen=True)
class Line:
    """seconds = t0 + bytes / rate; `rate` in bytes a second, infinite where time does not grow with bytes."""

    t0: float
    rate: float

    def seconds(self, size: float) -> float:
        return self.t0 + size / self.rate


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Least squares of seconds over bytes, weighted so that relative errors count alike; t0 is kept at 0 or above.

    Raises InputError with fewer than two different sizes.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2:
        raise InputError(f"fit: found {len(set(sizes))} different sizes, expected at least 2")
    weights = [1 / (value * value) for value in seconds]
    total = sum(weights)
    mean_size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_time = sum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    spread = sum(w * (x - mean_size) ** 2 for w, x in zip(weights, sizes, strict=True))
    shared = sum(w * (x - mean_size) * (y - mean_time) for w, x, y in zip(weights, sizes, seconds, strict=True))
    slope = shared / spread
    t0 = mean_time - slope * mean_size
    if t0 < 0:  # through the origin instead: a negative launch cost has no meaning
        t0 = 0.0
        slope = sum(w * x * y for w, x, y in zip(weights, sizes, seconds, strict=True)) / sum(
            w * x * x for w, x in zip(weights, sizes, strict=True)
        )
    return Line(t0, 1 / slope if slope > 0 else float("inf"))


def summary(samples: Sequence[float]) -> tuple[float, float]:
    """Median and spread: half the distance between the 10th and the 90th percentile."""
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return median(ordered), (high - low) / 2
