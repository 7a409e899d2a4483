"""vLLM's flags: read by their own names and spellings, with the defaults of the release filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.engines.base import Parallelism, Setting, flag_name
from kvplan.engines.versions import load_rules
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.units import GIB

ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
           "dcp": "decode_context_parallel_size", "VLLM_PP_LAYER_PARTITION": "pp_layer_partition",
           "spec_config": "speculative_config"}  # fmt: skip
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
            "enable_expert_parallel")  # fmt: skip
NUMBERS = ("block_size", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override", "kv_cache_memory_bytes",
           "mamba_block_size")  # fmt: skip
SWITCHES = ("enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager", "enable_chunked_prefill")
WORDS = {
    "mamba_cache_dtype": ("auto", "float32", "float16", "bfloat16"),
    "mamba_ssm_cache_dtype": ("auto", "float32", "float16", "bfloat16"),
    "mamba_cache_mode": ("none", "align", "all"),
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "performance_mode": ("balanced", "interactivity", "throughput"),
    "usage_context": ("server", "offline"),
}
OTHERS = ("max_model_len", "kv_cache_dtype", "kv_cache_dtype_skip_layers", "speculative_config", "attention_backend",
          "pp_layer_partition", "kv_offloading_size")  # fmt: skip
_HUMAN = re.compile(r"([0-9]+)(?:\.([0-9]+))?([kmgtKMGT]?)")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_MOST = 10**15


def human_integer(value: Any, field: str) -> int:
    """An integer as vLLM reads it: `128k` is 128,000 and `128K` 131,072; a fraction only with a small letter.

    Raises InputError (vllm/engine/arg_utils.py, human_readable_int).
    """
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        match = _HUMAN.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 40 else None
        if match is None or (match.group(2) and match.group(3) not in _DECIMAL):
            raise InputError(f"{field}: found {show(value)}, expected a whole number such as 32768, 32k or 32K")
        whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3)
        factor = _DECIMAL.get(unit) or (1 << 10 * ("KMGT".index(unit) + 1) if unit else 1)
        number = int(whole + fraction) * factor // 10 ** len(fraction)
    if not 1 <= number <= _MOST:
        raise InputError(f"{field}: found {show(value)}, expected a whole number from 1 to 10^15")
    return number


def _switch(value: Any, field: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "1", "0"):
        return value.strip().lower() in ("true", "1")
    raise InputError(f"{field}: found {show(value)}, expected true or false")


@record
class Speculation:
    """Speculative decoding: its method and how many tokens it drafts."""

    method: str
    tokens: int


def _speculation(value: Any) -> Speculation | None:
    field = "--speculative-config"
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{field}: found {show(value)}, expected a JSON object with method and "
                             "num_speculative_tokens") from None  # fmt: skip
    if not isinstance(value, Mapping):
        raise InputError(f"{field}: found {show(value)}, expected a JSON object with method and num_speculative_tokens")
    known = load_rules("vllm")["speculative"]
    method = str(value.get("method") or ("draft_model" if value.get("model") else "mtp"))
    if method not in known:
        method = "mtp" if method.endswith("_mtp") else method
    if method not in known:
        raise InputError(f"{field}: found method {show(method)}, expected one of {', '.join(known)}"
                         f"{did_you_mean(method, known)}")  # fmt: skip
    return Speculation(method, human_integer(value.get("num_speculative_tokens", 1), f"{field}.num_speculative_tokens"))


def _skip_layers(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence):
        raise InputError(f"--kv-cache-dtype-skip-layers: found {show(value)}, expected layer numbers or sliding_window")
    words = tuple(str(item).strip() for item in items)
    for word in words:
        if not word.isdecimal() and word != "sliding_window":
            raise InputError(
                f"--kv-cache-dtype-skip-layers: found {show(word)}, expected layer numbers or sliding_window"
            )
    return words


def _offload_bytes(value: Any, field: str) -> int:
    """--kv-offloading-size, in GiB over all ranks, as bytes."""
    try:
        size = float(value)
    except (TypeError, ValueError):
        size = 0.0
    if not 0 < size <= 1 << 20:
        raise InputError(f"{field}: found {show(value)}, expected GiB of host memory above 0 such as 16")
    return int(size * GIB)


def _choice(name: str, value: Any) -> str:
    words, word = WORDS[name], str(value).strip().lower()
    if word not in words:
        near = did_you_mean(word, words)
        raise InputError(f"--{name.replace('_', '-')}: found {show(value)}, expected one of {', '.join(words)}{near}")
    return word


def _cache_dtype(value: Any) -> str:
    word, known = str(value).strip().lower(), load_rules("vllm")["kv_cache_dtypes"]
    if word not in known:
        from kvplan.engines.support import engines_with_dtype

        have = ", ".join(engines_with_dtype(word))
        others = f"; engines that have it: {have}" if have else did_you_mean(word, known)
        raise InputError(f"--kv-cache-dtype: found {show(value)}, expected one of vLLM's {', '.join(known)}{others}")
    return word


@record
class Asked:
    """The flags that were given, typed, under their canonical names, and what was not understood."""

    values: Mapping[str, Any]
    unknown: tuple[str, ...]
    without_effect: tuple[str, ...]

    def get(self, name: str) -> Any:
        return self.values.get(name)


def read_flags(settings: Mapping[str, Any]) -> Asked:
    """Type the flags given by vLLM's own long names, with - or _ and with or without the leading dashes.

    Raises InputError for a value that vLLM would not take; a flag it hasn't got is listed in `unknown`.
    """
    values: dict[str, Any] = {}
    unknown, idle = [], []
    for given, raw in settings.items():
        name = flag_name(str(given))
        name, value = ALIASES.get(name, name), raw
        if name not in (*SWITCHES, *NUMBERS, *OTHERS, *WORDS, *PARALLEL) and name.startswith("no_"):
            name, value = name.removeprefix("no_"), not _switch(raw, str(given))
        if value is None:
            continue
        field = f"--{name.replace('_', '-')}"
        if name in NUMBERS:
            values[name] = human_integer(value, field)
        elif name in SWITCHES:
            values[name] = _switch(value, field)
        elif name in WORDS:
            values[name] = _choice(name, value)
        elif name == "max_model_len":
            automatic = value == -1 or (isinstance(value, str) and value.strip().lower() in ("auto", "-1"))
            values[name] = -1 if automatic else human_integer(value, field)
        elif name == "kv_cache_dtype":
            values[name] = _cache_dtype(value)
        elif name == "kv_cache_dtype_skip_layers":
            values[name] = _skip_layers(value)
        elif name == "speculative_config":
            values[name] = _speculation(value)
        elif name == "kv_offloading_size":
            values[name] = _offload_bytes(value, field)
        elif name in OTHERS:
            values[name] = value
        elif name in load_rules("vllm")["flags_without_effect"]:
            idle.append(name)
        elif name not in PARALLEL:
            unknown.append(str(given))
    return Asked(values, tuple(unknown), tuple(idle))


def parallelism(settings: Mapping[str, Any]) -> Parallelism:
    """The ranks that the flags ask for. Raises InputError for what is no count."""
    given = {ALIASES.get(flag_name(str(key)), flag_name(str(key))): value for key, value in settings.items()}
    counts = [human_integer(given.get(name) or 1, f"--{name.replace('_', '-')}") for name in PARALLEL[:4]]
    expert = _switch(given.get("enable_expert_parallel", False), "--enable-expert-parallel")
    return Parallelism(counts[0], counts[1], counts[2], expert, counts[3])


@record
class Resolved:
    """Every setting that decides the layout, with the release's defaults filled in. Lengths are in tokens.

    `max_model_len` is the length planned for, with `auto_fit` its upper bound. `in_flight_tokens` are scheduled and
    not yet settled: windows keep their blocks that long.
    """

    max_model_len: int
    auto_fit: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    in_flight_tokens: int
    async_scheduling: bool
    prefix_caching: bool
    state_mode: str
    hybrid_manager: bool
    chunked_hybrid_manager: bool
    kv_cache_dtype: str
    skip_layers: tuple[str, ...]
    model_dtype: str
    conv_dtype: str
    ssm_dtype: str
    block_size: int | None
    blocks_override: int | None
    backend: str | None
    speculation: Speculation | None
    partition: tuple[int, ...] | None
    settings: tuple[Setting, ...] = ()
    warnings: tuple[str, ...] = ()
