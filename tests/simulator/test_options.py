"""Rules beside the default: swap, SGLang's admission, eviction budgets, branches, priorities, profiles, laws."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest

from kvplan.hardware.accelerators import find
from kvplan.hardware.profile import AttentionProfile, DeviceProfile, GemmProfile
from kvplan.performance.factors import find_factors, with_profile
from kvplan.simulator.build import Built, build
from kvplan.simulator.engine import Engine
from kvplan.simulator.request import Request
from kvplan.simulator.scenario import Arrivals, Law, parse_scenario
from kvplan.simulator.sketch import ACCURACY, Sketch
from kvplan.simulator.workload import arrival_gaps, sampler

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {"arrivals": {"rate": 12}, "requests": 250, "prompt": {"kind": "uniform", "low": 300, "high": 900},
                 "output": {"kind": "uniform", "low": 50, "high": 250}},
    "seed": 6,
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Built, list[Request]]:
    """Run with every block counted after every action."""
    built = build(parse_scenario({**BASE, **changes}, "test"), Path())
    done: list[Request] = []
    built.metrics.on_request = done.append
    plain = Engine.advance

    def checked(engine: Engine, limit: int) -> None:
        plain(engine, limit)
        engine.check()

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "advance", checked)
        built.simulation.run()
    assert all(not replica.busy for replica in built.replicas)
    return built, done


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_a_full_pool_loses_no_block(monkeypatch, preemption: str, order: str) -> None:
    engine = {"num_blocks": 700, "max_model_len": 2048, "preemption": preemption, "scheduling_policy": order}
    built, done = run(monkeypatch, engine=engine, workload={**BASE["workload"], "priorities": [1, 1]})
    assert len(done) == 250
    assert built.metrics.preemptions > 0
    # Swapped sequences come back whole; only an unfinished prefill that gives way is computed again.
    each = built.metrics.recomputed / built.metrics.preemptions
    assert each < 100 if preemption == "swap" else each > 300
    [replica] = built.replicas
    assert replica.pool.available == replica.pool.total


def test_priority_serves_the_lower_class_first(monkeypatch) -> None:
    engine = {"num_blocks": 700, "max_model_len": 2048, "scheduling_policy": "priority"}
    _, done = run(monkeypatch, engine=engine, workload={**BASE["workload"], "priorities": [1, 1]})
    waits = [fmean(r.admitted - r.arrival for r in done if r.priority == kind) for kind in (0, 1)]
    assert waits[0] < waits[1] / 2


def test_holding_back_output_preempts_less(monkeypatch) -> None:
    engine = {"num_blocks": 700, "max_model_len": 2048}
    eager, _ = run(monkeypatch, engine=engine)
    careful, _ = run(monkeypatch, engine={**engine, "admission": "sglang", "new_token_ratio": 1.0})
    assert careful.metrics.preemptions < eager.metrics.preemptions / 4


@pytest.mark.parametrize(
    ("rule", "blocks"),
    # A prompt of 4,000 and 100 outputs. StreamingLLM stays at 4 + 1,020 = 1,024 tokens, 64 blocks; SnapKV keeps 1,024
    # and adds the 99 written after the first token: ceil(1,123 / 16) = 71.
    [("streamingllm:4+1020", 64), ("snapkv:1024", 71)],
)
def test_eviction_frees_blocks_after_the_prefill(monkeypatch, rule: str, blocks: int) -> None:
    seen = []
    plain = Engine.advance

    def watched(engine: Engine, limit: int) -> None:
        plain(engine, limit)
        for request in engine.running:
            if request.generated:
                seen.append(engine.layout.at_rest(engine.batch.stored(request)))

    monkeypatch.setattr(Engine, "advance", watched)
    workload = {"arrivals": {"rate": 100}, "requests": 30, "prompt": 4000, "output": 100}
    document = {
        **BASE,
        "engine": {"max_num_batched_tokens": 2048},
        "workload": workload,
        "techniques": [{"evict": rule}],
    }
    built = build(parse_scenario(document, "test"), Path())
    built.simulation.run()
    assert built.metrics.finished == 30
    assert max(seen) <= blocks
    assert built.replicas[0].pool.free == built.replicas[0].pool.total
    # At most two whole prompts are in the pool beside what was kept of the others, not 30 x 250 blocks.
    assert built.metrics.peak_used < 28 * blocks + 2 * 250


def test_branches_share_the_full_blocks_of_their_prompt(monkeypatch) -> None:
    """1,000 tokens are 62 full blocks and 8 tokens: three of four branches find 992 tokens."""
    workload = {"arrivals": {"rate": 2}, "requests": 40, "prompt": 1000, "output": 50, "branches": 4}
    _, done = run(monkeypatch, workload=workload)
    assert sorted({request.hit_tokens for request in done}) == [0, 992]
    assert sum(request.hit_tokens == 992 for request in done) == 30


def test_profile_takes_the_place_of_factors() -> None:
    device = find("h100")
    profile = DeviceProfile(
        schema_version=1, device="H100", kind="cuda", recorded="2025-01-01", how="test", total_bytes=80 << 30,
        usable_bytes=79 << 30, copy_bytes_per_second=3e12, read_bytes_per_second=3e12,
        attention=(AttentionProfile("K+V", "bf16", 2e-5, device.memory_bandwidth / 2, 0.5),),
        gemm=(GemmProfile(1024, 4096, 4096, 0.6 * 989e12), GemmProfile(16, 8192, 8192, 16 * 0.8 * 3.35e12)),
    )  # fmt: skip
    factors = with_profile(find_factors(device.slug), profile, device)
    assert factors.decode_share[16] == pytest.approx(0.5)
    assert factors.decode_start[16] == 2e-5
    assert factors.decode_share[8] == find_factors(device.slug).decode_share[8]
    assert factors.gemm_efficiency(1024) == pytest.approx(0.6, rel=1e-3)
    assert factors.gemm_mbu == pytest.approx(0.8)  # a bf16 weight is two bytes and two FLOPs a row
    assert "H100" in factors.name


@pytest.mark.parametrize(
    ("law", "mean", "cv"),
    [
        ({"kind": "lognormal", "mean": 500, "cv": 1.5}, 500, 1.5),
        ({"kind": "gamma", "mean": 3, "cv": 2}, 3, 2),
        ({"kind": "exponential", "mean": 7}, 7, 1),
        ({"kind": "uniform", "low": 10, "high": 30}, 20, 20 / 12**0.5 / 20),
        ({"kind": "empirical", "points": [[10, 0.25], [20, 1.0]]}, 17.5, 18.75**0.5 / 17.5),
    ],
)
def test_laws_have_the_moments_they_state(law: dict[str, Any], mean: float, cv: float) -> None:
    draw = sampler(Law.model_validate(law), Random(4))
    values = [draw() for _ in range(60_000)]
    assert fmean(values) == pytest.approx(mean, rel=0.04)
    assert pstdev(values) / fmean(values) == pytest.approx(cv, rel=0.12)


@pytest.mark.parametrize(
    ("arrivals", "rate", "cv"),
    [
        ({"rate": 5}, 5, 1),
        ({"kind": "gamma", "rate": 5, "cv": 3}, 5, 3),
        ({"kind": "constant", "rate": 5}, 5, 0),
        # On for 2 s at 9/s, off for 1 s: 6/s on average; burstier than Poisson.
        ({"kind": "on_off", "rate": 9, "mean_on": 2, "mean_off": 1}, 6, None),
    ],
)
def test_arrivals_have_the_rate_they_state(arrivals: dict[str, Any], rate: float, cv: float | None) -> None:
    gaps = arrival_gaps(Arrivals.model_validate(arrivals), Random(5))
    values = [next(gaps) for _ in range(60_000)]
    assert 1 / fmean(values) == pytest.approx(rate, rel=0.04)
    spread = pstdev(values) / fmean(values)
    assert spread > 1.1 if cv is None else spread == pytest.approx(cv, abs=0.05 + 0.05 * cv)


def test_sketch_keeps_quantiles_within_its_accuracy() -> None:
    random = Random(1)
    values = [random.lognormvariate(0, 2) for _ in range(50_000)]
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    values.sort()
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = values[max(1, -int(-share * len(values) // 1)) - 1]
        assert sketch.quantile(share) == pytest.approx(exact, rel=1.01 * ACCURACY)
    assert sketch.mean == pytest.approx(fmean(values))


def test_a_ramp_is_the_sum_of_its_values() -> None:
    ramp, single = Sketch(), Sketch()
    ramp.add_ramp(1.0, 3.0, 101, 4)
    for step in range(101):
        single.add(1.0 + 2.0 * step / 100, 4)
    assert ramp.count == single.count == 404
    assert ramp.mean == pytest.approx(single.mean)
    for share in (0.1, 0.5, 0.99):
        assert ramp.quantile(share) == pytest.approx(single.quantile(share), rel=0.015)
