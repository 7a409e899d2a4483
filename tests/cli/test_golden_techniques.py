"""Golden cases of tests/golden/techniques.yaml through the command line, on shipped models of the cases' shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Ran

GOLDEN = yaml.safe_load((Path(__file__).parents[1] / "golden" / "techniques.yaml").read_text())
CASES = {case["id"]: case for case in GOLDEN["cases"]}
GIB = 1 << 30
Document = dict[str, Any]
Answers = Callable[[Document], Document]


def needed(document: Document) -> Document:
    return {"kv_bytes": document["cache"]["needed_bytes"]}


def needed_gib(document: Document) -> Document:
    return {**needed(document), "kv_gib": document["cache"]["needed_bytes"] / GIB}


def parts(document: Document) -> Document:
    """Growing bytes and state bytes apart, as the cases of hybrid models have them."""
    cache = document["cache"]
    return {"kv_bytes": cache["growing_bytes"], "state_bytes": cache["state_bytes"]}


def step(document: Document, technique: str | None) -> int:
    return next(int(each["stored_bytes"]) for each in document["steps"] if each["technique"] == technique)


def gemma(document: Document) -> Document:
    """The step before windows is the all-global shape."""
    stored = step(document, "window")
    return {"kv_bytes": stored, "kv_gib": stored / GIB, "all_global_gib": step(document, "gqa") / GIB,
            "kept_fraction": round(stored / step(document, "gqa"), 6)}  # fmt: skip


def v32(document: Document) -> Document:
    return {
        "kv_bytes": document["cache"]["needed_bytes"],
        "bytes_per_token": document["cache"]["needed_bytes"] // 131072,
    }


def quest(document: Document) -> Document:
    cells = {row["setting"]: row["cells"][0] for row in document["rows"]}
    dense, sparse = cells["fp16"], cells["sparse-read quest:page=16,budget=2048"]
    return {
        "kv_bytes": dense["stored_bytes"],
        "metadata_bytes": sparse["stored_bytes"] - dense["stored_bytes"],
        "stored_factor": sparse["stored_ratio"],
        "model_read_fraction": round(sparse["read_ratio"], 6),
    }


def snapkv(document: Document) -> Document:
    composition = document["composition"]
    return {"kv_bytes_at_end": composition["stored_bytes"], "peak_prefill_bytes": composition["prefill_bytes"]}


def copies(document: Document) -> Document:
    figures = {row["setting"]: row["cells"][0]["stored_bytes"] for row in document["rows"]}
    copied, kept = figures["evict snapkv:1024,per-query-head"], figures["evict snapkv:1024"]
    return {"reference_code_bytes": copied, "kv_head_layout_bytes": kept, "expansion_factor": copied / kept}


def pyramid(document: Document) -> Document:
    """Llama 3.1 8B has 4,096 bytes a layer and token."""
    layers = [part["bytes"] // 4096 for part in document["cache"]["components"]]
    return {"first_layer": layers[0], "last_layer": layers[-1], "total_tokens": sum(layers)}


def shared_blocks(document: Document) -> Document:
    """Blocks of 16 tokens of 131,072 bytes (Llama 3.1 8B)."""
    block = 16 * 131072
    stored, shared = document["composition"]["stored_bytes"], document["composition"]["shared_bytes"]
    return {"blocks_shared": stored // block, "blocks_unshared": (stored + shared) // block}


def pool(document: Document) -> Document:
    return {
        "tokens_by_division": document["now"]["pool_tokens"],
        "tokens_in_blocks": document["now"]["pool_tokens_in_blocks"],
    }


def residual(document: Document) -> Document:
    rows = {row["setting"]: row["cells"][0]["stored_bytes"] for row in document["rows"]}
    return {"bytes_per_layer": rows["kivi2"] // 32, "fp16_bytes_per_layer": rows["bf16"] // 32,
            "compression_ratio": round(rows["bf16"] / rows["kivi2"], 6)}  # fmt: skip


def capacity_ratio(document: Document) -> Document:
    return {"capacity_ratio": round(1 / document["rows"][-1]["cells"][0]["stored_ratio"], 6)}


def windowed(document: Document) -> Document:
    entries = {part["name"].split(":")[0]: part["entries"] for part in document["cache"]["components"]}
    return {"local_resident": entries["local"], "global_resident": entries["global"]}


RUNS: dict[str, tuple[str, Answers]] = {
    "gqa.llama31_70b.bf16.128k": ("estimate llama-3.1-70b --ctx 128k", needed_gib),
    "gqa.llama31_70b.as_mha.128k": ("estimate llama-3.1-70b --ctx 128k --what-if kv-heads=64", needed_gib),
    "gqa.mqa.llama31_70b.128k": ("estimate llama-3.1-70b --ctx 128k --what-if kv-heads=1", needed_gib),
    "cla.cla2.32l": ("estimate llama-3.1-8b --ctx 32k --what-if cla=2", needed),
    "cla.cla3.32l": ("estimate llama-3.1-8b --ctx 32k --what-if cla=3", needed),
    "cla.yoco.32l.128k": ("estimate llama-3.1-8b --ctx 128k --what-if yoco=1024", needed),
    "cla.gemma3n_e4b.32k": ("estimate gemma-3n-e4b --ctx 32k", needed),
    "window.gemma3_27b.128k": ("explain gemma-3-27b --ctx 128k", gemma),
    "window.gpt_oss_120b.128k": ("estimate gpt-oss-120b --ctx 128k", needed),
    "window.mistral_7b_v01.32k": ("estimate mistral-7b-v0.1 --ctx 32k", needed),
    "window.streamingllm.llama2_7b": ("estimate llama-2-7b --ctx 1000000 --evict streamingllm:4+2044", needed_gib),
    "mla.deepseek_v3.bf16.128k": ("estimate deepseek-v3 --ctx 128k", needed),
    "mla.v32_with_indexer.128k": ("estimate deepseek-v3.2 --ctx 128k --fp8", v32),
    "hybrid.jamba.256k": ("estimate jamba-v0.1 --ctx 256k", parts),
    "hybrid.qwen3_next.128k": ("estimate qwen3-next-80b-a3b --ctx 128k", parts),
    "csa.v4_pro.mixed.1m": ("estimate deepseek-v4-pro --ctx 1M --fp8 --index-dtype fp4", lambda document: {
        "kv_bytes": document["cache"]["growing_bytes"]}),
    "csa.v4_pro.compressor_state": ("estimate deepseek-v4-pro --ctx 1M", lambda document: {
        "state_bytes": document["cache"]["state_bytes"]}),
    "quest.llama2_7b.32k": (
        "compare llama-2-7b --ctx 32k --vary sparse-read=none,quest:page=16,budget=2048 --sort given", quest),
    "quant.kivi2_residual.n1000": ("compare llama-3.1-8b --ctx 1000 --vary kv-cache-dtype=bf16,kivi2", residual),
    "quant.turboquant.k8v4.llama33_70b": (
        "compare llama-3.1-70b --ctx 8k --vary kv-cache-dtype=none,turboquant_k8v4 "
        "--kv-cache-dtype-skip-layers 0,1,78,79",
        capacity_ratio),
    "evict.pyramidkv.c128.n8192": ("estimate llama-3.1-8b --ctx 8k --evict pyramidkv:128,window=8", pyramid),
    "evict.pyramidkv.c2048.n8192": ("estimate llama-3.1-8b --ctx 8k --evict pyramidkv:2048", pyramid),
    "evict.snapkv.c1024.n16384": (
        "estimate llama-3.1-8b --ctx 16896 --generated 512 --evict snapkv:1024", snapkv),
    "evict.gqa_expansion_trap": (
        "compare llama-3.1-8b --ctx 8k --sort given --vary evict=snapkv:1024;snapkv:1024,per-query-head", copies),
    "evict.window_then_budget": ("estimate gemma-3-27b --ctx 32k --evict tova:2048", windowed),
    "paging.pool_8gib_320kib": ("advise llama-3.1-70b --ctx 8k --gpu h200 --pool 8GiB", pool),
    "paging.pool_8gib_160kib": ("advise llama-3.1-70b --ctx 8k --gpu h200 --pool 8GiB --kv-cache-dtype fp8", pool),
    "prefix.shared_system_prompt_pool": (
        "estimate llama-3.1-8b --ctx 2248 --batch 100 --share-prefix 2048", shared_blocks),
    "compose.gemma3_27b.fp8_global_only": (
        "estimate gemma-3-27b --ctx 128k --fp8 --kv-cache-dtype-skip-layers sliding_window", needed),
    "compose.cla2_fp8_gqa": ("estimate llama-3.1-70b --ctx 128k --fp8 --what-if cla=2", lambda document: {
        "kv_gib": document["composition"]["stored_bytes"] / GIB}),
    "compose.hybrid_fp8_state_unchanged": ("estimate qwen3-next-80b-a3b --ctx 4k --fp8", lambda document: {
        "kv_bytes": document["cache"]["growing_bytes"], "total_bytes": document["cache"]["needed_bytes"]}),
}  # fmt: skip


@pytest.mark.parametrize("case_id", RUNS)
def test_the_command_line_gives_the_golden_figures(kvplan_cli: Callable[..., Ran], case_id: str) -> None:
    command, answers = RUNS[case_id]
    ran = kvplan_cli(*command.split(), "--json")
    assert ran.code == 0, ran.err
    found = answers(json.loads(ran.out))
    expected = CASES[case_id]["expected"]
    assert found == {key: pytest.approx(expected[key], rel=1e-9) for key in found}
