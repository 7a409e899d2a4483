"""A plan against exhaustive simulation, against the simulator's own figures, and against itself."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.planner.answer import Plan, Point
from kvplan.planner.demand import demand_of
from kvplan.planner.documents import check_document
from kvplan.planner.options import pareto
from kvplan.planner.plan import plan
from kvplan.planner.prices import load_prices
from kvplan.planner.request import PlanRequest
from kvplan.planner.room import Rooms
from kvplan.planner.search import Search
from kvplan.planner.space import devices, shapes
from kvplan.planner.verify import misses, scenario_of
from kvplan.simulator.scenario import parse_scenario
from kvplan.simulator.study import run
from kvplan.spec.resolve import resolve_model

OPEN: dict[str, Any] = {
    "models": "llama-3.1-8b",
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 8},
        "prompt": {"kind": "lognormal", "mean": 2000, "cv": 0.8, "most": 8000},
        "output": {"kind": "lognormal", "mean": 150, "cv": 0.6, "most": 800},
    },
    "slo": {"ttft": "1500ms", "tpot": "60ms"},
    "gpus": ["h100", "l40s"],
    "prices": {"h100": 3.0, "l40s": 1.4},
    "search": {"tensor_parallel": [1, 2], "replicas": [1, 2, 3, 4]},
    "headroom": 0.0,
    "requests": 250,
}
CLOSED: dict[str, Any] = {
    **OPEN,
    "workload": {
        "arrivals": {"kind": "closed", "users": 60, "think": {"kind": "exponential", "mean": 5}},
        "prompt": 3000,
        "output": {"kind": "lognormal", "mean": 150, "cv": 0.6, "most": 800},
    },
    "slo": {"ttft": "1s"},
}


def request(base: dict[str, Any] = OPEN, **changes: Any) -> PlanRequest:
    return check_document({**base, **changes}, PlanRequest, "plan")


def planned(base: dict[str, Any] = OPEN, **changes: Any) -> Plan:
    return plan(request(base, **changes))


@pytest.fixture(scope="module")
def answer() -> Plan:
    return planned()


def exhaustive(asked: PlanRequest) -> list[tuple[float, int]]:
    """Cost and GPUs of every configuration that a simulation finds within the limits, without any pruning."""
    models = {name: resolve_model(name) for name in asked.models}
    offered = devices(asked, load_prices(inline=asked.prices))
    demand = demand_of(asked, Path())
    search = Search(asked, models, demand, offered)
    kept, _, _ = shapes(asked, {name: loaded.spec for name, loaded in models.items()}, offered)
    good = []
    for shape in kept:
        room = search.rooms.of(shape)
        if room.refused is not None:
            continue
        offer = search.offers[shape.gpu]
        for replicas in search.replica_counts(shape):
            gpus = shape.gpus * replicas
            candidate = _candidate(search.rooms, shape, replicas, gpus)
            document = run(parse_scenario(scenario_of(asked, search.rooms, candidate, demand, Path()), "x"), Path("x"))
            if not misses(document, asked.slo):
                good.append((gpus * offer.per_gpu_hour, gpus))
    return sorted(good)


def _candidate(rooms: Rooms, shape: Any, replicas: int, gpus: int) -> Any:
    from kvplan.planner.search import Candidate

    return Candidate(shape, replicas, gpus, 1, 0.0)


@pytest.mark.parametrize("base", [OPEN, CLOSED], ids=["open", "closed"])
def test_no_pruning_drops_what_exhaustive_simulation_finds_best(base: dict[str, Any]) -> None:
    good = exhaustive(request(base))
    assert good
    found = planned(base)
    best = next(row for row in found.options if row.basis == "simulated")
    assert (best.cost_per_hour, best.gpus) == good[0]
    assert found.unproven == 0
    assert found.simulations < 30


def test_finalists_have_the_figures_of_simulate(answer: Plan, tmp_path: Path) -> None:
    import yaml

    rows = [row for row in answer.options if row.simulated is not None]
    assert len(rows) >= 2
    for row in rows:
        assert row.simulated is not None
        path = tmp_path / "finalist.yaml"
        path.write_text(yaml.safe_dump(row.simulated.scenario))
        from kvplan.simulator.study import changed, load_document

        document = run(changed(load_document(path), path, []), path)
        for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
            assert json.dumps(document["latency"][name]) == json.dumps(getattr(row.simulated, name))
        assert document["goodput"] == row.simulated.goodput
        assert document["throughput"]["output_tokens_per_s"] == row.simulated.output_tokens_per_s


def test_the_same_request_gives_the_same_bytes(answer: Plan) -> None:
    assert json.dumps(planned().to_dict()) == json.dumps(answer.to_dict())


def test_options_are_ranked_by_cost_and_say_why_not_the_first(answer: Plan) -> None:
    costs = [row.cost_per_hour for row in answer.options]
    assert costs == sorted(costs)
    assert all(row.meets and not row.misses for row in answer.options)
    assert answer.options[0].why_not == ""
    assert all(row.why_not for row in answer.options[1:] if row.cost_per_hour > costs[0])
    assert all(row.command.startswith("vllm serve meta-llama/") for row in answer.options)


def test_costs_are_arithmetic(answer: Plan) -> None:
    prices = {"h100-sxm-80gb": 3.0, "l40s": 1.4}
    mean = answer.asked.output_tokens
    for row in answer.options:
        assert row.gpus == row.replicas * row.tensor_parallel
        assert row.cost_per_hour == pytest.approx(row.gpus * prices[row.gpu])
        assert row.cost_per_million_output_tokens == pytest.approx(row.cost_per_hour / (8 * mean * 3600) * 1e6)


@pytest.mark.parametrize("base", [OPEN, CLOSED], ids=["open", "closed"])
def test_closed_forms_are_near_the_simulation(base: dict[str, Any]) -> None:
    rows = [row for row in planned(base).options if row.basis == "simulated"]
    for row in rows:
        assert row.times.ttft_s is not None
        assert row.estimated.ttft_s is not None
        assert 0.5 < row.estimated.ttft_s / row.times.ttft_s < 2
        assert row.estimated.tpot_s is not None
        assert row.times.tpot_s is not None
        assert 0.5 < row.estimated.tpot_s / row.times.tpot_s < 2


def test_more_demand_and_tighter_limits_never_cost_less() -> None:
    def cheapest(**changes: Any) -> float:
        rows = planned(finalists=0, **changes).options
        return rows[0].cost_per_hour if rows else float("inf")

    costs = [
        cheapest(workload={**OPEN["workload"], "arrivals": {"kind": "poisson", "rate": rate}})
        for rate in (2, 6, 12, 20)
    ]
    assert costs == sorted(costs)
    limits = [cheapest(slo={"ttft": ttft}) for ttft in ("5s", "2s", "1s", "500ms")]
    assert limits == sorted(limits)


def test_headroom_and_a_lost_machine_cost_more() -> None:
    search = {"tensor_parallel": [1]}
    plain = planned(finalists=0, search=search).options[0]
    spare = planned(finalists=0, search=search, headroom=1.0).options[0]
    assert spare.cost_per_hour >= plain.cost_per_hour
    safe = planned(search=search, redundancy="n-1", gpus=["h100"], finalists=1)
    best = safe.options[0]
    assert best.machines >= 2
    assert best.loss.meets
    assert best.loss.basis == "simulated"
    assert best.loss.replicas_left >= 1
    assert best.replicas == best.loss.replicas_left + best.loss.replicas_lost


def test_the_front_rises_in_cost_and_falls_in_time(answer: Plan) -> None:
    costs, times = [p.cost_per_hour for p in answer.front], [p.ttft_s for p in answer.front]
    assert costs == sorted(set(costs))
    assert times == sorted(times, reverse=True)
    points = [Point(str(i), "g", 1, 1, c, t, 0.0, "estimated") for i, (c, t) in enumerate([(2, 1), (1, 2), (3, 1.5)])]
    assert [point.name for point in pareto(points)] == ["1", "0"]


def test_all_that_was_searched_is_accounted_for(answer: Plan) -> None:
    assert answer.shapes == 2 * 2 * 2 * 2
    lost = sum(item.shapes for item in answer.lost if not item.reason.startswith("simulated"))
    kept = answer.shapes - lost
    assert kept >= len(answer.options)
    assert answer.candidates == answer.shapes * 4


def test_forbidden_means_forbidden() -> None:
    rows = planned(finalists=0, forbid=["8-bit-kv"]).options
    assert rows
    assert {row.kv_cache_dtype for row in rows} == {"auto"}
    simulated = planned(finalists=1, forbid=["prefix-caching"]).options[0]
    assert simulated.simulated is not None
    assert simulated.simulated.scenario["engine"]["enable_prefix_caching"] is False


def test_a_shared_prefix_is_cheaper_than_none() -> None:
    shared = {**OPEN["workload"], "prompt": 200, "shared_prefix": {"tokens": 3000}}
    apart = {**OPEN["workload"], "prompt": 3200}
    together, alone = planned(finalists=0, workload=shared), planned(finalists=0, workload=apart)
    assert together.asked.prompt_tokens == alone.asked.prompt_tokens == 3200
    assert together.asked.computed_tokens == 200
    assert together.options[0].cost_per_hour < alone.options[0].cost_per_hour


def test_an_slo_nothing_meets_shows_the_nearest() -> None:
    answer = planned(slo={"ttft": "1ms"})
    assert answer.options == ()
    assert answer.exit_code == 1
    assert answer.nearest[0].misses["ttft"] > 1
    factors = [max(row.misses.values()) for row in answer.nearest]
    assert factors == sorted(factors)
    assert "nearest" in answer.verdict


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forbid": ["8-bit-kv"], "search": {"kv_cache_dtypes": "fp8"}}, ["emptied by forbid: 8-bit-kv (16)"]),
        ({"forbid": ["quantized-weights"], "models": "gpt-oss-120b"}, ["emptied by forbid: quantized-weights"]),
        ({"search": {"tensor_parallel": 3}}, ["heads divide by the tensor-parallel ranks"]),
        ({"max_gpus": 1, "search": {"tensor_parallel": [2]}}, ["max_gpus"]),
        ({"gpus": ["b200"]}, ["prices: found none for b200", "there are h100"]),
        ({"gpus": ["h1000"]}, ["gpus: found the unknown device 'h1000'"]),
        ({"prices": {"h100": -1}}, ["prices"]),
        ({"slo": {"ttfft": "1s"}}, ["slo.ttfft: found an unknown key", "nearest: ttft"]),
        ({"redundancy": "n-2"}, ["redundancy", "n-1"]),
        (
            {"workload": {"arrivals": {"kind": "at_once"}, "prompt": 1, "output": 1}},
            ["a plan needs arrivals at a rate"],
        ),
    ],
)
def test_contradictions_and_mistakes_get_one_sentence(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        planned(**changes)
    for word in words:
        assert word in str(caught.value)


def test_the_space_is_the_product_of_its_axes() -> None:
    asked = request(search={"tensor_parallel": [1, 2, 4], "pipeline_parallel": [1, 2]})
    offered = devices(asked, load_prices(inline=asked.prices))
    kept, removed, total = shapes(asked, {"llama-3.1-8b": resolve_model("llama-3.1-8b").spec}, offered)
    assert total == 2 * 3 * 2 * 2 * 2 == len(kept) + sum(removed.values())
    assert len({shape.key for shape in kept}) == len(kept)
    assert all(shape.simulated == (shape.pipeline == 1) for shape in kept)


def test_leaner_batches_leave_no_less_room() -> None:
    # What the search relies on when it refuses larger batch budgets together with the leanest.
    asked = request(search={"max_num_batched_tokens": [2048, 8192, 32768], "max_num_seqs": [64, 512]})
    models = {"llama-3.1-8b": resolve_model("llama-3.1-8b")}
    rooms = Rooms(asked, models, demand_of(asked, Path()))
    offered = devices(asked, load_prices(inline=asked.prices))
    kept, _, _ = shapes(asked, {"llama-3.1-8b": models["llama-3.1-8b"].spec}, offered)
    groups = itertools.groupby(kept, key=lambda shape: shape.key[:-2])
    for _, group in groups:
        for lean, rich in itertools.combinations(group, 2):
            if lean.batched <= rich.batched and lean.seqs <= rich.seqs:
                assert rooms.of(lean).available_bytes >= rooms.of(rich).available_bytes
