"""kvplan's own options, which have vLLM's names, under the names of each engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.base import Parallelism, flag_name
from kvplan.engines.registry import canonical_engine
from kvplan.errors import InputError, show

_LLAMA = ("llama.cpp", "ik_llama.cpp")

# An engine that isn't named takes vLLM's name. Several names: the value is given to each.
FLAG_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "max_model_len": {
        "sglang": ("context_length",),
        "tensorrt-llm": ("max_seq_len",),
        "lmdeploy": ("session_len",),
        "ollama": ("num_ctx",),
        "transformers": ("max_length",),
        **dict.fromkeys(_LLAMA, ("ctx_size",)),
    },
    "tensor_parallel_size": {"sglang": ("tp_size",), "tensorrt-llm": ("tp_size",), "lmdeploy": ("tp",)},
    "pipeline_parallel_size": {"sglang": ("pp_size",), "tensorrt-llm": ("pp_size",)},
    "data_parallel_size": {"sglang": ("dp_size",), "lmdeploy": ("dp",)},
    "kv_cache_dtype": {
        "ollama": ("kv_cache_type",),
        "lmdeploy": ("quant_policy",),
        **dict.fromkeys(_LLAMA, ("cache_type_k", "cache_type_v")),
    },
    "gpu_memory_utilization": {
        "sglang": ("mem_fraction_static",),
        "tensorrt-llm": ("free_gpu_memory_fraction",),
        "lmdeploy": ("cache_max_entry_count",),
    },
    "max_num_seqs": {
        "sglang": ("max_running_requests",),
        "tensorrt-llm": ("max_batch_size",),
        "lmdeploy": ("max_batch_size",),
        "ollama": ("num_parallel",),
        **dict.fromkeys(_LLAMA, ("parallel",)),
    },
    "max_num_batched_tokens": {
        "sglang": ("chunked_prefill_size",),
        "tensorrt-llm": ("max_num_tokens",),
        "lmdeploy": ("max_prefill_token_num",),
        "ollama": ("num_batch",),
        **dict.fromkeys(_LLAMA, ("batch_size",)),
    },
    "block_size": {
        "sglang": ("page_size",),
        "tensorrt-llm": ("tokens_per_block",),
        "lmdeploy": ("cache_block_seq_len",),
    },
}
# Cache dtypes that an engine spells in its own way.
DTYPE_NAMES: dict[str, dict[str, str]] = {
    "vllm": {"bf16": "bfloat16", "fp16": "float16"},
    "sglang": {"fp8": "fp8_e4m3"},
    "ollama": {"fp16": "f16"},
    "lmdeploy": {"int4": "4", "int8": "8", "fp8": "16"},
    **{name: {"fp16": "f16", "fp32": "f32"} for name in _LLAMA},
}
# The dtype that halves an engine's cache.
EIGHT_BIT = {"llama.cpp": "q8_0", "ik_llama.cpp": "q8_0", "ollama": "q8_0", "lmdeploy": "int8"}

_PARALLEL = {
    "tensor": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline": ("pipeline_parallel_size", "pp_size", "pp"),
    "data": ("data_parallel_size", "dp_size", "dp"),
    "decode_context": ("decode_context_parallel_size", "dcp"),
}
PARALLEL_FLAGS = frozenset({*(flag for flags in _PARALLEL.values() for flag in flags), "enable_expert_parallel"})


def native_flags(engine: str, option: str) -> tuple[str, ...]:
    """What `engine` (its canonical name) calls one of kvplan's options."""
    return FLAG_NAMES.get(option, {}).get(engine, (option,))


def native_settings(engine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """kvplan's own options (None is not given) as the flags of `engine`, a name with or without a version."""
    name = canonical_engine(engine.partition("@")[0])
    settings: dict[str, Any] = {}
    for option, value in options.items():
        if value is None or (option == "kv_cache_dtype" and value == "auto"):
            continue
        if option == "kv_cache_dtype":
            value = DTYPE_NAMES.get(name, {}).get(str(value).lower(), value)
        settings |= dict.fromkeys(native_flags(name, option), value)
    return settings


def parallel_from(settings: Mapping[str, Any]) -> Parallelism:
    """The parallel sizes among an engine's flags. Raises InputError for one that is no whole number from 1."""
    given = {flag_name(flag): value for flag, value in settings.items()}
    sizes: dict[str, int] = {}
    for name, spellings in _PARALLEL.items():
        flag = next((each for each in spellings if given.get(each) is not None), spellings[0])
        value = given.get(flag, 1)
        if isinstance(value, bool) or not str(value).isdecimal() or not 1 <= int(value) <= 100_000:
            raise InputError(f"--{flag.replace('_', '-')}: found {show(value)}, expected a whole number from 1")
        sizes[name] = int(value)
    expert = str(given.get("enable_expert_parallel", False)).lower() in ("true", "1", "")
    return Parallelism(**sizes, expert=expert)
