"""vLLM's own planner and real start-ups, exactly. Sources in tests/golden/vllm-planner/README.md."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.base import Device, EngineAnswer
from kvplan.engines.vllm import VLLM, parallelism
from kvplan.spec.importers.config import import_config
from kvplan.spec.model import ModelSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-planner"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "cases.json").read_text(encoding="utf-8"))
REAL: list[dict[str, Any]] = json.loads((GOLDEN / "real_runs.json").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "configs.json").read_text(encoding="utf-8"))


@cache
def spec_of(name: str) -> ModelSpec:
    return import_config(CONFIGS[name], name=name.replace("#", "-"))


def ask(case: dict[str, Any]) -> EngineAnswer:
    name, capability, gib = case["device"]
    device = Device(name, int(gib * 2**30), (capability[0], capability[1]))
    args = case["engine_args"]
    return VLLM.plan(spec_of(case["config"]), args, parallelism(args), case["available_bytes"], device, "0.32.0")


def groups_of(answer: EngineAnswer) -> list[list[int | None]]:
    return [[group.layers, group.block_tokens, group.page_bytes, group.blocks_per_request] for group in answer.groups]


PLANNED = [case for case in CASES if "expected" in case]
REFUSED = [case for case in CASES if "refused" in case]


@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case["id"])
def test_blocks_tokens_and_log_line(case: dict[str, Any]) -> None:
    answer, expected = ask(case), case["expected"]
    assert answer.refused is None
    assert answer.num_blocks == expected["num_blocks"]
    assert answer.usable_blocks == expected["usable_blocks"]
    assert list(answer.bytes_per_block) == expected["pool_bytes_per_block"]
    assert answer.capacity_tokens == expected["kv_cache_size_tokens"]
    assert answer.max_concurrency == expected["max_concurrency"]
    assert answer.max_model_len == expected["max_model_len_final"]
    assert answer.log_lines == (expected["log_line"],)
    assert answer.blocks_per_request is not None
    needed = [answer.blocks_per_request * size for size in answer.bytes_per_block]
    assert needed == expected["needed_bytes_one_request"]
    assert answer.needed_bytes_one_request == max(needed)


@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case["id"])
def test_groups(case: dict[str, Any]) -> None:
    answer, expected = ask(case), case["groups"]
    if len(answer.bytes_per_block) > 1:
        assert [group.layers_per_stage[0] for group in answer.groups] == case["layers_first_stage"]
    assert groups_of(answer) == expected


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_refusal_figures(case: dict[str, Any]) -> None:
    answer, expected = ask(case), case["refused"]
    assert answer.num_blocks is None and answer.log_lines == () and answer.capacity_tokens is None
    assert answer.refused is not None
    assert answer.refused.needed_bytes == expected["needed_bytes"]
    assert answer.refused.estimated_max_model_len == expected["estimated_max_model_len"]
    assert answer.bytes_per_block == (expected["pool_bytes_per_block"],)
    assert str(expected["estimated_max_model_len"]) in answer.refused.text
    assert [row[:3] for row in groups_of(answer)] == [row[:3] for row in case["groups"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_resolved_settings(case: dict[str, Any]) -> None:
    answer, expected = ask(case), dict(case["resolved"])
    values = {setting.name: setting.value for setting in answer.settings}
    assert values.get("mamba_cache_mode", "none") == expected.pop("mamba_cache_mode")
    assert values["enable_prefix_caching"] == expected.pop("prefix_caching")
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize("case", REAL, ids=lambda case: case["id"])
def test_real_start_ups(case: dict[str, Any]) -> None:
    args = {**case["engine_args"], "usage_context": "offline"}
    device = Device("CPU", 16 << 30, None, "cpu")
    answer = VLLM.plan(spec_of(case["config"]), args, parallelism(args), case["available_bytes"], device, "0.32.0")
    assert answer.log_lines == (() if case["log_line"] is None else (case["log_line"],))
    assert answer.estimated_max_model_len == case["estimated_max_model_len"]
    if (started := case["after_start"]) is not None:
        assert answer.num_blocks == started["num_blocks"]
        assert answer.setting("block_size") == started["block_size"]
        assert answer.capacity_tokens == started["kv_cache_size_tokens"]
        assert answer.max_concurrency == started["max_concurrency"]


def test_json_has_whole_numbers() -> None:
    answer = ask(next(case for case in PLANNED if case["id"] == "gemma3-27b")).to_dict()
    wanted = {"name": "vllm", "version": "0.32.0", "num_blocks": 57344, "bytes_per_block": 1310720,
              "blocks_per_request": 14726, "capacity_tokens": 510402, "needed_bytes_one_request": 19301662720,
              "refused": None, "estimated_max_model_len": None}  # fmt: skip
    assert {key: answer[key] for key in wanted} == wanted
    assert answer["log_line"].startswith("GPU KV cache size: 510,402 tokens")
    assert len(answer["groups"]) == 7
    assert json.loads(json.dumps(answer))["groups"][6]["blocks_per_request"] == 8192
