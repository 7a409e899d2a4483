"""What vLLM makes of its flags: defaults by release, device memory and model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.base import Device, Parallelism, Setting
from kvplan.engines.versions import Rules, load_rules
from kvplan.engines.vllm.settings import Asked, Resolved
from kvplan.errors import InputError, show
from kvplan.record import record
from kvplan.spec.layers import RECURRENT, CompressedSparse, CrossAttention, Mamba1, Mamba2, NoCache, SharedCache
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import GIB

_DTYPES = {"half": "float16", "float": "float32"}


@record
class Traits:
    """What kinds of layers a model has."""

    recurrent: bool
    attention: bool
    cross: bool
    compressed: bool
    only_mamba: bool

    @property
    def hybrid(self) -> bool:
        return self.recurrent and self.attention


def traits(spec: ModelSpec) -> Traits:
    """The kinds of layers in `spec`."""
    layers = [branch for name in spec.counts for branch in branches(spec.blocks[name])]
    recurrent = [layer for layer in layers if isinstance(layer, RECURRENT)]
    stored = [layer for layer in layers if not isinstance(layer, (*RECURRENT, NoCache, SharedCache))]
    return Traits(
        recurrent=bool(recurrent),
        attention=bool(stored),
        cross=any(isinstance(layer, CrossAttention) for layer in layers),
        compressed=any(isinstance(layer, CompressedSparse) for layer in layers),
        only_mamba=bool(recurrent) and all(isinstance(layer, Mamba1 | Mamba2) for layer in recurrent),
    )


@dataclass
class _Ledger:
    """The resolved settings in the making, with the source of each."""

    asked: Asked
    settings: list[Setting] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def settle(self, name: str, default: Any, source: str) -> Any:
        """The asked value of a flag, else `default`, recorded with where it comes from."""
        value = self.asked.get(name)
        return self.note(name, default, source) if value is None else self.note(name, value, "asked")

    def note(self, name: str, value: Any, source: str) -> Any:
        self.settings.append(Setting(name, value, source))
        return value


def resolve(spec: ModelSpec, asked: Asked, parallel: Parallelism, device: Device, rules: Rules) -> Resolved:
    """Fill in what the flags leave open. Raises InputError for values that don't go together."""
    ledger, has = _Ledger(asked), traits(spec)
    max_model_len, auto_fit = _length(spec, ledger)
    batched, seqs = _batches(ledger, has, max_model_len, parallel, device, rules)
    in_flight, asynchronous = _in_flight(ledger, batched, parallel, device, rules)
    prefix, mode = _prefix_caching(ledger, has, rules)
    disable = asked.get("disable_hybrid_kv_cache_manager")
    manager = _hybrid_manager(ledger, rules)
    dtype, skip = _cache_dtype(spec, ledger, has, device)
    model_dtype = _model_dtype(spec, ledger)
    conv = ledger.settle("mamba_cache_dtype", "auto", "the model's dtype") if has.recurrent else "auto"
    return Resolved(
        max_model_len=max_model_len,
        auto_fit=auto_fit,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        in_flight_tokens=in_flight,
        async_scheduling=asynchronous,
        prefix_caching=prefix,
        state_mode=mode,
        hybrid_manager=manager,
        chunked_hybrid_manager=bool(disable is False or rules["chunked_hybrid_manager"]),
        kv_cache_dtype=dtype,
        skip_layers=skip,
        model_dtype=model_dtype,
        conv_dtype=model_dtype if conv == "auto" else conv,
        ssm_dtype=asked.get("mamba_ssm_cache_dtype") or "auto",
        block_size=asked.get("block_size"),
        blocks_override=asked.get("num_gpu_blocks_override"),
        backend=asked.get("attention_backend"),
        speculation=asked.get("speculative_config"),
        partition=_partition(asked.get("pp_layer_partition"), spec, parallel),
        settings=tuple(ledger.settings),
        warnings=tuple(ledger.warnings),
    )


