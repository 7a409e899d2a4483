"""The figures that closed forms ask of a workload, against arithmetic on its laws and traces."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.planner.demand import Demand, demand_of, nearest_rank, squared_variation
from kvplan.planner.documents import check_document
from kvplan.planner.plan import plan
from kvplan.planner.request import PlanRequest


def demand(workload: dict[str, Any], folder: Path = Path(), **more: Any) -> Demand:
    return demand_of(check_document({"models": "llama-3.1-8b", "workload": workload, **more}, PlanRequest, "x"), folder)


def test_constant_lengths() -> None:
    found = demand({"arrivals": {"kind": "poisson", "rate": 3}, "prompt": 700, "output": 80})
    assert (found.rate, found.users, found.bursts) == (3, None, 1.0)
    assert (found.prompt, found.fresh, found.output, found.longest) == (700, 700, 80, 780)
    assert found.fresh_quantile(0.99) == 700


def test_a_lognormal_law_has_its_mean() -> None:
    law = {"kind": "lognormal", "mean": 1000, "cv": 0.5}
    found = demand({"arrivals": {"kind": "constant", "rate": 1}, "prompt": law, "output": 10})
    assert found.bursts == 0.0
    assert found.prompt == pytest.approx(1000, rel=0.05)
    # exp(mu + 2.326 sigma) with sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2
    sigma = math.sqrt(math.log(1.25))
    p99 = math.exp(math.log(1000) - sigma**2 / 2 + 2.326 * sigma)
    assert found.fresh_quantile(0.99) == pytest.approx(p99, rel=0.15)


def test_a_shared_prefix_is_computed_once() -> None:
    workload = {
        "arrivals": {"kind": "closed", "users": 8, "think": 4}, "prompt": 100, "output": 10,
        "shared_prefix": {"tokens": 900},
    }  # fmt: skip
    found = demand(workload)
    assert (found.users, found.think, found.rate) == (8, 4.0, None)
    assert (found.prompt, found.fresh) == (1000, 100)
    assert demand(workload, forbid=["prefix-caching"]).fresh == 1000


def test_conversations_repeat_what_was_said() -> None:
    workload = {
        "arrivals": {"kind": "poisson", "rate": 2}, "prompt": 100, "output": 50,
        "sessions": {"turns": 4, "idle": 30},
    }  # fmt: skip
    found = demand(workload)
    # Four turns of 100 + 50: prompts of 100, 250, 400 and 550 tokens, 100 of each are new; 2 x 4 requests a second.
    assert found.rate == 8
    assert sorted({row.prompt for row in found.rows}) == [100, 250, 400, 550]
    assert found.fresh == 100
    assert found.longest == 600


def test_a_trace_has_its_rate_and_its_repeats(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]},
        {"timestamp": 1000, "input_length": 1024, "output_length": 20, "hash_ids": [1, 3]},
        {"timestamp": 4000, "input_length": 1536, "output_length": 30, "hash_ids": [1, 2, 4]},
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = demand({"trace": {"path": "trace.jsonl", "format": "mooncake", "scale_rate": 2}}, tmp_path)
    # Two gaps, of 0.5 and 1.5 s at twice the rate.
    assert found.rate == pytest.approx(1.0)
    assert found.bursts == pytest.approx(0.25)
    assert [(row.prompt, row.reused, row.output) for row in found.rows] == [
        (1024, 0, 10),
        (1024, 512, 20),
        (1536, 1024, 30),
    ]


def test_a_trace_without_a_rate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(InputError, match="no two arrivals at different times"):
        demand({"trace": {"path": "trace.jsonl", "format": "mooncake"}}, tmp_path)
    with pytest.raises(InputError, match=r"none\.jsonl"):
        demand({"trace": {"path": "none.jsonl", "format": "mooncake"}}, tmp_path)


def test_bursts_of_on_and_off() -> None:
    arrivals = {"kind": "on_off", "rate": 10, "mean_on": 1, "mean_off": 3}
    found = demand({"arrivals": arrivals, "prompt": 1, "output": 1})
    assert found.rate == pytest.approx(2.5)
    assert found.bursts > 3  # gaps of 0.1 s broken by pauses of 3 s
    assert demand({"arrivals": {"kind": "gamma", "rate": 1, "cv": 2}, "prompt": 1, "output": 1}).bursts == 4


def test_statistics() -> None:
    assert squared_variation([1.0, 3.0]) == 0.25
    assert squared_variation([5.0]) == 0.0
    assert [nearest_rank([3, 1, 2, 4], share) for share in (0.25, 0.5, 0.99)] == [1, 2, 4]


def test_a_trace_is_planned_and_simulated_wherever_the_scenario_lies(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 200 * number, "input_length": 1024, "output_length": 40, "hash_ids": [1, number + 2]}
        for number in range(120)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "models": "llama-3.1-8b", "workload": {"trace": {"path": "trace.jsonl", "format": "mooncake"}},
        "gpus": "l40s", "prices": {"l40s": 1.0}, "slo": {"ttft": "1s"}, "search": {"tensor_parallel": 1},
        "finalists": 1,
    }  # fmt: skip
    answer = plan(check_document(document, PlanRequest, "x"), folder=tmp_path)
    best = answer.options[0]
    assert best.simulated is not None
    assert best.simulated.scenario["workload"]["trace"]["path"] == str((tmp_path / "trace.jsonl").resolve())
    assert best.simulated.scenario["workload"]["trace"]["scale_rate"] == pytest.approx(1.2)
    assert best.simulated.stability == "stable"
