"""The closed forms against figures computed by hand-written programs outside kvplan (facts on simulator checks)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.planner import queueing

# c, a, P(wait), Wq, P(Wq > 1), mu = 1: check 5
ERLANG_C = [
    (4, 3.2, 0.596432, 0.745541, 0.267994),
    (8, 6.4, 0.457645, 0.286028, 0.092397),
    (16, 14.4, 0.591343, 0.369590, 0.119390),
    (32, 28.8, 0.458197, 0.143186, 0.018677),
]


@pytest.mark.parametrize(("servers", "load", "waits", "wait", "beyond"), ERLANG_C)
def test_erlang_c(servers: int, load: float, waits: float, wait: float, beyond: float) -> None:
    assert queueing.erlang_c(servers, load) == pytest.approx(waits, abs=5e-7)
    assert queueing.mmc_wait(servers, load) == pytest.approx(wait, abs=5e-7)
    assert queueing.mmc_wait_exceeds(servers, load, 1.0) == pytest.approx(beyond, abs=5e-7)


@pytest.mark.parametrize(("servers", "load", "refused"), [(8, 6.4, 0.144394), (16, 14.4, 0.126412), (64, 60, 0.060363)])
def test_erlang_b(servers: int, load: float, refused: float) -> None:
    assert queueing.erlang_b(servers, load) == pytest.approx(refused, abs=5e-7)


def test_one_server() -> None:
    # Checks 2 to 4: M/M/1 at 0.8, M/D/1 at 0.8, M/G/1 with a squared CV of 4 at 0.7.
    assert queueing.mmc_wait(1, 0.8) == pytest.approx(4.0)
    assert queueing.mg1_wait(0.8, variability=0.0) == pytest.approx(2.0)
    assert queueing.mg1_wait(0.7, variability=4.0) == pytest.approx(5.8333, abs=5e-5)
    # P(W > t) of the sojourn is exp(-0.2 t); of the wait 0.8 exp(-0.2 t): its p99 is ln(80) / 0.2.
    assert queueing.ggc_wait_quantile(0.99, 1, 0.8) == pytest.approx(math.log(80) / 0.2)


@pytest.mark.parametrize(("servers", "load", "wait"), [(4, 3.2, 0.381), (16, 14.4, 0.191)])
def test_fixed_service_times(servers: int, load: float, wait: float) -> None:
    # Check 7, three runs of an event program of 400,000 arrivals each: 0.3807 to 0.3821, 0.1893 to 0.1953.
    assert queueing.mdc_wait(servers, load) == pytest.approx(wait, rel=0.03)
    assert queueing.kimura_wait(servers, load, variability=0.0) == pytest.approx(wait, rel=0.03)


LOADS = st.floats(0.01, 0.99)
SERVERS = st.integers(1, 200)


@given(SERVERS, LOADS, st.floats(0.1, 10))
def test_two_moments_give_the_exact_laws_where_there_are_any(servers: int, busy: float, variability: float) -> None:
    load = servers * busy
    exponential = queueing.mmc_wait(servers, load)
    assert queueing.ggc_wait(servers, load) == pytest.approx(exponential)
    assert queueing.kimura_wait(servers, load, variability=1.0) == pytest.approx(exponential)
    one = queueing.ggc_wait(1, busy, variability=variability)
    assert one == pytest.approx(queueing.mg1_wait(busy, variability=variability))
    assert queueing.mg1_wait(busy, variability=0.0) == pytest.approx(queueing.mdc_wait(1, busy))


@given(SERVERS, LOADS, LOADS)
def test_more_load_waits_longer_and_more_servers_shorter(servers: int, low: float, high: float) -> None:
    low, high = sorted((servers * low, servers * high))
    assert queueing.erlang_b(servers, low) <= queueing.erlang_b(servers, high) + 1e-12
    assert queueing.mmc_wait(servers, low) <= queueing.mmc_wait(servers, high) * (1 + 1e-9)
    assert queueing.mmc_wait(servers + 1, high) <= queueing.mmc_wait(servers, high)
    assert queueing.erlang_b(servers, high) <= queueing.erlang_c(servers, high) + 1e-12


@given(SERVERS, LOADS, st.floats(0.5, 0.999))
def test_a_quantile_is_where_its_tail_begins(servers: int, busy: float, share: float) -> None:
    load = servers * busy
    wait = queueing.ggc_wait_quantile(share, servers, load)
    beyond = queueing.mmc_wait_exceeds(servers, load, wait)
    assert beyond == pytest.approx(min(1 - share, queueing.erlang_c(servers, load)))


def test_at_and_above_capacity_the_wait_has_no_end() -> None:
    for load in (4.0, 4.4):
        assert queueing.erlang_c(4, load) == 1.0
        assert queueing.mmc_wait(4, load) == queueing.ggc_wait_quantile(0.99, 4, load) == math.inf
    with pytest.raises(InputError, match="at least 1"):
        queueing.erlang_b(0, 1.0)
    with pytest.raises(InputError, match="one from 0"):
        queueing.erlang_c(4, math.nan)