def _hybrid_manager(ledger: _Ledger, rules: Rules) -> bool:
    if not rules["hybrid_manager"]:
        return bool(ledger.note("hybrid_kv_cache_manager", False, "the release has none"))
    disabled = bool(ledger.asked.get("disable_hybrid_kv_cache_manager"))
    return bool(ledger.note("hybrid_kv_cache_manager", not disabled, "asked" if disabled else "default"))


def _length(spec: ModelSpec, ledger: _Ledger) -> tuple[int, bool]:
    asked = ledger.asked.get("max_model_len")
    if asked is not None and asked != -1:
        if spec.max_context is not None and asked > spec.max_context:
            ledger.warnings.append(
                f"--max-model-len {asked} is beyond the {spec.max_context} tokens the checkpoint declares; vLLM "
                f"refuses it unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
            )
        return ledger.note("max_model_len", asked, "asked"), False
    if spec.max_context is None:
        raise InputError("--max-model-len: found none and the checkpoint declares no context, expected a length")
    return ledger.note("max_model_len", spec.max_context, "the checkpoint's context"), asked == -1


def _batches(
    ledger: _Ledger, has: Traits, length: int, parallel: Parallelism, device: Device, rules: Rules
) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs (vllm/engine/arg_utils.py)."""
    context = ledger.asked.get("usage_context") or "server"
    if device.kind == "cpu":
        row, ranks = rules["cpu_batch_defaults"], parallel.tensor * parallel.pipeline
        tokens, seqs = row[context] * ranks, row[f"{context}_seqs"] * ranks
        why = f"vLLM's default on a CPU ({context})"
    else:
        gib = device.memory_bytes / GIB
        row = next(
            row for row in rules["batch_defaults"]
            if gib >= row["at_least_gib"] and row.get("not_named", "\0") not in device.name.lower()
        )  # fmt: skip
        tokens, seqs = row[context], row["seqs"]
        why = f"vLLM's default from {row['at_least_gib']} GiB of device memory ({context})"
    asked_tokens, asked_seqs = ledger.asked.get("max_num_batched_tokens"), ledger.asked.get("max_num_seqs")
    if ledger.asked.get("performance_mode") == "throughput":
        tokens, seqs = 2 * tokens, 2 * seqs
    seqs = asked_seqs or seqs
    if asked_tokens is None:
        chunked = ledger.asked.get("enable_chunked_prefill")
        if chunked is False or (chunked is None and has.cross):
            tokens = max(tokens, length)
        tokens = min(tokens, seqs * length)
    tokens = ledger.settle("max_num_batched_tokens", tokens, why)
    seqs = ledger.settle("max_num_seqs", min(seqs, tokens), why)
    return tokens, seqs


def _in_flight(ledger: _Ledger, batched: int, parallel: Parallelism, device: Device, rules: Rules) -> tuple[int, bool]:
    """Tokens scheduled and not settled, and whether scheduling is asynchronous (vllm/config/vllm.py)."""
    speculation = ledger.asked.get("speculative_config")
    method = {} if speculation is None else load_rules("vllm")["speculative"][speculation.method]
    second = rules["second_model_runner"] and device.kind != "cpu" and not method.get("first_runner", False)
    default = (
        rules["async_scheduling"] and device.kind != "cpu" and method.get("async", True)
        and (parallel.pipeline == 1 or second)
    )  # fmt: skip
    asynchronous = bool(ledger.settle("async_scheduling", default, "default"))
    if device.kind == "cpu":
        asynchronous = False
    batches = parallel.pipeline
    if asynchronous and (second or parallel.pipeline == 1):
        batches += 1
    if not rules["reserve_batches_in_flight"]:
        return ledger.note("max_in_flight_tokens", batched, "the release reserves one batch"), asynchronous
    return (
        ledger.note("max_in_flight_tokens", batches * batched, f"{batches} batches of max_num_batched_tokens"),
        asynchronous,
    )


def _prefix_caching(ledger: _Ledger, has: Traits, rules: Rules) -> tuple[bool, str]:
    default = not has.cross and (has.attention and (not has.recurrent or rules["hybrid_prefix_caching"]))
    prefix = bool(ledger.settle("enable_prefix_caching", default, "default for the model's kind"))
    if not has.recurrent:
        return prefix, "none"
    asked = ledger.asked.get("mamba_cache_mode")
    if asked is not None and asked not in rules["state_modes"]:
        raise InputError(
            f"--mamba-cache-mode: found {asked}, expected one of {', '.join(rules['state_modes'])} "
            f"in vLLM {rules.version}"
        )
    if not prefix:
        return prefix, str(ledger.note("mamba_cache_mode", "none", "prefix caching is off"))
    mode = rules["state_mode"]
    if mode == "mixed":
        mode = "all" if has.only_mamba else "align"
    if asked in (None, "none"):
        return prefix, str(ledger.note("mamba_cache_mode", mode, "default with prefix caching"))
    return prefix, str(ledger.note("mamba_cache_mode", asked, "asked"))


def _cache_dtype(spec: ModelSpec, ledger: _Ledger, has: Traits, device: Device) -> tuple[str, tuple[str, ...]]:
    table, dtype, why = load_rules("vllm"), "auto", "the model's dtype"
    major = (device.compute_capability or (0, 0))[0]
    if spec.kv_quantization is not None:
        dtype = table["checkpoint_kv_dtypes"].get(spec.kv_quantization.algorithm.lower(), "auto")
        why = f"the checkpoint's own scheme ({spec.kv_quantization.source})" if dtype != "auto" else why
    if dtype == "auto" and major in table["auto_kv_dtypes"].get(spec.model_type, {}):
        dtype, why = table["auto_kv_dtypes"][spec.model_type][major], "vLLM's default for the model on this device"
    asked = ledger.asked.get("kv_cache_dtype")
    dtype, why = (asked, "asked") if asked not in (None, "auto") else (dtype, why)
    if has.compressed:
        if dtype != "auto" and not dtype.startswith("fp8"):
            raise InputError(f"--kv-cache-dtype: found {dtype}, expected auto or fp8, which DeepSeek V4 is stored in")
        dtype, why = "fp8_ds_mla", "the layout of DeepSeek V4"
    skip = tuple(ledger.asked.get("kv_cache_dtype_skip_layers") or ())
    if dtype.startswith("turboquant_") and not has.hybrid:
        ends = min(table["turboquant_boundary_layers"], spec.layer_count // 2)
        numbers = {*range(ends), *range(spec.layer_count - ends, spec.layer_count)}
        skip = (*skip, *(str(number) for number in sorted(numbers) if str(number) not in skip))
    for word in skip:
        if word.isdecimal() and int(word) >= spec.layer_count:
            raise InputError(f"--kv-cache-dtype-skip-layers: found layer {word}, expected 0 to {spec.layer_count - 1}")
    ledger.note("kv_cache_dtype", dtype, why)
    ledger.note("kv_cache_dtype_skip_layers", list(skip), "asked, and TurboQuant's own" if skip else "default")
    return dtype, skip


def _model_dtype(spec: ModelSpec, ledger: _Ledger) -> str:
    asked = ledger.asked.get("dtype") or "auto"
    if asked != "auto":
        return str(ledger.note("dtype", _DTYPES.get(asked, asked), "asked"))
    served = "bfloat16" if spec.dtype == "float32" else spec.dtype
    return str(ledger.note("dtype", served, "the checkpoint's dtype, float32 served in 16 bits"))


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: even, the spare ones from the last stage but one backwards.

    vllm/distributed/utils.py, get_pp_indices.
    """
    counts = [layers // stages] * stages
    for spare in range(layers % stages):
        counts[-2 - spare] += 1
    return tuple(counts)


def _partition(asked: Any, spec: ModelSpec, parallel: Parallelism) -> tuple[int, ...] | None:
    if asked is None:
        return None
    words = str(asked).split(",") if not isinstance(asked, list | tuple) else [str(word) for word in asked]
    counts = tuple(int(word) for word in words if word.strip().isdecimal() and len(word) < 7)
    if len(counts) != parallel.pipeline or len(words) != len(counts) or sum(counts) != spec.layer_count:
        raise InputError(
            f"VLLM_PP_LAYER_PARTITION: found {show(asked)}, expected {parallel.pipeline} counts that sum to "
            f"{spec.layer_count} layers"
        )
    return counts
