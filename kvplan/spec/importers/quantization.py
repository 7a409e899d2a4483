"""The checkpoint's own weight quantization and KV-cache wish, from config.json or the second ModelOpt file."""

from __future__ import annotations

import re
from typing import Any

from kvplan.errors import InputError, show
from kvplan.spec.importers.fields import is_whole
from kvplan.spec.model import KvQuantization, WeightQuantization

MAX_KEPT = 12
_KEPT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
_BITS = {
    "fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "nvfp4": 4, "nvfp4_awq": 4, "w4a16_awq": 4, "w4a8_awq": 4, "w4a16": 4,
    "int8": 8, "w8a8_sq_per_channel": 8, "awq": 4, "gptq": 4, "mxfp8": 8,
}  # fmt: skip


def _strings(value: Any, name: str, label: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{label}: {name}: found {show(value)}, expected a list of module names")
    return tuple(value[:MAX_KEPT])


def _bits(name: str) -> int | None:
    name = name.lower()
    if name in _BITS:
        return _BITS[name]
    match = re.search(r"(?:fp|int|w|nf)(\d+)", name)
    return int(match.group(1)) if match else None


def weights(
    block: dict[str, Any] | None, second: dict[str, Any] | None, expert_dtype: object, label: str
) -> WeightQuantization | None:
    """The weight quantization a file declares.

    `second` is the content of hf_quant_config.json, `expert_dtype` the experts' own format where the root names one.
    """
    inner = (second or {}).get("quantization")
    if inner is not None and not isinstance(inner, dict):
        raise InputError(f"{label}: hf_quant_config.json: quantization: found {show(inner)}, expected an object")
    inner, block = inner or {}, block or {}
    method, algorithm = block.get("quant_method"), block.get("quant_algo") or inner.get("quant_algo")
    for name, value in (("quant_method", method), ("quant_algo", algorithm)):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{label}: quantization_config.{name}: found {show(value)}, expected a string")
    if method is None and algorithm is None:
        return None
    shape = block.get("weight_block_size")
    whole = isinstance(shape, list) and len(shape) == 2 and all(map(is_whole, shape))
    kept = next((name for name in _KEPT if block.get(name) is not None), "exclude_modules")
    group = _group_size(block) or inner.get("group_size")
    expert = block.get("expert_dtype") or block.get("moe_quant_algo") or expert_dtype
    return WeightQuantization(
        method=str(algorithm).lower() if algorithm and method in (None, "modelopt") else str(method),
        bits=_declared_bits(block) or _bits(algorithm or "") or _bits(method or ""),
        group_size=group if is_whole(group) else None,
        block_shape=(shape[0], shape[1]) if isinstance(shape, list) and whole else None,
        experts_bits=_bits(expert) if isinstance(expert, str) else None,
        kept=_strings(block.get(kept, inner.get(kept)), f"quantization_config.{kept}", label),
    )


def _first_group(block: dict[str, Any]) -> dict[str, Any]:
    groups = block.get("config_groups")
    if not isinstance(groups, dict):
        return {}
    first = next((group for group in groups.values() if isinstance(group, dict)), {})
    inner = first.get("weights")
    return inner if isinstance(inner, dict) else {}


def _declared_bits(block: dict[str, Any]) -> int | None:
    for value in (block.get("bits"), block.get("w_bit"), block.get("num_bits"), _first_group(block).get("num_bits")):
        if is_whole(value, 1, 64):
            return int(value)
    if block.get("load_in_4bit") is True:
        return 4
    return 8 if block.get("load_in_8bit") is True else None


def _group_size(block: dict[str, Any]) -> Any:
    for value in (block.get("group_size"), block.get("q_group_size"), _first_group(block).get("group_size")):
        if is_whole(value):
            return value
    return None


def kv_cache(block: dict[str, Any] | None, second: dict[str, Any] | None, source: str) -> KvQuantization | None:
    """The KV cache format the checkpoint asks for: a hint that an engine's `auto` may follow."""
    scheme = (block or {}).get("kv_cache_scheme")
    if isinstance(scheme, dict) and is_whole(scheme.get("num_bits"), 1, 64):
        kind = "FP" if scheme.get("type", "float") == "float" else "INT"
        return KvQuantization(f"{kind}{scheme['num_bits']}", f"{source} quantization_config.kv_cache_scheme")
    if isinstance(scheme, str):
        return KvQuantization(scheme.upper(), f"{source} quantization_config.kv_cache_scheme")
    inner = (second or {}).get("quantization")
    for where, owner in (("hf_quant_config.json", inner), (source, block)):
        value = owner.get("kv_cache_quant_algo") if isinstance(owner, dict) else None
        if isinstance(value, str):
            return KvQuantization(value.upper(), f"{where} kv_cache_quant_algo")
    return None
