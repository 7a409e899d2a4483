"""Start-up logs written from the figures of evidence cases, in the lines that each engine prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.engines.versions import parse_version
from kvplan.spec.registry import Registry

EVIDENCE = Path(__file__).parents[1] / "evidence" / "vllm-logs"
REGISTRY = Registry()
GIB = 1 << 30
START_UPS: dict[str, Any] = json.loads((EVIDENCE / "start_ups.json").read_text(encoding="utf-8"))


def vllm_cases() -> list[dict[str, Any]]:
    """The cases of tests/evidence/vllm-logs with every figure known of them."""
    cases = json.loads((EVIDENCE / "cases.json").read_text(encoding="utf-8")) + START_UPS["cases"]
    return [case | {"memory": START_UPS["memory"].get(case["id"], {})} for case in cases]


def model_name(case: dict[str, Any]) -> str:
    spec = REGISTRY.find(case["model"])
    return str(spec.hf_ids[0] if spec.hf_ids else spec.id)


def vllm_log(case: dict[str, Any]) -> str:
    """The log of one vLLM case, by the lines of its release."""
    version = parse_version(case["version"], "vllm", "0.11.0")
    return "\n".join([*(_v0(case) if version < (0, 8) else _v1(case, version)), ""])


def _arguments(case: dict[str, Any]) -> dict[str, Any]:
    memory = case["memory"]
    share = {"gpu_memory_utilization": memory["gpu_memory_utilization"]} if "gpu_memory_utilization" in memory else {}
    return {"model": model_name(case), **case["engine_args"], **share}


def _v0(case: dict[str, Any]) -> list[str]:
    seen, memory, args = case["observed"], case["memory"], _arguments(case)
    head = "INFO 01-02 10:00:00 llm_engine.py:237]"
    listed = ", ".join(f"{name}={value!r}" for name, value in args.items())
    lines = [
        f"INFO 01-02 10:00:00 api_server.py:712] args: Namespace(host=None, port=8000, {listed})",
        f"{head} Initializing an LLM engine (v{case['version']}) with config: model='{args['model']}', "
        f"speculative_config=None, max_seq_len={args['max_model_len']}, dtype=torch.bfloat16, quantization=None)",
    ]
    available = seen.get("available_kv_gib")
    if "weights_gib" in memory:
        lines.append(f"INFO model_runner.py:1077] Loading model weights took {memory['weights_gib']} GB")
    if "peak_gib" in memory:
        lines.append(
            f"INFO worker.py:232] Memory profiling results: total_gpu_memory={memory['total_gib']}GiB "
            f"initial_memory_usage={memory.get('initial_gib', 15.3)}GiB peak_torch_memory={memory['peak_gib']}GiB "
            f"memory_usage_post_profile=15.35GiB non_torch_memory={memory['non_torch_gib']}GiB "
            f"kv_cache_size={available:.2f}GiB gpu_memory_utilization={memory['gpu_memory_utilization']:.2f}"
        )
    elif available is not None:
        lines += v0_profile({**memory, "available_gib": available})
    if "num_blocks" in seen:
        word = "GPU" if parse_version(case["version"], "vllm", "0.11.0") < (0, 7) else "cuda"
        swap = seen.get("cpu_blocks", 2048)
        lines.append(
            f"INFO distributed_gpu_executor.py:57] # {word} blocks: {seen['num_blocks']}, # CPU blocks: {swap}"
        )
    if "max_conc" in seen:
        length = args["max_model_len"]
        lines.append(
            f"INFO executor_base.py:61] Maximum concurrency for {length} tokens per request: {seen['max_conc']:.2f}x"
        )
    if case.get("refused") or (seen.get("kv_tokens") or 1 << 60) < args["max_model_len"]:
        lines.append(
            f"ValueError: The model's max seq len ({args['max_model_len']}) is larger than the maximum number of "
            f"tokens that can be stored in KV cache ({seen['kv_tokens']}). Try increasing `gpu_memory_utilization`"
        )
    return lines


def v0_profile(memory: dict[str, Any]) -> list[str]:
    """The profile of 0.6.6 to 0.8: budget, then weights, non-torch, peak and the rest."""
    share, total = memory["gpu_memory_utilization"], memory["total_gib"]
    return [
        f"INFO worker.py:266] the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x "
        f"gpu_memory_utilization ({share:.2f}) = {total * share:.2f}GiB",
        f"INFO worker.py:266] model weights take {memory['weights_gib']:.2f}GiB; non_torch_memory takes "
        f"{memory['non_torch_gib']:.2f}GiB; PyTorch activation peak memory takes {memory['activation_gib']:.2f}GiB; "
        f"the rest of the memory reserved for KV Cache is {memory['available_gib']:.2f}GiB.",
    ]


def _v1(case: dict[str, Any], version: tuple[int, ...]) -> list[str]:
    seen, memory, args = case["observed"], case["memory"], _arguments(case)
    rank, core = "(Worker_TP0 pid=101) INFO 01-02 10:00:00 [gpu_worker.py:298]", "(EngineCore_DP0 pid=99) INFO 01-02"
    lines = [
        f"(APIServer pid=1) INFO 01-02 10:00:00 [api_server.py:1896] vLLM API server version {case['version']}",
        f"(APIServer pid=1) INFO 01-02 10:00:00 [utils.py:328] non-default args: {args!r}",
        f"{core} [core.py:77] Initializing a V1 LLM engine (v{case['version']}) with config: model='{args['model']}', "
        f"speculative_config=None, max_seq_len={args['max_model_len']}, dtype=torch.bfloat16, quantization=None",
    ]
    if "weights_gib" in memory:
        lines.append(f"{rank} Model loading took {memory['weights_gib']} GiB and 12.3 seconds")
    if "graphs_estimate_gib" in memory:
        lines.append(f"{rank} Estimated CUDA graph memory: {memory['graphs_estimate_gib']:.2f} GiB total")
    if "available_kv_gib" in seen:
        lines.append(f"{rank} Available KV cache memory: {seen['available_kv_gib']:.2f} GiB")
    if "needed_kv_gib" in seen:
        estimate = f", the estimated maximum model length is {seen['est_max_len']}." if "est_max_len" in seen else "."
        return [
            *lines,
            "(EngineCore_DP0 pid=99) ERROR ValueError: To serve at least one request with the models's max seq len "
            f"({args['max_model_len']}), ({seen['needed_kv_gib']:.2f} GiB KV cache is needed, which is larger than the "
            f"available KV cache memory ({seen['available_kv_gib']:.2f} GiB). Based on the available memory{estimate} "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        ]
    size = f"GPU KV cache size: {seen.get('kv_tokens', 0):,} tokens"
    most = f"Maximum concurrency for {args['max_model_len']:,} tokens per request: {seen.get('max_conc', 0):.2f}x"
    parts = ([size] if "kv_tokens" in seen else []) + ([most] if "max_conc" in seen else [])
    where = f"{core} [kv_cache_utils.py:1087]"
    lines += [f"{where} {', '.join(parts)}"] if version >= (0, 28) else [f"{where} {part}" for part in parts]
    if "activation_gib" in memory:
        lines.append(in_all(memory, rank))
    elif "graphs_gib" in memory:
        lines.append(f"{rank} Graph capturing finished in 20 secs, took {memory['graphs_gib']:.2f} GiB")
    return lines


def in_all(memory: dict[str, Any], rank: str = "(Worker_TP0 pid=101) INFO 01-02 [gpu_worker.py:391]") -> str:
    """The line of 0.10.2 and later that sums a start up."""
    total, share = memory["total_gib"], memory["gpu_memory_utilization"]
    graphs = memory.get("graphs_gib", 0)
    return (
        f"{rank} Free memory on device ({memory.get('free_gib', total - 0.5):.2f}/{total:.2f} GiB) on startup. Desired "
        f"GPU memory utilization is ({share}, {memory.get('requested_gib', total * share):.2f} GiB). Actual usage is "
        f"{memory['weights_gib']:.2f} GiB for weight, {memory['activation_gib']:.2f} GiB for peak activation, "
        f"{memory['non_torch_gib']:.2f} GiB for non-torch memory, and {graphs:.2f} GiB for CUDAGraph memory. "
        "Replace gpu_memory_utilization config with `--kv-cache-memory=1` (0.0 GiB) to fit into requested memory."
    )
