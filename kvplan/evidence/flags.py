"""Settings out of the lines in which engines repeat their arguments."""

from __future__ import annotations

import ast
import re
from typing import Any

MAX_VALUE = 4096

_VLLM = {
    name: name
    for name in (
        "model", "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "block_size", "max_num_batched_tokens",
        "max_num_seqs", "enable_prefix_caching", "enable_chunked_prefill", "tensor_parallel_size",
        "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size", "enable_expert_parallel",
        "enforce_eager", "speculative_config", "num_gpu_blocks_override", "kv_cache_memory_bytes", "quantization",
        "dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode", "mamba_block_size",
        "async_scheduling", "disable_hybrid_kv_cache_manager", "kv_cache_dtype_skip_layers", "attention_backend",
    )
}  # fmt: skip
_SGLANG = {
    name: name
    for name in (
        "context_length", "kv_cache_dtype", "page_size", "max_total_tokens", "max_running_requests",
        "mem_fraction_static", "swa_full_tokens_ratio", "disable_hybrid_swa_memory", "mamba_full_memory_ratio",
        "max_mamba_cache_size", "mamba_ssm_dtype", "mamba_scheduler_strategy", "disable_radix_cache",
        "chunked_prefill_size", "enable_dp_attention", "speculative_algorithm", "speculative_num_draft_tokens",
        "enable_hierarchical_cache", "hicache_ratio", "hicache_size",
    )
}  # fmt: skip
#: by engine, the name in the log and the name of the setting
NAMES: dict[str, dict[str, str]] = {
    "vllm": {**_VLLM, "model_tag": "model", "max_seq_len": "max_model_len",
             "chunked_prefill_enabled": "enable_chunked_prefill"},
    "sglang": {**_SGLANG, "model_path": "model", "tp_size": "tensor_parallel_size",
               "pp_size": "pipeline_parallel_size", "dp_size": "data_parallel_size"},
    "lmdeploy": {"tp": "tensor_parallel_size", "cache_max_entry_count": "cache_max_entry_count",
                 "cache_block_seq_len": "cache_block_seq_len", "block_size": "block_size",
                 "quant_policy": "quant_policy", "session_len": "session_len", "max_batch_size": "max_batch_size",
                 "enable_prefix_caching": "enable_prefix_caching"},
}  # fmt: skip
_PAIR = re.compile(r"(?:(?<=[\s(,{])|^)'?([a-z_]{2,40})'?(?:=|: ?)(?=\S)")
_BARE = re.compile(r"[^,\s)}\]]{1,300}")
_SPECULATIVE = re.compile(r"method='?([A-Za-z0-9_]{1,40})'?.{0,200}?num_spec(?:ulative)?_tokens=([0-9]{1,4})\b")
_CLOSING = {"{": "}", "[": "]", "(": ")"}


def read_flags(engine: str, text: str) -> dict[str, Any]:
    """The known settings in a line of arguments; None values are left out, and so is a value that was cut off."""
    names = NAMES.get(engine, {})
    found: dict[str, Any] = {}
    for pair in _PAIR.finditer(text):
        name = names.get(pair.group(1))
        if name is None:
            continue
        value = _value(text, pair.end())
        if value is not None:
            found.setdefault(name, value)
    if engine == "vllm":
        speculation = _speculation(text, found.get("speculative_config"))
        found.pop("speculative_config", None)
        if speculation is not None:
            found["speculative_config"] = speculation
    return found


def _speculation(text: str, value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value if isinstance(value.get("num_speculative_tokens"), int) else None
    match = _SPECULATIVE.search(text, max(0, text.find("SpeculativeConfig(")))
    if match is None or "SpeculativeConfig(" not in text:
        return None
    return {"method": match.group(1), "num_speculative_tokens": int(match.group(2))}


def _value(text: str, start: int) -> Any:
    first = text[start]
    if first in "'\"":
        end = text.find(first, start + 1, start + MAX_VALUE)
        return text[start + 1 : end] if end > 0 else None
    if first in _CLOSING:
        literal = _balanced(text, start)
        try:
            return None if literal is None else ast.literal_eval(literal)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    bare = _BARE.match(text, start)
    # A value with nothing after it may be the half of one.
    if bare is None or bare.end() >= len(text):
        return None
    return _typed(bare.group())


def _typed(word: str) -> Any:
    if word in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[word]
    if re.fullmatch(r"-?[0-9]{1,18}", word):
        return int(word)
    if re.fullmatch(r"-?[0-9]{1,9}\.[0-9]{1,18}", word):
        return float(word)
    word = word.removeprefix("torch.")
    return word if re.fullmatch(r"[A-Za-z0-9_./-]{1,200}", word) else None


def _balanced(text: str, start: int) -> str | None:
    """The bracketed text from `start`, None when it doesn't close within MAX_VALUE characters."""
    depth = 0
    for index in range(start, min(len(text), start + MAX_VALUE)):
        if text[index] in _CLOSING:
            depth += 1
        elif text[index] in _CLOSING.values():
            depth -= 1
            if depth == 0:
                return text[start : index + 1]
    return None
