"""Scenarios that are wrong: one sentence that names the field; requests that can't be served: the run goes on."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError
from kvplan.simulator import study
from kvplan.simulator.build import build
from kvplan.simulator.result import summary
from kvplan.simulator.scenario import parse_scenario

GOOD: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "workload": {"arrivals": {"rate": 5}, "requests": 20, "prompt": 100, "output": 10},
}


def with_(**changes: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(GOOD))
    for path, value in changes.items():
        study.change(copy, path.replace("__", "."), value)
    return copy


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({**GOOD, "modle": "x"}, "modle: found an unknown key, expected one of the schema's; nearest: model"),
        (with_(hardware__gpus="h100"), "hardware.gpus: found an unknown key.*nearest: gpu"),
        (with_(workload__arrivals__rate=-1), "workload.arrivals.rate: found -1, expected a number greater than 0"),
        (with_(workload__arrivals__rate=float("nan")), "workload.arrivals.rate: found NaN, expected a finite number"),
        (with_(workload__arrivals__rate=0), "workload.arrivals.rate: found 0"),
        ({**GOOD, "duration": 0}, "duration: found 0"),
        ({**GOOD, "duration": "soon"}, "duration: found 'soon', expected a duration such as"),
        ({**GOOD, "tiers": [{"capacity": "1GB"}]}, "tiers.0.bandwidth: found nothing, expected a value"),
        ({**GOOD, "hardware": None}, "step_time calibrated needs a model and hardware"),
        ({"workload": GOOD["workload"]}, "step_time calibrated needs a model and hardware"),
        (with_(workload__prompt={"kind": "lognormal", "mean": 5}), "a lognormal law needs mean and cv"),
        (with_(workload__arrivals={"kind": "closed"}), "closed arrivals need users"),
        ({**GOOD, "engine": {"max_num_seqs": 512, "max_num_batched_tokens": 256}}, "at least max_num_seqs"),
        ({**GOOD, "workload": {}}, "a workload needs either a trace or arrivals"),
        (with_(workload__arrivals__rate=1e-300), "at least 1e-9"),
        (
            with_(workload__prompt={"value": float("inf")}),
            "workload.prompt.value: found Infinity, expected a finite number",
        ),
        (with_(workload__arrivals={"kind": "on_off", "rate": 1e-6, "mean_on": 1e-6, "mean_off": 1}), "rate x mean_on"),
        (
            {
                **GOOD,
                "duration": 5,
                "workload": {**GOOD["workload"], "requests": None, "arrivals": {"kind": "at_once"}},
            },
            "arrivals at_once need requests",
        ),
        (
            {
                "step_time": {"kind": "fixed_service"},
                "duration": 5,
                "workload": {"arrivals": {"kind": "closed", "users": 1}, "service": 0},
            },
            "a service law above zero",
        ),
        ([], "expected a mapping"),
    ],
)
def test_wrong_scenarios_are_named(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_scenario(document, "x.yaml")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (with_(hardware__gpu="h1000"), "hardware.gpu: found the unknown device 'h1000'"),
        (with_(model="llama-9"), "no known model"),
        (with_(hardware__gpu="t4"), "not even one token fits"),
        (with_(workload={"trace": {"path": "none.jsonl"}}), "none.jsonl"),
        ({**GOOD, "techniques": [{"mla": 512}]}, "trained into a checkpoint"),
        ({**GOOD, "failure": {"time": 5}}, "expected one of at least two replicas"),
        (
            {**GOOD, "model": "gpt-oss-20b", "tiers": [{"capacity": "1GB", "bandwidth": "1GB/s"}]},
            "full-attention model",
        ),
    ],
)
def test_what_does_not_fit_is_named(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(parse_scenario(document, "x.yaml"), Path()).simulation.run()


def run(document: dict[str, Any]) -> dict[str, Any]:
    scenario = parse_scenario(document, "x.yaml")
    built = build(scenario, Path())
    built.simulation.run()
    return summary(built, scenario, "x.yaml")


def test_unservable_requests_are_counted_and_the_run_goes_on() -> None:
    document = with_(engine__max_model_len=3000, engine__num_blocks=150)
    document["workload"]["prompt"] = {"kind": "empirical", "points": [[100, 0.5], [2900, 0.8], [5000, 1.0]]}
    document["workload"]["requests"] = 200
    result = run(document)
    assert result["requests"]["unservable"].keys() == {"longer than the model", "longer than the pool"}
    assert any("vLLM would refuse to start" in sentence for sentence in result["assumptions"])
    served = result["requests"]["finished"]
    assert 0 < served < 200
    assert served + sum(result["requests"]["unservable"].values()) == 200


def test_longer_than_the_pool_is_refused_on_arrival() -> None:
    document = {
        "step_time": {"kind": "constant_step", "base": 1},
        "engine": {"num_blocks": 10},
        "workload": {"arrivals": {"rate": 1}, "requests": 4, "output": 1,
                     "prompt": {"kind": "empirical", "points": [[100, 0.5], [400, 1.0]]}},
    }  # fmt: skip
    result = run(document)
    refused = result["requests"]["unservable"].get("longer than the pool", 0)
    assert refused + result["requests"]["finished"] == 4


def test_an_interrupted_run_keeps_what_it_has() -> None:
    scenario = parse_scenario(with_(workload__requests=100_000), "x.yaml")
    calls = []

    def stop(finished: int, ticks: int) -> None:
        calls.append(finished)
        raise KeyboardInterrupt

    built = build(scenario, Path(), stop)
    built.simulation.run()
    result = summary(built, scenario, "x.yaml")
    assert result["partial"] is True
    assert 0 < result["requests"]["finished"] < 100_000
    assert len(calls) == 1


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


FULL: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100", "tensor_parallel": 1, "memory_utilization": 0.9},
    "engine": {"max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 512, "num_blocks": 400,
               "preemption": "swap", "swap_bandwidth": "10GB/s", "eviction_policy": "lfu"},
    "workload": {"arrivals": {"kind": "gamma", "rate": 5, "cv": 2}, "requests": 12, "priorities": [1, 2],
                 "prompt": {"kind": "lognormal", "mean": 100, "cv": 1, "most": 900},
                 "output": {"kind": "empirical", "points": [[5, 0.5], [20, 1]]},
                 "sessions": {"turns": 2, "idle": 1}, "shared_prefix": {"tokens": 64}},
    "tiers": [{"capacity": "1GB", "bandwidth": "1GB/s", "latency": "1ms"}],
    "step_time": {"kind": "calibrated", "scale": 1.1, "host": "1ms"},
    "slo": {"ttft": 1}, "seed": 1, "duration": 30, "replicas": 2, "routing": "prefix_aware",
}  # fmt: skip
ODD = st.sampled_from(
    [None, -1, 0, 1e-12, 1e300, float("nan"), float("inf"), 10**40, "", "x", "9" * 40, [], {}, [1], {"a": 1}, True]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(st.tuples(st.sampled_from(_paths(FULL)[1:]), ODD), min_size=1, max_size=2))
def test_odd_values_anywhere_are_refused_or_run(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Whatever stands in a field: a sentence or a run that ends, never another exception."""
    document = copy.deepcopy(FULL)
    for path, value in changes:
        with suppress(KeyError, IndexError, TypeError):  # the other change may have taken this place away
            reduce(getitem, path[:-1], document)[path[-1]] = value
    try:
        run(document)
    except KvplanError as error:
        assert len(str(error)) < 1000


