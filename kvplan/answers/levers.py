"""The levers one checkpoint and one engine really have, and why the others are none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvplan.answers.composed import CacheOptions
from kvplan.cache.formats import find_format
from kvplan.cache.techniques.catalog import find_technique
from kvplan.cache.techniques.offload import Offload
from kvplan.cache.techniques.shape import TECHNIQUE_OF_TRAIT, removable_traits
from kvplan.cache.techniques.technique_map import technique_map
from kvplan.engines.support import Support, engines_with, kv_dtypes, supports
from kvplan.hardware.accelerators import Accelerator
from kvplan.record import record
from kvplan.spec.model import ModelSpec, branches

Risk: TypeAlias = Literal["exact", "low", "medium", "high"]
QUEST_BUDGET = 2048
EVICTION_BUDGET = 2048
MOST_TIMES = 16
_TIMES = {2: "twice"}
# Engines that spread a model over GPUs without tensor-parallel ranks.
_BY_LAYER = ("llama.cpp", "ik_llama.cpp", "ollama", "transformers")


@record
class Candidate:
    """One thing to change: new options, more GPUs, a tier for idle sessions, or ranks that split each sequence."""

    technique: str
    setting: str
    risk: Risk
    support: Support
    options: CacheOptions
    gpus: int
    tier: Offload | None = None
    decode_context: int = 1


@record
class Ruled:
    """A technique that is no lever here, and why; with the engines that have it where that is the reason."""

    technique: str
    reason: str


@cache
def lever_words() -> dict[str, dict[str, Any]]:
    """Tests, guardrails and rollback by technique (`levers.yaml`)."""
    import yaml

    text = Path(__file__).with_name("levers.yaml").read_text(encoding="utf-8")
    words: dict[str, dict[str, Any]] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return words


def candidates(
    spec: ModelSpec, engine: str, device: Accelerator, base: CacheOptions, gpus: int, shared: int | None, tier: Offload
) -> tuple[list[Candidate], list[Ruled]]:
    """What this engine could change for this checkpoint, and what is ruled out before any arithmetic."""
    found: list[Candidate] = []
    ruled: list[Ruled] = []
    for dtype in _dtypes(spec, engine, device, base, ruled):
        found += _quantized(spec, engine, base, gpus, dtype)
    for technique, options, setting, risk in _flags(spec, base, shared):
        support = supports(engine, technique)
        # An engine that has selection in part has it for models trained with it, and this is not theirs.
        if support.level == "Y" or (support and technique != "quest"):
            found.append(Candidate(technique, setting, risk, support, options, gpus))
        else:
            ruled.append(Ruled(technique, _missing(engine, technique, support)))
    if shared is None:
        ruled.append(Ruled("prefix", "depends on what your requests share: give --share-prefix to count it"))
    offload = supports(engine, "offload")
    if offload:
        setting = f"idle sessions on {tier.tier}"
        found.append(Candidate("offload", setting, "exact", offload, base, gpus, tier))
    else:
        ruled.append(Ruled("offload", _missing(engine, "offload", offload)))
    found += _decode_context(engine, base, gpus)
    return found, ruled


def more_gpus(engine: str, base: CacheOptions, gpus: int) -> Iterator[Candidate]:
    """Twice the devices, four times and so on, up to `MOST_TIMES`."""
    times = 2
    how = "the layers split over them" if engine in _BY_LAYER else "as tensor-parallel ranks"
    while times <= MOST_TIMES:
        support = Support("Y", f"{_TIMES.get(times, f'{times} times')} the devices to pay for")
        setting = f"{times * gpus} GPUs instead of {gpus}, {how}"
        yield Candidate("parallel", setting, "exact", support, base, times * gpus)
        times *= 2


def _decode_context(engine: str, base: CacheOptions, gpus: int) -> Iterator[Candidate]:
    """Tensor-parallel ranks that hold parts of each sequence instead of copies, where the engine shards so."""
    if engine != "vllm":
        return
    support = Support("Y", "for latents and KV heads that ranks would copy", "vLLM --decode-context-parallel-size")
    for ranks in range(gpus, 1, -1):
        if gpus % ranks == 0:
            setting = f"each sequence's tokens split over {ranks} of the ranks (--decode-context-parallel-size {ranks})"
            yield Candidate("decode-context", setting, "exact", support, base, gpus, decode_context=ranks)


def in_checkpoint(spec: ModelSpec, engine: str, n: int) -> Iterator[tuple[str, float, float, Support]]:
    """Techniques the checkpoint was trained with: shares of memory and reads saved, and the engine's support."""
    for placed in technique_map(spec, n):
        if placed.kind == "checkpoint" and placed.memory_saved is not None and placed.reads_saved is not None:
            name = "dsa" if placed.technique == "quest" else placed.technique
            yield name, float(placed.memory_saved), float(placed.reads_saved), supports(engine, name)


