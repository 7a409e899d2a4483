"""The event loop against closed forms of queueing theory (the laws are named; figures by arithmetic, not by kvplan).

The full length of 400,000 arrivals and three seeds runs with KVPLAN_FULL_CHECKS=1; else one short run a law, held to
the same law within the spread that its length allows.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from kvplan.performance.reads import TICKS
from kvplan.simulator.build import build
from kvplan.simulator.request import Request
from kvplan.simulator.result import summary
from kvplan.simulator.scenario import parse_scenario

FULL = os.environ.get("KVPLAN_FULL_CHECKS") == "1"
SEEDS = (1, 2, 3) if FULL else (1,)
ARRIVALS = 400_000 if FULL else 40_000


def simulate(**changes: Any) -> tuple[dict[str, Any], Any]:
    document = {"seed": 1, **changes}
    scenario = parse_scenario(document, "test")
    built = build(scenario, Path())
    built.simulation.run()
    return summary(built, scenario, "test"), built


def queue(rate: float, service: dict, slots: int, seed: int, **engine: Any) -> tuple[dict[str, Any], Any]:
    return simulate(
        seed=seed,
        step_time={"kind": "fixed_service"},
        engine={"max_num_seqs": slots, **engine},
        workload={"arrivals": {"rate": rate}, "requests": ARRIVALS, "service": service},
        warmup_requests=ARRIVALS // 10,
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def erlang_c(slots: int, load: float) -> float:
    """P(wait) of M/M/c: Erlang's C formula."""
    terms = sum(load**k / math.factorial(k) for k in range(slots))
    last = load**slots / math.factorial(slots) * slots / (slots - load)
    return last / (terms + last)


EXPONENTIAL = {"kind": "exponential", "mean": 1}
WIDE = 1 if FULL else 3  # a run ten times shorter spreads over three times as much


def test_mm1() -> None:
    runs = [queue(0.8, EXPONENTIAL, 1, seed)[0] for seed in SEEDS]
    assert mean([run["latency"]["e2e_s"]["mean"] for run in runs]) == pytest.approx(5, rel=0.03 * WIDE)
    assert mean([run["latency"]["queue_s"]["mean"] for run in runs]) == pytest.approx(4, rel=0.03 * WIDE)
    assert mean([run["mean_in_system"] for run in runs]) == pytest.approx(4, rel=0.03 * WIDE)
    assert mean([run["latency"]["e2e_s"]["p99"] for run in runs]) == pytest.approx(math.log(100) / 0.2, rel=0.05 * WIDE)


def test_md1() -> None:
    runs = [queue(0.8, {"value": 1}, 1, seed)[0] for seed in SEEDS]
    assert mean([run["latency"]["queue_s"]["mean"] for run in runs]) == pytest.approx(2.0, rel=0.02 * WIDE)


