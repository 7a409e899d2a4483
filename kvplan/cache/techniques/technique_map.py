"""The map: all twelve techniques in the plane of memory saved against reads saved, computed for one model."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques.catalog import TECHNIQUES
from kvplan.cache.techniques.compose import Composition, apply
from kvplan.cache.techniques.heads import HEADED
from kvplan.cache.techniques.runtime import Techniques, parse_techniques
from kvplan.cache.techniques.shape import TECHNIQUE_OF_TRAIT, TRAITS, removable_traits, shape_with
from kvplan.cache.techniques.what_if import what_if
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import GIB, tokens

SHARING_SEQUENCES = 8


@record
class Placement:
    """One technique on the map. `memory_saved` and `reads_saved` are shares, negative where it costs; None with a
    `reason` where the technique has no meaning for the model. `kind` says whether the checkpoint has it (measured
    against the same checkpoint without it), a what-if gives it, or a flag.
    """

    number: int
    technique: str
    setting: str
    kind: Literal["checkpoint", "what-if", "flag"]
    memory_saved: Fraction | None
    reads_saved: Fraction | None
    reason: str | None = None
    note: str | None = None


def technique_map(spec: ModelSpec, n: int) -> tuple[Placement, ...]:
    """All twelve for `spec` at `n` tokens in 16 bits, each on its own against the same model without it."""
    plain = resolve_precision(model_dtype=spec.dtype)
    present = {TECHNIQUE_OF_TRAIT[trait] for trait in removable_traits(spec)}
    placed = []
    for technique in TECHNIQUES:
        if technique.name in present:
            placed.append(_present(spec, plain, technique.number, technique.name, n))
        elif technique.needs_training:
            placed.append(_assumed(spec, plain, technique.number, technique.name, n))
        else:
            placed.append(_flag(spec, plain, technique.number, technique.name, n))
    return tuple(placed)


def _saved(after: int, before: int) -> Fraction:
    return 1 - Fraction(after, before) if before else Fraction(0)


def _present(spec: ModelSpec, plain: Precision, number: int, name: str, n: int) -> Placement:
    removed = frozenset(trait for trait in TRAITS if TECHNIQUE_OF_TRAIT[trait] != name)
    after, before = plan_cache(spec, plain), plan_cache(shape_with(spec, removed), plain)
    return Placement(
        number, name, "as trained", "checkpoint",
        _saved(after.needed_bytes(n), before.needed_bytes(n)), _saved(after.read_bytes(n), before.read_bytes(n)),
    )  # fmt: skip


def _assumed(spec: ModelSpec, plain: Precision, number: int, name: str, n: int) -> Placement:
    settings = {
        "gqa": f"kv-heads={_fewer_heads(spec)}",
        "cla": "cla=2",
        "window": "window=1024:5/6",
        "mla": "mla=512+64",
        "hybrid": "attention-every=4",
        "csa": "csa=4+128",
    }
    setting = settings[name]
    try:
        after, before = plan_cache(what_if(spec, setting), plain), plan_cache(spec, plain)
    except InputError as error:
        return Placement(number, name, setting, "what-if", None, None, str(error))
    return Placement(
        number, name, setting, "what-if",
        _saved(after.needed_bytes(n), before.needed_bytes(n)), _saved(after.read_bytes(n), before.read_bytes(n)),
    )  # fmt: skip


def _fewer_heads(spec: ModelSpec) -> int:
    counts = [
        mixer.query_heads for name in spec.counts for mixer in branches(spec.blocks[name]) if isinstance(mixer, HEADED)
    ]
    fewest = min(counts, default=8)
    return fewest // 8 if fewest % 8 == 0 else 1


def _flag(spec: ModelSpec, plain: Precision, number: int, name: str, n: int) -> Placement:
    setting, options, measure = _flag_settings(spec, n)[name]
    try:
        before = apply(spec, plain, Techniques(batch=options.batch), n)
        after = apply(spec, None, options, n)
    except InputError as error:
        return Placement(number, name, setting, "flag", None, None, str(error))
    memory, note = measure(before, after)
    return Placement(number, name, setting, "flag", memory, _saved(after.read_bytes, before.read_bytes), None, note)


_Measure = Callable[[Composition, Composition], tuple[Fraction, str | None]]


def _flag_settings(spec: ModelSpec, n: int) -> dict[str, tuple[str, Techniques, _Measure]]:
    budget, limit = min(2048, max(64, n // 2)), max(n, spec.max_context or n)
    prefix = max(1, n // 2)

    def stored(before: Composition, after: Composition) -> tuple[Fraction, str | None]:
        return _saved(after.stored_bytes, before.stored_bytes), None

    def reserved(before: Composition, after: Composition) -> tuple[Fraction, str | None]:
        contiguous = int(before.plan.needed_bytes(limit))
        return _saved(after.stored_bytes, contiguous), f"against {tokens(limit)} contiguous tokens reserved a sequence"

    def moved(before: Composition, after: Composition) -> tuple[Fraction, str | None]:
        share = Fraction(after.residence.moved_bytes, after.stored_bytes) if after.stored_bytes else Fraction(0)
        note = f"{float(share):.0%} of the bytes live on {after.residence.tier}; none are gone"
        return _saved(after.stored_bytes, before.stored_bytes), note

    block = _block(spec)
    return {
        "quest": (
            "quest:page=16,budget=2048",
            parse_techniques(sparse_read="quest:page=16,budget=2048"),
            stored,
        ),
        "quantization": ("fp8", parse_techniques(kv_cache_dtype="fp8"), stored),
        "eviction": (f"snapkv:{budget}", parse_techniques(evict=f"snapkv:{budget}"), stored),
        "paging": (f"blocks of {block}", Techniques(block_size=block), reserved),
        "prefix": (
            f"{SHARING_SEQUENCES} sequences share {tokens(prefix)} tokens",
            Techniques(block_size=block, share_prefix=prefix, batch=SHARING_SEQUENCES),
            stored,
        ),
        "offload": ("cpu:64GiB", parse_techniques(offload=f"cpu:{64 * GIB}"), moved),
    }


def _block(spec: ModelSpec) -> int:
    """Blocks of 16 tokens, or of as many as the longest compressed entry stands for."""
    ratios = (getattr(mixer, "ratio", None) or 1 for name in spec.counts for mixer in branches(spec.blocks[name]))
    return max(16, *ratios)
