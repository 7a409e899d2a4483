"""The simulator against a real vLLM 0.19.0 run: 300 ShareGPT requests at 10/s, Llama-3.1-8B on one RTX PRO 6000.

Source: casys-kaist/LLMServingSim bench/examples/RTXPRO6000/Llama-3.1-8B/vllm/requests.jsonl (MIT, commit 5daddb2).
max_num_seqs 128, max_num_batched_tokens 2048; the slots bind, not the blocks.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

import pytest

from kvplan.performance.reads import TICKS
from kvplan.simulator.build import build
from kvplan.simulator.request import Request
from kvplan.simulator.scenario import parse_scenario

ROWS = list(csv.DictReader((Path(__file__).parents[1] / "evidence/vllm_measured_rtxpro6000_llama31_8b.csv").open()))
FITTED_ON = 100


class Measured:
    feeds_back = False

    def stream(self):
        for number, row in enumerate(ROWS):
            arrival = round(float(row["arrival_s"]) * TICKS)
            yield Request(number, arrival, int(row["input_tokens"]), int(row["output_tokens"]))

    def after(self, request):
        return None


def simulate(scale: float, kind: str = "calibrated") -> dict[int, Request]:
    document = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "rtx-pro-6000-server"},
        "engine": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
        "step_time": {"kind": kind, "scale": scale},
        "workload": {"arrivals": {"rate": 10}, "requests": 1, "prompt": 1, "output": 1},
    }
    built = build(parse_scenario(document, "measured"), Path())
    simulation = built.simulation
    simulation.source = Measured()
    simulation._stream = simulation.source.stream()
    done: dict[int, Request] = {}
    built.metrics.on_request = lambda request: done.update({request.id: request})
    simulation.run()
    return done


def tpot(done: dict[int, Request], count: int) -> float:
    first = [done[number] for number in range(count) if done[number].output > 1]
    return fmean((r.finished - r.first_token) / TICKS / (r.output - 1) for r in first)


def measured_tpot(count: int) -> float:
    times = [
        (float(row["last_token_s"]) - float(row["first_token_s"])) / (int(row["output_tokens"]) - 1)
        for row in ROWS[:count]
        if int(row["output_tokens"]) > 1
    ]
    return fmean(times)


def test_measured_run_with_one_constant_fitted_on_its_first_hundred() -> None:
    scale = 1.0
    for _ in range(3):
        scale *= measured_tpot(FITTED_ON) / tpot(simulate(scale), FITTED_ON)
    done = simulate(scale)
    makespan = max(request.finished for request in done.values()) / TICKS
    output = sum(int(row["output_tokens"]) for row in ROWS)
    assert output / makespan == pytest.approx(output / 65.926, rel=0.05)
    assert tpot(done, len(ROWS)) == pytest.approx(measured_tpot(len(ROWS)), rel=0.10)
    wait = fmean(float(row["first_token_s"]) - float(row["arrival_s"]) for row in ROWS)
    found = fmean((request.first_token - request.arrival) / TICKS for request in done.values())
    assert found == pytest.approx(wait, rel=0.15)
    assert 0.95 < scale < 1.05  # the factors alone are near; the constant only trims them


def test_a_bare_roofline_is_too_fast() -> None:
    assert measured_tpot(len(ROWS)) / tpot(simulate(1.0, "roofline"), len(ROWS)) > 1.3