def test_md1_by_constant_steps() -> None:
    """The token engine with one slot and one-token answers is the same queue."""
    runs = [
        simulate(
            seed=seed,
            step_time={"kind": "constant_step", "base": 1.0},
            engine={"max_num_seqs": 1, "num_blocks": 10},
            workload={"arrivals": {"rate": 0.8}, "requests": ARRIVALS // 2, "prompt": 1, "output": 1},
            warmup_requests=ARRIVALS // 20,
        )[0]
        for seed in SEEDS
    ]
    assert mean([run["latency"]["e2e_s"]["mean"] for run in runs]) == pytest.approx(3.0, rel=0.02 * WIDE)


def test_mg1_pollaczek_khinchine() -> None:
    runs = [queue(0.7, {"kind": "gamma", "mean": 1, "cv": 2}, 1, seed)[0] for seed in SEEDS]
    expected = (1 + 4) / 2 * 0.7 / 0.3
    assert mean([run["latency"]["queue_s"]["mean"] for run in runs]) == pytest.approx(expected, rel=0.05 * WIDE)


def waits_of(rate: float, slots: int, seed: int) -> tuple[list[float], float]:
    """Every wait of a run after its first tenth, in order of arrival, and how busy the slots were."""
    scenario = parse_scenario(
        {"seed": seed, "step_time": {"kind": "fixed_service"}, "engine": {"max_num_seqs": slots},
         "workload": {"arrivals": {"rate": rate}, "requests": ARRIVALS, "service": EXPONENTIAL}},
        "test",
    )  # fmt: skip
    built = build(scenario, Path())
    waits = [0.0] * ARRIVALS

    def note(request: Request) -> None:
        waits[request.id] = (request.admitted - request.arrival) / TICKS

    built.metrics.on_request = note
    built.simulation.run()
    return waits[ARRIVALS // 10 :], summary(built, scenario, "test")["utilization"]


def interval(runs: list[list[float]], batches: int = 20) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval by batch means, which are far less correlated than waits."""
    means = []
    for values in runs:
        size = len(values) // batches
        means += [mean(values[size * i : size * (i + 1)]) for i in range(batches)]
    center = mean(means)
    variance = sum((value - center) ** 2 for value in means) / (len(means) - 1)
    return center, 2.0 * math.sqrt(variance / len(means))  # Student's t is 2.00 to 2.09 at 19 to 59 degrees of freedom


@pytest.mark.parametrize(
    ("slots", "load", "share", "wait", "late"),
    [(4, 3.2, 0.596432, 0.745541, 0.267994), (8, 6.4, 0.457645, 0.286028, 0.092397),
     (16, 14.4, 0.591343, 0.369590, 0.119390), (32, 28.8, 0.458197, 0.143186, 0.018677)],
)  # fmt: skip
def test_mmc_erlang_c(slots: int, load: float, share: float, wait: float, late: float) -> None:
    """P(wait), the mean wait, and P(wait > 1) = P(wait) x exp(-(slots - load)), each with its confidence interval."""
    assert erlang_c(slots, load) == pytest.approx(share, abs=1e-6)
    assert share * math.exp(load - slots) == pytest.approx(late, abs=1e-6)
    runs = [waits_of(load, slots, seed) for seed in SEEDS]
    waits = [values for values, _ in runs]
    figures = {
        "P(wait)": (share, [[float(value > 0) for value in values] for values in waits]),
        "mean wait": (wait, waits),
        "P(wait > 1)": (late, [[float(value > 1) for value in values] for values in waits]),
    }
    for name, (expected, values) in figures.items():
        found, half = interval(values)
        said = f"{name}: {found:.6f} +- {half:.6f} (95 %), expected {expected}"
        print(f"{slots} slots, {said}")
        # In the short form the law must lie in the interval (three half widths) where 4 % would ask too much.
        assert abs(found - expected) < (0.04 * expected if FULL else max(0.04 * expected, 3 * half)), said
    assert mean([busy for _, busy in runs]) == pytest.approx(load / slots, rel=0.02)


@pytest.mark.parametrize("service", [EXPONENTIAL, {"value": 1}], ids=["exponential", "fixed"])
@pytest.mark.parametrize(("slots", "load", "refused"), [(8, 6.4, 0.144394), (16, 14.4, 0.126412), (64, 60, 0.060363)])
def test_erlang_b_whatever_the_law(slots: int, load: float, refused: float, service: dict) -> None:
    runs = [queue(load, service, slots, seed, queue_limit=0)[0] for seed in SEEDS]
    shares = [run["requests"]["unservable"]["no free slot"] / run["requests"]["arrived"] for run in runs]
    assert mean(shares) == pytest.approx(refused, rel=0.03 * WIDE)


@pytest.mark.parametrize(("slots", "rho", "wait"), [(4, 0.8, 0.381), (16, 0.9, 0.191)])
def test_mdc(slots: int, rho: float, wait: float) -> None:
    runs = [queue(rho * slots, {"value": 1}, slots, seed)[0] for seed in SEEDS]
    assert mean([run["latency"]["queue_s"]["mean"] for run in runs]) == pytest.approx(wait, rel=0.04 * WIDE)


def test_more_than_the_slots_can_do_is_called_overloaded() -> None:
    run, built = queue(1.1 * 4, EXPONENTIAL, 4, 1)
    assert run["stability"] == "overloaded"
    assert run["steady"] is False
    grown = built.metrics.trend.last / (ARRIVALS / 4.4)
    assert grown == pytest.approx(0.1 * 4, rel=0.1)
    assert queue(0.8 * 4, EXPONENTIAL, 4, 1)[0]["stability"] == "stable"


def test_littles_law_is_exact() -> None:
    """L = lambda x W where all three come from one drained run."""
    run, built = queue(0.8, EXPONENTIAL, 1, 5)
    metrics = built.metrics
    span = run["duration_s"]
    rate = run["requests"]["finished"] / span
    whole = metrics.sojourn / 1e18 / run["requests"]["finished"]
    assert run["mean_in_system"] == pytest.approx(rate * whole, rel=1e-9)


AFFINE = {"kind": "affine", "base": "5ms", "per_sequence": 0.00005}


def test_closed_loop_of_64_users() -> None:
    """Step 8.2 ms, 64/0.0082 tokens/s, 2.0992 s a request, N = X x R."""
    run, _ = simulate(
        step_time=AFFINE,
        engine={"num_blocks": 10_000, "max_num_seqs": 64},
        workload={"arrivals": {"kind": "closed", "users": 64}, "requests": 640, "prompt": 16, "output": 256},
    )
    assert run["latency"]["e2e_s"]["mean"] == pytest.approx(256 * 0.0082, rel=1e-9)
    assert run["throughput"]["output_tokens_per_s"] == pytest.approx(64 / 0.0082, rel=1e-9)
    assert run["mean_in_system"] == pytest.approx(64, rel=1e-9)


def test_open_loop_fixed_point() -> None:
    runs = [
        simulate(
            seed=seed,
            step_time=AFFINE,
            engine={"num_blocks": 100_000, "max_num_seqs": 2048},
            workload={"arrivals": {"rate": 20}, "requests": 20_000 if FULL else 6_000, "prompt": 16, "output": 256},
            warmup_requests=500,
        )[0]
        for seed in (1, 2, 3)
    ]
    for run in runs:  # at the rate that each run really had
        rate = run["throughput"]["requests_per_s"]
        batch = rate * 256 * 0.005 / (1 - rate * 256 * 0.00005)
        assert run["pool"]["mean_running"] == pytest.approx(batch, rel=0.02)
    rate = mean([run["throughput"]["requests_per_s"] for run in runs])
    assert rate == pytest.approx(20, rel=0.02)
    expected = 256 * (0.005 + 0.00005 * 25.6 / (1 - 0.256))
    assert mean([run["latency"]["tpot_s"]["mean"] * 256 for run in runs]) == pytest.approx(expected, rel=0.03)


def test_saturation_rate_of_256_slots() -> None:
    """Fed more than B/(g T(B)) = 56.1798 requests/s the engine does that much and is overloaded."""
    run, _ = simulate(
        step_time=AFFINE,
        engine={"num_blocks": 100_000, "max_num_seqs": 256},
        workload={"arrivals": {"rate": 70}, "requests": 20_000, "prompt": 16, "output": 256},
    )
    assert run["throughput"]["requests_per_s"] == pytest.approx(256 / (256 * 0.0178), rel=0.02)
    assert run["stability"] == "overloaded"
    assert run["binding"]["resource"] == "slots"


@pytest.mark.parametrize(("rate", "label"), [(75, "stable"), (85, "overloaded")])
def test_without_a_slot_cap_the_limit_is_one_over_g_t1(rate: int, label: str) -> None:
    """1/(g t1) = 78.125 requests/s: below it the batch settles, above it the running batch grows without end."""
    run, _ = simulate(
        step_time=AFFINE,
        engine={"num_blocks": 10**8, "max_num_seqs": 10**6, "max_num_batched_tokens": 10**6},
        workload={"arrivals": {"rate": rate}, "requests": 30_000, "prompt": 16, "output": 256},
    )
    done = run["throughput"]["requests_per_s"]
    assert run["stability"] == label
    assert (done == pytest.approx(rate, rel=0.04)) == (label == "stable")
    assert done < 78.125


def test_a_run_too_short_to_settle_is_not_called_steady() -> None:
    """200 requests in 20 s that take over 100 s each: all pile up, and nothing shows whether that would end."""
    run, _ = simulate(
        step_time=AFFINE,
        engine={"num_blocks": 10**6, "max_num_seqs": 1000},
        workload={"arrivals": {"rate": 10}, "requests": 200, "prompt": 16, "output": 20_000},
    )
    assert run["latency"]["e2e_s"]["mean"] > 100
    assert run["stability"] == "backlogged"
    assert run["steady"] is False


def test_contiguous_reservation_against_pages() -> None:
    """p=500, k=100, M=2048: 128 blocks of 16 reserved for 600 tokens (70.70 % wasted), 38 when paged."""
    used = {}
    for layout in ("contiguous", "paged"):
        run, _ = simulate(
            step_time={"kind": "constant_step", "base": 1.0},
            engine={"num_blocks": 200, "layout": layout, "max_model_len": 2048},
            workload={"arrivals": {"kind": "at_once"}, "requests": 1, "prompt": 500, "output": 100},
        )
        used[layout] = run["pool"]["peak_used_blocks"]
    assert used == {"contiguous": 128, "paged": 38}
    wasted = {layout: 1 - 600 / (blocks * 16) for layout, blocks in used.items()}
    assert wasted == pytest.approx({"contiguous": 0.707031, "paged": 0.013158}, abs=1e-6)


def test_measured_waste_of_full_reservations_and_of_pages() -> None:
    """Sequences of 500 to 600 tokens: on average 1 - 550.5/2048 of a reservation is wasted, under 2 % of the pages."""
    waste = {}
    for layout in ("contiguous", "paged"):
        run, _ = simulate(
            step_time={"kind": "constant_step", "base": 1.0},
            engine={"num_blocks": 2000, "layout": layout, "max_model_len": 2048, "enable_prefix_caching": False},
            workload={"arrivals": {"kind": "at_once"}, "requests": 10, "prompt": 500, "output": 100},
        )
        waste[layout] = run["pool"]["waste"]
    assert waste["contiguous"] == pytest.approx(1 - 550.5 / 2048, abs=0.03)
    assert 0 < waste["paged"] < 0.02


def test_tail_waste_is_half_a_block() -> None:
    """Lengths spread over all residues waste (B-1)/2 = 7.5 tokens a sequence at B=16."""
    from kvplan.simulator.laws import GroupLaw, Layout

    layout = Layout((GroupLaw("full", 16),), 0)
    waste = [layout.at_rest(n) * 16 - n for n in range(1009, 1041)]
    assert mean([float(w) for w in waste]) == 7.5
    assert max(waste) == 15


def test_prefix_cache_changes_nothing_without_repeats() -> None:
    documents = []
    for caching in (True, False):
        run, _ = simulate(
            model="llama-3.1-8b",
            hardware={"gpu": "h100"},
            engine={"num_blocks": 3000, "enable_prefix_caching": caching, "max_model_len": 4096},
            workload={
                "arrivals": {"rate": 20}, "requests": 300,
                "prompt": {"kind": "lognormal", "mean": 700, "cv": 1, "most": 3000}, "output": 100,
            },
        )  # fmt: skip
        documents.append(run["latency"])
        assert run["prefix_cache"]["hit_tokens"] == 0
    assert documents[0] == documents[1]
