"""Start-up lines that users posted, by the rules of their release. Sources in tests/evidence/vllm-logs/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.base import Device, EngineAnswer
from kvplan.engines.vllm import VLLM, parallelism
from kvplan.spec.registry import Registry

EVIDENCE = Path(__file__).parents[1] / "evidence" / "vllm-logs" / "cases.json"
CASES: list[dict[str, Any]] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
REGISTRY = Registry()
GIB = 1 << 30
UNBOUNDED = 1 << 44


def ask(case: dict[str, Any], half_digit: float) -> EngineAnswer:
    """The plan at the printed memory, moved by `half_digit` GiB: logs print two decimals."""
    printed = case["observed"].get("available_kv_gib")
    available = UNBOUNDED if printed is None else int((printed + half_digit) * GIB)
    device = Device(case["gpu"], case["memory_gib"] * GIB, (case["capability"][0], case["capability"][1]))
    args = case["engine_args"]
    return VLLM.plan(REGISTRY.find(case["model"]), args, parallelism(args), [available], device, case["version"])


def between(low: int | None, value: int, high: int | None) -> bool:
    assert low is not None and high is not None
    return low <= value <= high


LOGGED = [case for case in CASES if "kv_tokens" in case["observed"] and not case.get("poorest_rank")]
REFUSED = [case for case in CASES if "needed_kv_gib" in case["observed"]]
POOREST = [case for case in CASES if case.get("poorest_rank")]


@pytest.mark.parametrize("case", LOGGED, ids=lambda case: case["id"])
def test_logged_tokens_within_print_rounding(case: dict[str, Any]) -> None:
    low, high, tokens = ask(case, -0.005), ask(case, 0.005), case["observed"]["kv_tokens"]
    if low.refused is not None:  # V0 printed its blocks before it refused
        assert between(low.estimated_max_model_len, tokens, high.estimated_max_model_len)
        return
    assert between(low.capacity_tokens, tokens, high.capacity_tokens)
    if "max_conc" in case["observed"]:
        assert low.max_concurrency is not None and high.max_concurrency is not None
        assert low.max_concurrency - 0.01 <= case["observed"]["max_conc"] <= high.max_concurrency + 0.01


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_refusals_within_print_rounding(case: dict[str, Any]) -> None:
    low, high, seen = ask(case, -0.005), ask(case, 0.005), case["observed"]
    assert low.refused is not None and high.refused is not None
    assert round(high.refused.needed_bytes / GIB, 2) == seen["needed_kv_gib"]
    if "est_max_len" in seen:
        assert between(low.estimated_max_model_len, seen["est_max_len"], high.estimated_max_model_len)


@pytest.mark.parametrize("case", POOREST, ids=lambda case: case["id"])
def test_minimum_over_ranks_stays_close(case: dict[str, Any]) -> None:
    answer = ask(case, 0.0)
    assert answer.capacity_tokens is not None
    assert abs(answer.capacity_tokens / case["observed"]["kv_tokens"] - 1) < 0.015


def test_v0_line_counts_blocks_and_swap() -> None:
    case = next(case for case in CASES if case["id"] == "v0-llama32-11b-vision-h100")
    line = ask(case, -0.005).log_lines[0]
    assert line.endswith(f"# CPU blocks: {case['observed']['cpu_blocks']}")
    assert line.startswith("# GPU blocks: ")