def test_limits_and_variations_are_parsed_or_named() -> None:
    assert study.parse_limits("ttft_p99=2s,tpot_p99=50ms") == {"ttft_p99": 2.0, "tpot_p99": 0.05}
    with pytest.raises(InputError, match="nearest: ttft_p9"):
        study.parse_limits("ttft_p98=2s")
    assert study.parse_vary(["a=1,x", "b=true"]) == [[("a", 1), ("b", True)], [("a", "x"), ("b", True)]]
    with pytest.raises(InputError, match="expected a setting and values such as"):
        study.parse_vary(["kv-cache-dtype"])
    with pytest.raises(InputError, match="nearest: kv-cache-dtype"):
        study.change({}, "kv-cache-dtyp", "fp8")


def test_rates_scale_for_traces_and_laws() -> None:
    assert study.scaled(GOOD, 2.0, 7) == [("workload.arrivals.rate", 10.0), ("workload.requests", 7)]
    trace = {"workload": {"trace": {"path": "x.jsonl", "scale_rate": 3}}}
    assert study.scaled(trace, 2.0, 7) == [("workload.trace.scale_rate", 6.0), ("workload.trace.limit", 7)]
    with pytest.raises(InputError, match="--scale-rate: found -1"):
        study.scaled(GOOD, -1.0, None)


def test_the_greatest_rate_lies_at_the_known_limit() -> None:
    """M/D/1 waits rho / (2 (1 - rho)): a mean of 2 s is met up to rho = 0.8 of one request a second."""
    document = {
        "step_time": {"kind": "fixed_service"}, "engine": {"max_num_seqs": 1},
        "workload": {"arrivals": {"rate": 0.5}, "requests": 20_000, "service": 1}, "seed": 2,
    }  # fmt: skip
    found = study.find_max_rate(document, Path("x.yaml"), {"queue_mean": 2.0})
    assert found["max_rate"] == pytest.approx(0.8, rel=0.05)
    assert all(run["rate"] <= found["max_rate"] or not run["meets"] for run in found["tried"])


def test_traces_of_every_kind_feed_the_engine(tmp_path: Path) -> None:
    rows = [{"timestamp": 10 * i, "input_length": 1000, "output_length": 5, "hash_ids": [7, i + 100]} for i in range(9)]
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "a.csv").write_text("arrival_s,input_tokens,output_tokens\n" + "0.5,100,3\n" * 5)
    base = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100"}}
    for name, count in (("m.jsonl", 9), ("a.csv", 5)):
        scenario = parse_scenario({**base, "workload": {"trace": {"path": name, "scale_rate": 2}}}, "x.yaml")
        built = build(scenario, tmp_path)
        built.simulation.run()
        assert built.metrics.finished == count
        if name == "m.jsonl":  # the first block of 512 tokens is shared by all prompts, 32 engine blocks
            assert built.metrics.hit_tokens == 8 * 512
            assert built.metrics.first_arrival == 0
            assert built.metrics.last_finish / 1e18 > 0.04
