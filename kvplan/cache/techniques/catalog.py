"""The twelve, in their order, found by name or number."""

from __future__ import annotations

from kvplan.cache.techniques import (
    compressed,
    eviction,
    heads,
    latent,
    offload,
    paging,
    prefix,
    quantization,
    recurrent,
    sharing,
    sparse_reads,
    windows,
)
from kvplan.cache.techniques.base import Technique
from kvplan.errors import InputError, did_you_mean_name, show

_MODULES = (
    heads, sharing, windows, latent, recurrent, compressed,
    sparse_reads, quantization, eviction, paging, prefix, offload,
)  # fmt: skip
TECHNIQUES: tuple[Technique, ...] = tuple(module.TECHNIQUE for module in _MODULES)

_ALIASES = {
    "mqa": "gqa", "heads": "gqa", "sharing": "cla", "yoco": "cla", "mlkv": "cla", "streamingllm": "eviction",
    "windows": "window", "latent": "mla", "recurrent": "hybrid", "mamba": "hybrid", "nsa": "csa", "moba": "csa",
    "dsa": "quest", "sparse-reads": "quest", "quant": "quantization", "kivi": "quantization", "fp8": "quantization",
    "h2o": "eviction", "snapkv": "eviction", "pyramidkv": "eviction", "adakv": "eviction", "tova": "eviction",
    "evict": "eviction", "prefix-caching": "prefix", "offloading": "offload",
}  # fmt: skip


def find_technique(name: str) -> Technique:
    """The technique of a name, alias or number, case-insensitive. Raises InputError with the nearest name."""
    wanted = name.strip().lower().replace("_", "-")
    wanted = _ALIASES.get(wanted, wanted)
    for technique in TECHNIQUES:
        if wanted in (technique.name, str(technique.number)):
            return technique
    names = [technique.name for technique in TECHNIQUES]
    hint = did_you_mean_name(wanted, {each: each for each in names} | _ALIASES)
    raise InputError(f"technique: found {show(name)}, expected one of {', '.join(names)}{hint}")