def needs_training(spec: ModelSpec) -> Iterator[Ruled]:
    """Architectural techniques that this checkpoint lacks."""
    present = {TECHNIQUE_OF_TRAIT[trait] for trait in removable_traits(spec)}
    for name in ("gqa", "cla", "window", "mla", "hybrid", "csa"):
        if name not in present:
            example = find_technique(name).what_if
            yield Ruled(name, f"needs training, this checkpoint has none (kvplan explain --what-if {example} shows it)")


def _missing(engine: str, technique: str, support: Support) -> str:
    have = ", ".join(engines_with(technique)) or "none that kvplan knows"
    return f"{engine} has none{f' ({support.note})' if support.note else ''}; engines that have it: {have}"


def _dtypes(spec: ModelSpec, engine: str, device: Accelerator, base: CacheOptions, ruled: list[Ruled]) -> Iterator[str]:
    """Cache dtypes of the engine with fewer bits than 16, as far as the device has the arithmetic."""
    latent = any(mixer.kind == "latent_attention" for name in spec.counts for mixer in branches(spec.blocks[name]))
    for name in kv_dtypes(engine):
        fmt = find_format(name)
        if fmt.name == base.kv_cache_dtype or (fmt.tokens is None and fmt.effective_bits() >= 16):
            continue
        if fmt.name.endswith("_ds_mla") and not latent:
            continue
        if fmt.name.startswith("nvfp4") and device.fp4_flops is None:
            ruled.append(Ruled("quantization", f"{fmt.name}: {device.name} has no fp4 arithmetic"))
            continue
        yield fmt.name


def _quantized(spec: ModelSpec, engine: str, base: CacheOptions, gpus: int, dtype: str) -> Iterator[Candidate]:
    support = supports(engine, "quantization")
    fmt = find_format(dtype)
    risk: Risk = "low" if fmt.effective_bits() >= 8 else "medium" if fmt.effective_bits() >= 4 else "high"
    options = replace(base, kv_cache_dtype=dtype)
    yield Candidate("quantization", f"KV cache dtype {dtype}", risk, support, options, gpus)
    windows = any(mixer.kind == "sliding_window" for name in spec.counts for mixer in branches(spec.blocks[name]))
    if windows and engine == "vllm" and risk == "low":
        skipped = replace(options, skip_layers=("sliding_window",))
        setting = f"KV cache dtype {dtype}, windows in 16 bits"
        yield Candidate("quantization", setting, risk, support, skipped, gpus)


def _flags(spec: ModelSpec, base: CacheOptions, shared: int | None) -> Iterator[tuple[str, CacheOptions, str, Risk]]:
    def with_technique(**option: Any) -> CacheOptions:
        items = tuple({name.replace("_", "-"): value} for name, value in option.items())
        return replace(base, techniques=(*base.techniques, *items))

    quest = f"quest:page=16,budget={QUEST_BUDGET}"
    yield "quest", with_technique(sparse_read=quest), quest, "medium"
    evict = f"snapkv:{EVICTION_BUDGET}"
    yield "eviction", with_technique(evict=evict), f"a budget of {EVICTION_BUDGET:,} prompt tokens ({evict})", "high"
    if shared is not None:
        yield "prefix", with_technique(share_prefix=shared), f"{shared:,} tokens shared by the batch", "exact"
