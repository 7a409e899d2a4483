"""The published accuracy: current, within its targets, and with the calibration that the cases give."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.accuracy import DOCUMENT, TARGETS, cross_validated, document, enough, ninetieth, percent_error
from benchmarks.calibration import FITTED, fit
from benchmarks.evidence import cases, planned, predict, threads

CASES = cases()
BUDGETS = {case.id: predict(case) for case in CASES}
HELD = [case for case in CASES if enough(case)]


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run python -m benchmarks.accuracy --write"


def test_targets_are_met_on_the_cases_with_enough_flags() -> None:
    sizes = [abs(percent_error(case, BUDGETS[case.id])) for case in HELD]
    assert len(sizes) >= 40
    assert median(sizes) <= TARGETS[0]
    assert ninetieth(sizes) <= TARGETS[1]


def test_targets_are_met_on_sources_left_out_of_the_fit() -> None:
    sizes = [abs(error) for error in cross_validated(BUDGETS, HELD).values()]
    assert len(sizes) == len(HELD)
    assert median(sizes) <= TARGETS[0]
    assert ninetieth(sizes) <= TARGETS[1]


@pytest.mark.parametrize("name", sorted(FITTED))
def test_figures_in_use_are_the_fitted_ones(name: str) -> None:
    assert FITTED[name].in_use() == pytest.approx(fit(HELD, BUDGETS)[name], rel=0.05)


def test_ids_are_unique_and_each_case_names_its_source() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert all(case.source for case in CASES)


def test_the_percentile_is_the_nearest_rank() -> None:
    assert ninetieth(range(1, 11)) == 9
    assert ninetieth([5.0]) == 5.0


def test_every_thread_that_states_the_memory_flag_has_a_budget_or_a_reason() -> None:
    budgeted = {case.id for case in CASES}
    assert not [thread["id"] for thread in threads() if "left_out" in thread and thread["id"] in budgeted]
    targets = {"exact_tokens", "match", "match_within_1.5pct", "budget_closes"}
    assert planned() <= {thread["id"] for thread in threads()}
    reproduced = [thread for thread in threads() if thread["verdict"] in targets and thread["id"] in planned()]
    assert len(reproduced) >= 45
