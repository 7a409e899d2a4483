"""Start-up logs of SGLang, TensorRT-LLM and the llama.cpp family from the cases of tests/golden/engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvplan.spec.layers import LAYER_BY_KIND
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.spec.resolve import LoadedModel

GOLDEN = Path(__file__).parents[1] / "golden" / "engines" / "engine_logs.yaml"


def engine_cases() -> list[dict[str, Any]]:
    """The cases that print what the audit checks."""
    cases: list[dict[str, Any]] = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))["cases"]
    return cases


def loaded_of(case: dict[str, Any]) -> LoadedModel:
    blocks = {f"b{i}": LAYER_BY_KIND[kind](**geometry) for i, (_, kind, geometry) in enumerate(case["layers"])}
    runs = tuple(f"{count} x b{i}" for i, (count, _, _) in enumerate(case["layers"]))
    source = Provenance(case["source"], "verbatim")
    return LoadedModel(ModelSpec(case["id"], case["model_type"], "bfloat16", blocks, runs, source, max_context=1 << 20))


def engine_log(case: dict[str, Any]) -> str:
    writers = {"sglang": _sglang, "tensorrt-llm": _tensorrt_llm}
    return "\n".join([*writers.get(case["engine"], _llama)(case), ""])


def _sglang(case: dict[str, Any]) -> list[str]:
    expect, head = case["expect"], "[2025-06-24 10:00:00 TP0]"
    memory = case.get("memory", {})
    shown = {"tp_size": case.get("tensor", 1), **case["settings"]}
    if memory:
        shown["mem_fraction_static"] = memory["fraction"]
    listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    lines = [f"[2025-06-24 10:00:00] server_args=ServerArgs(model_path='some/model', {listed}, host='0.0.0.0')"]
    if memory:
        lines += [
            f"{head} Load weight begin. avail mem={memory['before_gib']:.2f} GB",
            f"{head} Load weight end. type=ForCausalLM, dtype=torch.bfloat16, avail mem={memory['after_gib']:.2f} GB.",
        ]
    if "ssm_gib" in expect and "conv_gib" in expect:
        lines.append(
            f"{head} Mamba Cache is allocated. max_mamba_cache_size: 43, conv_state size: {expect['conv_gib']:.2f}GB, "
            f"ssm_state size: {expect['ssm_gib']:.2f}GB"
        )
    if "window_tokens" in expect:
        lines.append(
            f"{head} Use sliding window memory pool. full_layer_tokens={expect['tokens']}, "
            f"swa_layer_tokens={expect['window_tokens']}"
        )
    if "k_gib" in expect:
        sizes = f"K size: {expect['k_gib']:.2f} GB, V size: {expect['v_gib']:.2f} GB"
        lines.append(f"{head} KV Cache is allocated. #tokens: {expect['tokens']}, {sizes}")
    elif "kv_gib" in expect:
        lines.append(f"{head} KV Cache is allocated. #tokens: {expect['tokens']}, KV size: {expect['kv_gib']:.2f} GB")
    else:
        lines.append(
            f"{head} max_total_num_tokens={expect['tokens']}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=2048, context_len=32768"
        )
    return lines


def _tensorrt_llm(case: dict[str, Any]) -> list[str]:
    expect = case["expect"]
    lines = [f"[TensorRT-LLM] TensorRT-LLM version: {case.get('version', '1.0.0')}"]
    if "tokens_per_block" in case["settings"]:
        lines.append(f"[TensorRT-LLM][INFO] Number of tokens per block: {case['settings']['tokens_per_block']}.")
    lines.append(
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {expect['kv_gib']:.2f} GiB for max tokens in paged KV cache "
        f"({expect['tokens']})."
    )
    return lines


def _llama(case: dict[str, Any]) -> list[str]:
    settings, expect = case["settings"], case["expect"]
    build = str(case.get("version") or "").lstrip("b")
    old = case["engine"] == "ik_llama.cpp" or (build.isdecimal() and int(build) < 5200)
    who = "llama_new_context_with_model" if old else "llama_context"
    head = [f"build: {build} (0a5a3b5c) with cc for x86_64-linux-gnu"] if build.isdecimal() else []
    if case["engine"] == "ollama":
        head = [
            "time=2025-05-01T10:00:00Z level=INFO source=routes.go:1300 "
            f'msg="Listening on 127.0.0.1:11434 (version {case["version"]})"'
        ]
    lines = [
        *head,
        "llama_model_loader: loaded meta data with 30 key-value pairs and 291 tensors from a.gguf (version GGUF V3)",
        f"{who}: n_seq_max     = {settings.get('parallel', 1)}",
        f"{who}: n_ctx         = {settings.get('ctx_size', settings.get('num_ctx', 0))}",
        f"{who}: n_ubatch      = {settings.get('ubatch_size', 512)}",
    ]
    if case["engine"] == "ik_llama.cpp":
        lines.append(f"{who}: mla_attn   = {settings.get('mla_use', 0)}")
    key, value = settings.get("cache_type_k", "f16"), settings.get("cache_type_v", "f16")
    k_mib, v_mib = expect.get("k_mib"), expect.get("v_mib")
    if k_mib is not None and v_mib is not None and old:
        rest = f"V ({value}): {v_mib:7.2f} MiB" if v_mib else "kv^T: not used"
        total = expect.get("kv_mib", k_mib + v_mib)
        lines.append(f"{who}: KV self size  = {total:.2f} MiB, K ({key}): {k_mib:.2f} MiB, {rest}")
    elif k_mib is not None and v_mib is not None:
        lines.append(_pool(case, k_mib, v_mib))
    elif "full_mib" in expect and case["settings"]["cache_type_k"] != "bf16":
        lines += [_pool(case, expect[name] / 2, expect[name] / 2) for name in ("full_mib", "window_mib")]
    elif case["id"] == "ollama-8447-dsr1-2k":  # 61 layers x 2048 cells x (24576 + 16384) values of 2 B
        lines.append(_pool(case, 5856.0, 3904.0))
    elif "kv_mib" in expect:
        lines.append(_pool(case, expect["kv_mib"] / 2, expect["kv_mib"] / 2))
    if "state_mib" in expect:
        parts = f", R (f32): {expect['r_mib']:.2f} MiB, S (f32): {expect['s_mib']:.2f} MiB" if "r_mib" in expect else ""
        copies = f" {settings['n_rs_seq']} rs_seq" if "n_rs_seq" in settings else ""
        lines.append(
            f"llama_memory_recurrent: size = {expect['state_mib']:.2f} MiB ( 1 cells, 32 layers, 1 seqs{copies}){parts}"
        )
    return lines


def _pool(case: dict[str, Any], k_mib: float, v_mib: float) -> str:
    settings = case["settings"]
    cells, slots = settings.get("ctx_size", settings.get("num_ctx", 0)), settings.get("parallel", 1)
    key, value = settings.get("cache_type_k", "f16"), settings.get("cache_type_v", "f16")
    return (
        f"llama_kv_cache_unified: size = {k_mib + v_mib:7.2f} MiB ({cells:6d} cells,  32 layers, {slots:2d} seqs), "
        f"K ({key}): {k_mib:.2f} MiB, V ({value}): {v_mib:.2f} MiB"
    )
