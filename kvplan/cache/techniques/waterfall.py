"""The waterfall: from the same shape as plain MHA in 16 bits down to what is stored, one technique at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.cache.techniques.compose import Composition, compose_plan, paged_bytes, shared_prefix_bytes
from kvplan.cache.techniques.eviction import Eviction
from kvplan.cache.techniques.flops import attention_flops
from kvplan.cache.techniques.runtime import Techniques
from kvplan.cache.techniques.shape import TECHNIQUE_OF_TRAIT, Trait, restored, shape_with
from kvplan.cache.techniques.what_if import what_ifs
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.units import tokens

Kind: TypeAlias = Literal["baseline", "checkpoint", "what-if", "flag"]

_TITLES: dict[Trait, str] = {
    "heads": "query heads share KV heads",
    "latent": "one latent for all heads",
    "sharing": "layers share caches",
    "recurrent": "recurrent layers keep a fixed state",
    "compression": "tokens are compressed and selected",
    "window": "windows and chunks",
    "indexer": "an indexer selects what is read",
}


@record
class Step:
    """One step of the waterfall. Bytes and FLOPs are those of the whole batch after the step.

    `technique` is None for the baseline. `kind` says who decides: the checkpoint, a what-if or a flag. `factor` is
    stored bytes after over before, `read_factor` the same for the bytes one decode step loads. `moved_bytes` have left
    the device and are stored still.
    """

    technique: str | None
    title: str
    kind: Kind
    stored_bytes: int
    read_bytes: int
    attention_flops: int
    factor: Fraction
    read_factor: Fraction
    moved_bytes: int = 0

    @property
    def saves_memory(self) -> bool:
        return self.factor < 1

    @property
    def saves_reads(self) -> bool:
        return self.read_factor < 1


def waterfall(composition: Composition) -> tuple[Step, ...]:
    """The steps of a composition in the written order, from the baseline; the last one stores its `stored_bytes`."""
    steps: list[Step] = []
    for technique, title, kind, stored, read, flops, moved in _figures(composition):
        factor, read_factor = Fraction(1), Fraction(1)
        if steps:
            factor = Fraction(stored, steps[-1].stored_bytes) if steps[-1].stored_bytes else factor
            read_factor = Fraction(read, steps[-1].read_bytes) if steps[-1].read_bytes else read_factor
        steps.append(Step(technique, title, kind, stored, read, flops, factor, read_factor, moved))
    return tuple(steps)


_Figures: TypeAlias = tuple[str | None, str, Kind, int, int, int, int]


def _figures(composition: Composition) -> Iterator[_Figures]:
    spec, n, batch = composition.spec, composition.n, composition.batch
    asked = composition.techniques
    plain = resolve_precision(model_dtype=spec.dtype)

    def checkpoint(shape: ModelSpec) -> CachePlan:
        return plan_cache(shape, plain, encoder_tokens=composition.encoder_tokens)

    def plan_figures(plan: CachePlan) -> tuple[int, int, int, int]:
        return (
            batch * int(plan.needed_bytes(n)),
            batch * int(plan.read_bytes(n)),
            batch * int(attention_flops(plan, n)),
            0,
        )

    yield None, "plain MHA in 16 bits", "baseline", *plan_figures(checkpoint(shape_with(spec, frozenset())))
    assumed = _what_if_traits(spec)
    for trait, shape in restored(spec):
        kind: Kind = "what-if" if trait in assumed else "checkpoint"
        yield TECHNIQUE_OF_TRAIT[trait], _TITLES[trait], kind, *plan_figures(checkpoint(shape))

    for technique, title, precision, partial in _flags(composition, plain, asked):
        plan = compose_plan(
            spec, precision, partial, n, generated=composition.generated, encoder_tokens=composition.encoder_tokens
        )
        stored = batch * paged_bytes(plan, partial, n) - shared_prefix_bytes(plan, partial, n)
        _, read, flops, _ = plan_figures(plan)
        moved = composition.residence.moved_bytes if partial.offload is not None else 0
        yield technique, title, "flag", stored, read, flops, moved


def _what_if_traits(spec: ModelSpec) -> frozenset[Trait]:
    """The traits that a what-if put into the spec."""
    traits: dict[str, tuple[Trait, ...]] = {
        "kv-heads": ("heads",), "cla": ("sharing",), "mlkv": ("sharing",), "owners": ("sharing",),
        "yoco": ("sharing", "window"), "window": ("window",), "mla": ("latent",), "attention-every": ("recurrent",),
        "csa": ("compression",), "dsa": ("indexer",),
    }  # fmt: skip
    names = (mark.removeprefix("what-if ").partition("=")[0] for mark in what_ifs(spec))
    return frozenset(trait for name in names for trait in traits.get(name, ()))


def _flags(
    composition: Composition, plain: Precision, asked: Techniques
) -> Iterator[tuple[str, str, Precision, Techniques]]:
    """Each flag's technique, title and settings so far, in the written order."""
    so_far, precision = Techniques(batch=asked.batch), plain
    if asked.evict is not None:
        so_far = replace(so_far, evict=asked.evict)
        yield "eviction", _eviction_title(asked.evict), precision, so_far
    if composition.precision != plain:
        precision = composition.precision
        skipped = f", skipping {', '.join(map(str, precision.skip))}" if precision.skip else ""
        yield "quantization", f"{precision.name} cache{skipped}", precision, so_far
    if asked.sparse_read is not None:
        quest = asked.sparse_read
        so_far = replace(so_far, sparse_read=quest)
        title = f"quest reads {tokens(quest.budget)} tokens in pages of {quest.page}"
        yield "quest", title, precision, so_far
    if asked.block is not None:
        so_far = replace(so_far, block_size=asked.block)
        yield "paging", f"whole blocks of {asked.block} tokens", precision, so_far
    if asked.share_prefix is not None:
        so_far = replace(so_far, share_prefix=asked.share_prefix)
        title = f"{asked.batch} sequences share {tokens(asked.share_prefix)} tokens"
        yield "prefix", title, precision, so_far
    if asked.offload is not None:
        so_far = replace(so_far, offload=asked.offload)
        yield "offload", f"moved to {asked.offload.tier}", precision, so_far


def _eviction_title(rule: Eviction) -> str:
    parts = f"{rule.first}+{rule.second}" if rule.second else f"{rule.first}"
    return f"{rule.method} keeps {parts}"
