"""Asked for what a real deployment ran, the planner finds that or less; what a real engine refused it never offers.

The cases are engine logs with their sources (tests/evidence/budgets.json); those whose checkpoint or drafter the log
alone tells are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.planner.answer import Plan
from kvplan.planner.plan import plan
from kvplan.planner.request import PlanRequest
from kvplan.spec.resolve import resolve_model

EVIDENCE = Path(__file__).parents[1] / "evidence" / "budgets.json"
#: Start-ups that end in a refusal: vllm-project/vllm #10517 (29,000 tokens asked, 23,648 there) and #27508.
REFUSED = {"v0-llama31-8b-3090-29k-fail", "swa-gptoss120b-h100-fail-095"}
#: vLLM 0.3's check at start; its log shows 2.05 GiB where one request of 32,768 tokens takes 4 GiB.
SHORT = {"v0-bonito-a10g"}
#: The logs count 35,136 B a token: 61 layers of 576 bytes, an 8-bit latent.
DTYPES = dict.fromkeys(
    (f"mla-kimi-k26-{name}" for name in ("16xrtx6000-dcp1", "8xrtx6000-dcp1-nomtp", "8xrtx6000-dcp4-nomtp",
                                         "8xrtx6000-dcp8-nomtp")),
    "fp8",
)  # fmt: skip


def usable(case: dict[str, Any]) -> bool:
    args = case["engine_args"]
    own = "quantization" in case or "speculative_config" in args or "pp_layer_partition" in args
    return case["engine"] == "vllm" and not own


CASES = {case["id"]: case for case in json.loads(EVIDENCE.read_text()) if usable(case)}


def ask(case: dict[str, Any], tensor: list[int]) -> Plan:
    """One user of the deployment's longest request, on its device and engine, with its memory flag."""
    args = case["engine_args"]
    length = args.get("max_model_len") or resolve_model(case["model"]).spec.max_context
    document = {
        "models": case["model"],
        "workload": {"arrivals": {"kind": "closed", "users": 1}, "prompt": length - 1, "output": 1},
        "engines": f"vllm@{case['version']}",
        "gpus": case["device"],
        "prices": {case["device"]: {"per_gpu_hour": 1.0, "per_node": 16}},
        "search": {
            "tensor_parallel": tensor,
            "decode_context_parallel": sorted({1, args.get("decode_context_parallel_size", 1)}),
            "kv_cache_dtypes": DTYPES.get(case["id"], "auto"),
            "max_num_seqs": args.get("max_num_seqs"),
            "max_num_batched_tokens": args.get("max_num_batched_tokens"),
        },
        "memory_utilization": args.get("gpu_memory_utilization"),
        "headroom": 0.0,
        "max_gpus": max(tensor),
        "finalists": 0,
    }
    return plan(PlanRequest.model_validate({key: value for key, value in document.items() if value is not None}))


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED - SHORT))
def test_what_ran_is_found_or_something_cheaper(name: str) -> None:
    case = CASES[name]
    ran = case["engine_args"].get("tensor_parallel_size", 1)
    answer = ask(case, [size for size in (1, 2, 4, 8, 16) if size <= ran])
    assert answer.options, [lost.example for lost in answer.lost]
    assert answer.options[0].gpus <= ran


@pytest.mark.parametrize("name", sorted(REFUSED | SHORT))
def test_what_an_engine_refused_is_never_offered(name: str) -> None:
    case = CASES[name]
    answer = ask(case, [case["engine_args"].get("tensor_parallel_size", 1)])
    assert not answer.options
    assert answer.exit_code == 1
