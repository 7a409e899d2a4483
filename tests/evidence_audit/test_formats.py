"""Line formats as engines print them, one by one: figures and settings read, and what looks like one but isn't.

Formats seen in public logs of the releases named in kvplan/evidence/patterns.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.evidence.patterns import catalog
from kvplan.evidence.reader import read_lines

GIB, MIB = 1 << 30, 1 << 20
VLLM = "(EngineCore pid=75) INFO [core.py:77] Initializing a V1 LLM engine (v0.22.0) with config: model='x/y'"


def gib(value: float) -> int:
    return round(value * GIB)


FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("Loading model weights took 14.9888 GB", {"weights": gib(14.9888)}),
    ("Model loading took 14.9889 GiB and 3.219768 seconds", {"weights": gib(14.9889)}),
    ("Model loading took 1.19 GiB memory and 1.919768 seconds", {"weights": gib(1.19)}),
    (
        "Memory profiling results: total_gpu_memory=7.92GiB initial_memory_usage=0.37GiB peak_torch_memory=0.71GiB "
        "memory_usage_post_profile=0.39Gib non_torch_memory=0.15GiB kv_cache_size=6.27GiB gpu_memory_utilization=0.90",
        {"total": gib(7.92), "peak": gib(0.71), "non_torch": gib(0.15), "available": gib(6.27)},
    ),
    ("# GPU blocks: 11422, # CPU blocks: 7281", {"blocks": 11422, "cpu_blocks": 7281}),
    ("# cuda blocks: 1207, # CPU blocks: 1365", {"blocks": 1207}),
    ("Initial free memory: 43.82 GiB; Requested memory: 0.90 (util), 39.88 GiB", {"free": gib(43.82)}),
    ("Initial free memory 44.16 GiB, reserved 5.5 GiB memory for KV Cache as specified by kv_cache_memory_bytes config",
     {"free": gib(44.16), "available": gib(5.5)}),
    (
        "Memory profiling takes 7.26 seconds. Total non KV cache memory: 2.78GiB; torch peak memory increase: 1.40GiB; "
        "non-torch forward increase memory: 0.21GiB; weights memory: 1.17GiB.",
        {"non_kv": gib(2.78), "activation": gib(1.4), "non_torch": gib(0.21), "weights": gib(1.17)},
    ),
    (
        "Free memory on device (17.06/22.04 GiB) on startup. Desired GPU memory utilization is (0.62, 13.66 GiB). "
        "Actual usage is 10.29 GiB for consumed memory (weights + non-torch), 0.27 GiB for peak activation, and 0.78 "
        "GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=4545302242`",
        {"free": gib(17.06), "total": gib(22.04), "consumed": gib(10.29), "activation": gib(0.27), "graphs": gib(0.78)},
    ),
    (
        "Free memory on device cuda:0 (264.19/267.69 GiB) on startup. Actual usage is 205.08 GiB for weight, 3.75 GiB "
        "for peak activation, 1.63 GiB for non-torch memory, and 0.14 GiB for CUDAGraph memory. Current kv cache",
        {"weights": gib(205.08), "non_torch": gib(1.63), "graphs": gib(0.14)},
    ),
    ("Estimated CUDA graph memory: 0.94 GiB total", {"graphs_estimate": gib(0.94)}),
    ("CUDA graph pool memory: 0.31 GiB (actual), 0.30 GiB (estimated), difference: 0.01 GiB", {"graphs": gib(0.31)}),
    ("Graph capturing finished in 20 secs, took -0.45 GiB", {"graphs": gib(-0.45)}),
    ("Available KV cache memory: -1.05 GiB", {"available": gib(-1.05)}),
    ("GPU KV cache size: 331,584 tokens", {"tokens": 331584}),
    ("CPU KV cache size: 524,288 tokens, Maximum concurrency for 4,096 tokens per request: 128.00x",
     {"tokens": 524288, "concurrency": 128.0}),
    ("Add 3 padding layers, may waste at most 10.00% KV cache memory", {"padding_layers": 3, "padding_percent": 10.0}),
    (
        "The current --gpu-memory-utilization=0.7200 is equivalent to --gpu-memory-utilization=0.6026 without CUDA "
        "graph memory profiling. To maintain the same effective KV cache size as before, increase it to 0.8374.",
        {"share_without_graphs": 0.6026, "gpu_memory_utilization": 0.72},
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (180000), (3.05 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (2.17 GiB). Based on the available memory, the "
        "estimated maximum model length is 111456. Try increasing `gpu_memory_utilization`",
        {"needed": gib(3.05), "available": gib(2.17), "estimated_length": 111456},
    ),
    ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity", {"oom_request": 20 * MIB}),
]  # fmt: skip
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("sglang", "[2026-05-15 08:39:36 TP3] Load weight begin. avail mem=93.61 GB", {"free": gib(93.61)}),
    (
        "sglang",
        "[2026-08-28 21:32:38] Load weight end. elapsed=787.55 s, type=Qwen4ForCausalLM, quant=modelopt_fp4, avail "
        "mem=29.01 GB, mem usage=82.97 GB.",
        {"free_after_weights": gib(29.01), "weights": gib(82.97)},
    ),
    (
        "sglang",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 2618868, K size: 19.98 GB, V size: 19.98 GB",
        {"tokens": 2618868, "key": gib(19.98), "value": gib(19.98)},
    ),
    (
        "sglang",
        "max_total_num_tokens=2618868, chunked_prefill_size=-1, max_prefill_tokens=16384, max_running_requests=48, "
        "context_len=16384, available_gpu_mem=13.38 GB",
        {"tokens": 2618868, "max_running_requests": 48, "context_length": 16384},
    ),
    (
        "sglang",
        "Mamba Cache is allocated. max_mamba_cache_size: 8, conv_state size: 0.00 GB, ssm_state size: 0.10 GB",
        {"state_slots": 8, "ssm": gib(0.1)},
    ),
    (
        "tensorrt-llm",
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)",
        {"kv": gib(16.05), "tokens": 263008},
    ),
    (
        "tensorrt-llm",
        "Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, available KV cache memory when "
        "calculating max tokens: 41.11 GiB, fraction is set 0.85, kv size is 35136. device total memory 139.81 GiB",
        {"peak": gib(91.46), "available": gib(41.11), "token": 35136, "total": gib(139.81)},
    ),
    (
        "tensorrt-llm",
        "Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, available KV cache memory when "
        "calculating max tokens: 41.11 GiB",
        {"available": gib(41.11)},
    ),
    (
        "llama.cpp",
        "llama_kv_cache: size = 4352.00 MiB (262144 cells,   8 layers,  1/1 seqs), K (q8_0): 2176.00 MiB, V (q8_0): "
        "2176.00 MiB",
        {"kv": 4352 * MIB, "cells": 262144, "cache_type_k": "q8_0"},
    ),
    (
        "llama.cpp",
        "0.10.722.378 I llama_memory_recurrent: size = 1795.50 MiB (     4 cells,  64 layers,  4 seqs  2 rs_seq), R "
        "(f32):   67.50 MiB, S (f32): 1728.00 MiB",
        {"state": round(1795.5 * MIB), "state_slots": 4, "n_rs_seq": 2, "ssm": 1728 * MIB},
    ),
    ("llama.cpp", "0.08.315.152 I llama_kv_cache:    Vulkan0 KV buffer size =   256.00 MiB", {"kv_buffer": 256 * MIB}),
    ("llama.cpp", "sched_reserve:       MTL0 compute buffer size =   832.60 MiB", {"compute": round(832.6 * MIB)}),
    ("llama.cpp", "llama_context: kv_unified    = true", {"kv_unified": True}),
    (
        "ollama",
        'level=INFO source=backend.go:321 msg="kv cache" device=ROCm0 size="450.0 MiB"',
        {"kv_buffer": 450 * MIB},
    ),
    ("lmdeploy", "[TM][INFO] [BlockManager] max_block_count = 159", {"blocks": 159}),
    ("lmdeploy", "[TM][INFO] [BlockManager] block_size = 64 MB", {"block": 64 * MIB}),
    ("tgi", "INFO text_generation_launcher: KV-cache blocks: 123449, size: 1", {"blocks": 123449, "block_tokens": 1}),
]


@pytest.mark.parametrize(("line", "expected"), FORMATS, ids=range(len(FORMATS)))
def test_vllm_formats(line: str, expected: dict[str, Any]) -> None:
    (run,) = read_lines([VLLM, f"(Worker_TP0 pid=9) INFO 01-02 10:00:00 [gpu_worker.py:1] {line}"])
    found = {figure.name: figure.value for figure in run.figures}
    assert expected.items() <= found.items()


@pytest.mark.parametrize(("engine", "line", "expected"), OTHERS, ids=range(len(OTHERS)))
def test_other_engines_formats(engine: str, line: str, expected: dict[str, Any]) -> None:
    (run,) = read_lines([line])
    assert run.engine == engine
    assert expected.items() <= {figure.name: figure.value for figure in run.figures}.items()


def test_a_rounded_figure_without_its_zeros_is_still_of_two_decimals() -> None:
    # round(x, 2) prints 46.8 for 46.80
    (run,) = read_lines([VLLM, "INFO Available KV cache memory: 46.8 GiB"])
    figure = run.last("available")
    assert figure is not None
    assert figure.half == GIB * 0.005


def test_blocks_overridden_for_a_dry_run_are_no_setting() -> None:
    # the profile of the graphs runs on 512 blocks, whatever was asked for
    (run,) = read_lines(
        [
            VLLM,
            "INFO Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512",
            "INFO GPU KV cache size: 331,584 tokens",
        ]
    )
    assert "num_gpu_blocks_override" not in run.flags


def test_a_draft_model_loaded_after_the_pool_is_the_same_start() -> None:
    lines = [
        "server_args=ServerArgs(model_path='a/b', tp_size=1, mem_fraction_static=0.8, speculative_algorithm='EAGLE')",
        "Load weight begin. avail mem=111.97 GB", "Load weight end. type=X, avail mem=29.01 GB, mem usage=82.97 GB.",
        "KV Cache is allocated. #tokens: 171008, K size: 5.22 GB, V size: 5.22 GB",
        "Load weight begin. avail mem=18.00 GB", "Load weight end. type=Y, avail mem=17.00 GB, mem usage=1.00 GB.",
        "KV Cache is allocated. #tokens: 171008, K size: 0.33 GB, V size: 0.33 GB",
    ]  # fmt: skip
    (run,) = read_lines(lines)
    first = run.first("key")
    assert first is not None
    assert first.value == gib(5.22)
    assert run.flags["speculative_algorithm"] == "EAGLE"


@pytest.mark.parametrize(
    "line",
    [
        "GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%", "GPU KV cache size: unknown tokens",
        "Available KV cache memory: nan GiB", "Model loading took None GiB", "# GPU blocks: x, # CPU blocks: y",
        "GPU KV cache size: ,,, tokens", "Available KV cache memory: 1.2.3.4 GiB",
        "Maximum concurrency for tokens per request: x",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_figure_is_none(line: str) -> None:
    (run,) = read_lines([VLLM, line])
    assert {figure.name for figure in run.figures} == {"version"}


def test_settings_are_read_wherever_they_stand() -> None:
    (run,) = read_lines([
        "INFO vLLM API server version 0.22.0",
        "non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'max_model_len': 40960, 'kv_cache_dtype': 'fp8', "
        "'enable_prefix_caching': False, 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}, "
        "'gpu_memory_utilization': 0.92, 'hf_overrides': {'max_num_seqs': 'not a setting'",
        "Initializing a V1 LLM engine (v0.22.0) with config: model='Qwen/Qwen3-8B', speculative_config="
        "SpeculativeConfig(method='mtp', model=None, num_spec_tokens=3), max_seq_len=40960, tensor_parallel_size=4, "
        "enforce_eager=False, kv_cache_dtype=fp8, dtype=torch.bfloat16, quantization=None",
    ])  # fmt: skip
    wanted = {
        "model": "Qwen/Qwen3-8B", "max_model_len": 40960, "kv_cache_dtype": "fp8", "enable_prefix_caching": False,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3}, "gpu_memory_utilization": 0.92,
        "tensor_parallel_size": 4, "enforce_eager": False,
    }  # fmt: skip
    assert wanted.items() <= run.flags.items()
    assert "quantization" not in run.flags


def test_every_format_says_where_it_was_seen() -> None:
    for patterns in catalog().by_anchor.values():
        for pattern in patterns:
            assert pattern.seen
            assert pattern.match is None or pattern.match.groups or pattern.refusal
            # no format may end on a digit that could be the half of a number
            assert pattern.match is None or not pattern.match.pattern.endswith(("+)", "+"))
