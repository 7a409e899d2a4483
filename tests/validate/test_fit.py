"""Lines through times: known lines come back, a negative fixed cost does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.validate.fit import fit_line, summary


@given(st.floats(1e-6, 1e-3), st.floats(1e9, 1e13), st.lists(st.integers(10**6, 10**10), min_size=2, unique=True))
def test_a_line_is_found_again(t0: float, rate: float, sizes: list[int]) -> None:
    line = fit_line(sizes, [t0 + size / rate for size in sizes])
    for size in sizes:
        assert line.seconds(size) == pytest.approx(t0 + size / rate, rel=1e-6)


def test_a_fixed_cost_is_never_negative() -> None:
    line = fit_line([1e9, 2e9], [1e-3, 2.5e-3])  # the line through both would start below zero
    assert line.t0 == 0
    assert 6e11 < line.rate < 1e12


def test_time_that_does_not_grow_has_no_rate() -> None:
    assert fit_line([1e9, 2e9], [2e-3, 1e-3]).rate == float("inf")


def test_one_size_makes_no_line() -> None:
    with pytest.raises(InputError, match="found 1 different sizes"):
        fit_line([5, 5], [1.0, 2.0])


def test_summary_passes_over_outliers() -> None:
    median, spread = summary([1.0] * 18 + [0.1, 50.0])
    assert (median, spread) == (1.0, 0.0)
