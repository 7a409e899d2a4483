"""What SGLang leaves for its static pools: the default of --mem-fraction-static and the bytes it comes to.

Source: sgl-project/sglang 0.5.23 srt/arg_groups/memory_hook.py and srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvplan.engines.versions import load_rules
from kvplan.errors import InputError
from kvplan.units import GIB, MIB, gib


@dataclass(frozen=True)
class MemFraction:
    """The fraction with the figures behind it; `reserved_mib` is what it leaves to activations and graphs."""

    fraction: float
    reserved_mib: float
    chunked_prefill_size: int
    decode_max_bs: int


def default_mem_fraction(
    memory_mib: int | None,
    *,
    tp: int = 1,
    pp: int = 1,
    dp_attention: int = 0,
    mla: bool = False,
    prefill_graphs: bool = True,
    deepep: bool = False,
    chunked_prefill_size: int | None = None,
    decode_max_bs: int | None = None,
) -> MemFraction:
    """--mem-fraction-static when it isn't given, from the card's memory (MiB, None: unknown) and the settings.

    `dp_attention` is the number of data-parallel attention ranks, 0 without it.
    """
    rule: dict[str, Any] = load_rules("sglang")["mem_fraction_static"]
    if memory_mib is None:
        return MemFraction(rule["unknown_memory"], 0.0, chunked_prefill_size or 0, decode_max_bs or 0)
    row = next(row for row in rule["rows"] if memory_mib < row.get("below_gib", 1 << 40) * 1024)
    chunk = chunked_prefill_size or row["chunked_prefill_size"]
    requests = decode_max_bs or row["decode_max_bs_tp4" if tp >= 4 else "decode_max_bs"]
    reserved = rule["base"] + rule["per_prefill_token"] * max(chunk, rule["least_prefill_tokens"])
    reserved += rule["per_rank"] * tp * pp + rule["per_decode_request"] * requests
    if prefill_graphs:
        sizes = {int(size): count for size, count in rule["prefill_graphs"].items()}
        nearest = min(sizes, key=lambda size: abs(size - chunk))
        reserved += rule["mla_prefill_graphs"] if mla else rule["per_prefill_graph"] * sizes[nearest]
    if dp_attention:
        share = requests * dp_attention * rule["dp_attention_per_request"]
        reserved += share * (rule["dp_attention_many_factor"] if requests > rule["dp_attention_many"] else 1)
    if memory_mib > rule["floor_above_gib"] * 1024:
        reserved = max(reserved, rule["floor"])
    if deepep:
        reserved += rule["deepep"]
    return MemFraction(round((memory_mib - reserved) / memory_mib, 3), float(reserved), chunk, requests)


def static_budget(
    free_before: int, free_after: int, fraction: float, *, multimodal: bool = False, feature_ipc: bool = False
) -> int:
    """Bytes for the pools of one rank: free after the weights less the slack, a share of what was free before.

    `free_before` and `free_after` are bytes free before and after the weights are loaded. A multimodal model sets
    102.4 MiB aside for its embedding cache, 1 GiB more where features travel by CUDA IPC. Raises InputError, naming
    the smallest fraction that works, when nothing is left.
    """
    if not 0 < fraction <= 1:
        raise InputError(f"--mem-fraction-static: found {fraction}, expected a number in (0, 1]")
    slack = int(free_before * (1 - Fraction(str(fraction))))
    reserve = (GIB // 10 if multimodal else 0) + (1024 * MIB if multimodal and feature_ipc else 0)
    budget = free_after - slack - reserve
    if budget <= 0:
        least = 1 - free_after / free_before
        raise InputError(
            f"--mem-fraction-static: found {fraction}, which leaves {gib(-budget)} less than nothing for the cache, "
            f"expected more than {least:.3f}"
        )
    return budget
