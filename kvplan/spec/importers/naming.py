"""Readable block names for distinct layers, and compact runs for their order."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    CrossAttention,
    FullAttention,
    GatedDelta,
    Kda,
    LatentAttention,
    Layer,
    Lightning,
    Mamba1,
    Mamba2,
    Mlstm,
    NoCache,
    Parallel,
    RgLru,
    Rwkv,
    SharedCache,
    ShortConv,
    SlidingWindow,
)
from kvplan.spec.model import Repeat, Run, branches

_PLAIN: dict[type, str] = {
    ChunkedAttention: "chunked",
    SlidingWindow: "local",
    Mamba1: "mamba",
    Mamba2: "mamba",
    GatedDelta: "linear",
    Kda: "kda",
    Lightning: "lightning",
    RgLru: "recurrent",
    ShortConv: "conv",
    Rwkv: "rwkv",
    Mlstm: "mlstm",
    CrossAttention: "cross",
}
MAX_PERIOD = 24


def _base(layer: Layer, mixed: bool) -> str:
    if isinstance(layer, FullAttention):
        return "global" if mixed else "attention"
    if isinstance(layer, LatentAttention):
        return "mla_local" if layer.window else "mla"
    if isinstance(layer, CompressedSparse):
        if layer.ratio is None:
            return "local"
        return f"csa{layer.ratio}" if layer.owns_compressed else f"csa{layer.ratio}_shared"
    if isinstance(layer, NoCache):
        return {"linear": "replaced"}.get(layer.role, layer.role)
    if isinstance(layer, SharedCache):
        return f"shared_{layer.owner}"
    if isinstance(layer, Parallel):
        first = layer.branches[0]
        if any(isinstance(branch, CrossAttention) for branch in layer.branches):
            return "decoder_local" if isinstance(first, SlidingWindow) else "decoder"
        prefix = {SlidingWindow: "local_", SharedCache: "shared_"}.get(type(first), "global_" if mixed else "")
        return f"{prefix}hybrid"
    return _PLAIN[type(layer)]


def _kv_heads(layer: Layer) -> int | None:
    return getattr(branches(layer)[0], "kv_heads", None)


def name_blocks(distinct: Sequence[Layer], taken: Sequence[str] = ()) -> dict[Layer, str]:
    """A name for each of `distinct` layers: its kind, then its KV heads or a number where a kind has several."""
    capped = (SlidingWindow, ChunkedAttention)
    mixed = any(isinstance(branch, capped) for layer in distinct for branch in branches(layer))
    bases = {layer: _base(layer, mixed) for layer in distinct}
    names: dict[Layer, str] = {}
    used = set(taken)
    for layer, base in bases.items():
        alike = [other for other, its_base in bases.items() if its_base == base]
        name = base
        if len(alike) > 1 and isinstance(layer, FullAttention | SlidingWindow | LatentAttention):
            if len({_kv_heads(other) for other in alike}) > 1:
                name = (
                    f"heads{_kv_heads(layer)}" if base in ("attention", "global") else f"{base}_heads{_kv_heads(layer)}"
                )
            elif isinstance(layer, LatentAttention | FullAttention) and layer.indexer is not None:
                name = f"{base}_indexed" if layer.indexer.owns_keys else f"{base}_reusing"
        unique, number = name, 2
        while unique in used:
            unique, number = f"{name}_{number}", number + 1
        used.add(unique)
        names[layer] = unique
    return names


def compact(sequence: Sequence[str]) -> tuple[Run, ...]:
    """The same order in few runs: equal neighbours as `5 x local`, repeated periods as a Repeat."""
    runs: list[str] = []
    start = 0
    for index in range(1, len(sequence) + 1):
        if index == len(sequence) or sequence[index] != sequence[start]:
            count = index - start
            runs.append(sequence[start] if count == 1 else f"{count} x {sequence[start]}")
            start = index
    result: list[Run] = []
    at = 0
    while at < len(runs):
        period, times = _best_period(runs, at)
        if times > 1:
            result.append(Repeat(times, tuple(runs[at : at + period])))
        else:
            result.append(runs[at])
        at += period * times
    return tuple(result)


def _best_period(runs: list[str], at: int) -> tuple[int, int]:
    """The period from `at` on that covers the most runs, and how often it repeats; (1, 1) where none repeats."""
    best, saved = (1, 1), 0
    for period in range(1, min(MAX_PERIOD, (len(runs) - at) // 2) + 1):
        times = 1
        while runs[at + times * period : at + (times + 1) * period] == runs[at : at + period]:
            times += 1
        if times > 1 and (times - 1) * period > saved:
            best, saved = (period, times), (times - 1) * period
    return best
