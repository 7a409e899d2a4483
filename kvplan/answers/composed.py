"""A model under techniques: the cache of a batch after all of them, as part of an answer and per tensor-parallel rank.

Nothing of the techniques is imported before one is asked for: a plain estimate takes only the records from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kvplan.errors import InputError, show
from kvplan.record import record

if TYPE_CHECKING:
    from kvplan.cache.precision import Precision
    from kvplan.cache.size import CachePlan
    from kvplan.cache.techniques.compose import Composition
    from kvplan.cache.techniques.runtime import Techniques
    from kvplan.spec.model import ModelSpec

#: a list of single options as in YAML, `{"evict": "snapkv:2048"}`, or the options already read
Asked: TypeAlias = "Techniques | Sequence[Mapping[str, Any]]"


@record
class Composed:
    """The cache of the whole batch after every technique, in bytes and FLOPs.

    `applied` names the techniques that no checkpoint brought, in the order they were applied. One sequence needs
    `needed_bytes_per_sequence`, and `sequence_bytes` in whole blocks; `shared_bytes` is what a shared prefix saves,
    `stored_bytes` what the batch holds: `device_bytes` on the device and `moved_bytes` on `tier`, which come back in
    `resume_seconds`. `prefill_bytes` is what one prompt holds before eviction. `generated_tokens` of the context were
    generated.
    """

    applied: tuple[str, ...]
    generated_tokens: int
    needed_bytes_per_sequence: int
    sequence_bytes: int
    shared_bytes: int
    stored_bytes: int
    read_bytes_per_step: int
    attention_flops_per_step: int
    prefill_bytes: int
    device_bytes: int
    moved_bytes: int
    tier: str | None
    resume_seconds: float


def composed(composition: Composition) -> Composed:
    """The part of an answer that a composition is."""
    from kvplan.cache.techniques.waterfall import waterfall

    place = composition.residence
    return Composed(
        applied=tuple(step.title for step in waterfall(composition) if step.kind in ("what-if", "flag")),
        generated_tokens=composition.generated,
        needed_bytes_per_sequence=composition.needed_bytes,
        sequence_bytes=composition.sequence_bytes,
        shared_bytes=composition.shared_bytes,
        stored_bytes=composition.stored_bytes,
        read_bytes_per_step=composition.read_bytes,
        attention_flops_per_step=composition.attention_flops,
        prefill_bytes=composition.prefill_bytes,
        device_bytes=place.device_bytes,
        moved_bytes=place.moved_bytes,
        tier=place.tier,
        resume_seconds=place.resume_seconds,
    )


def assume(spec: ModelSpec, what_ifs: Iterable[str]) -> ModelSpec:
    """`spec` under all what-ifs, in one order whatever theirs. Raises InputError for one it can't take."""
    asked = tuple(what_ifs)
    if not asked:
        return spec
    from kvplan.cache.techniques.what_if import assume as assume_all

    return assume_all(spec, asked)


def split_what_ifs(asked: Asked, what_ifs: Iterable[str]) -> tuple[Asked, tuple[str, ...]]:
    """The runtime techniques of a list without its `what-if` items, and those after `what_ifs`."""
    if not isinstance(asked, (list, tuple)):
        return asked, tuple(what_ifs)
    found, rest = list(what_ifs), []
    for item in asked:
        if isinstance(item, Mapping) and len(item) == 1 and _option(next(iter(item))) == "what-if":
            (value,) = item.values()
            if not isinstance(value, str):
                raise InputError(f"--techniques: found what-if {show(value)}, expected text such as 'cla=2'")
            found.append(value)
        else:
            rest.append(item)
    return tuple(rest), tuple(found)


def _option(key: object) -> str:
    return str(key).lstrip("-").replace("_", "-").lower()


def settle(asked: Asked, kv_cache_dtype: str, skip_layers: Iterable[str | int], batch: int) -> Techniques:
    """The techniques asked for, with dtype, skipped layers and batch from the list or from their own options.

    Raises InputError where both name one of them and differ.
    """
    from kvplan.cache.techniques.runtime import MAX_BATCH, Techniques, techniques_from_list

    if isinstance(batch, bool) or not 1 <= batch <= MAX_BATCH:
        raise InputError(f"--batch: found {batch}, expected a whole number from 1 to {MAX_BATCH:,}")
    found = asked if isinstance(asked, Techniques) else techniques_from_list(list(asked), "--techniques")
    options: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "skip_layers": tuple(skip_layers), "batch": batch}
    names = {"skip_layers": "--kv-cache-dtype-skip-layers"}
    plain = Techniques()
    for field, option in options.items():
        listed, default = getattr(found, field), getattr(plain, field)
        if option == default:
            options[field] = listed
        elif listed not in (default, option):
            name = names.get(field, "--" + field.replace("_", "-"))
            raise InputError(f"{name}: found {option}, and {listed} in the list of techniques, expected one of them")
    return replace(found, **options)


@record
class RankCache:
    """The composed cache as one tensor-parallel rank of `ranks` holds it."""

    composition: Composition
    ranks: int

    def sequence_bytes(self, n: int) -> int:
        """Bytes of one sequence of `n` tokens in whole blocks. Budgets that are shares of the prompt follow `n`."""
        from kvplan.cache.techniques.compose import paged_bytes

        return paged_bytes(self._plan(n), self.composition.techniques, n)

    def batch_bytes(self, batch: int) -> int:
        """Bytes on the device for `batch` sequences: a shared prefix counts once, offloaded bytes don't."""
        from kvplan.cache.techniques.compose import paged_bytes, shared_prefix_bytes

        asked, n = replace(self.composition.techniques, batch=batch), self.composition.n
        plan = self._plan(n)
        total = batch * paged_bytes(plan, asked, n) - shared_prefix_bytes(plan, asked, n)
        return total if asked.offload is None else max(0, total - asked.offload.capacity_bytes // self.ranks)

    def most_sequences(self, budget: int, high: int) -> int:
        """The most sequences of this context whose cache `budget` bytes hold, at most `high`."""
        return _most(lambda batch: self.batch_bytes(batch) <= budget, high)

    def longest_context(self, budget: int, limit: int) -> int:
        """The most tokens of one sequence that `budget` bytes hold, at most `limit`."""
        shared, generated = self.composition.techniques.share_prefix or 1, self.composition.generated
        if self.sequence_bytes(max(shared, generated + 1)) > budget:
            return 0
        return _most(lambda n: n <= max(shared, generated + 1) or self.sequence_bytes(n) <= budget, limit)

    def _plan(self, n: int) -> CachePlan:
        from kvplan.cache.techniques.compose import compose_plan

        whole = self.composition
        return compose_plan(
            whole.spec, whole.precision, whole.techniques, n,
            generated=whole.generated, encoder_tokens=whole.encoder_tokens, ranks=self.ranks,
        )  # fmt: skip


def _most(fits: Any, high: int) -> int:
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def compose(
    spec: ModelSpec, precision: Precision, asked: Techniques, n: int, generated: int, encoder_tokens: int | None
) -> Composition:
    """`kvplan.cache.techniques.apply`, imported when the first technique is asked for."""
    from kvplan.cache.techniques.compose import apply

    return apply(spec, precision, asked, n, generated=generated, encoder_tokens=encoder_tokens)


@record
class CacheOptions:
    """Everything but the context that decides a cache, as options of one name. `techniques` is as in a YAML list."""

    kv_cache_dtype: str = "auto"
    value_cache_dtype: str | None = None
    index_dtype: str = "auto"
    state_dtype: str = "auto"
    skip_layers: tuple[str | int, ...] = ()
    batch: int = 1
    encoder_tokens: int | None = None
    techniques: tuple[Mapping[str, Any], ...] = ()
    what_ifs: tuple[str, ...] = ()
    generated: int = 0

    def on(self, spec: ModelSpec) -> ComposedModel:
        """These options over `spec`, ready for any context. Raises InputError for an option that is wrong."""
        from kvplan.cache.precision import resolve_precision

        techniques, what_ifs = split_what_ifs(self.techniques, self.what_ifs)
        spec = assume(spec, what_ifs)
        asked = settle(techniques, self.kv_cache_dtype, self.skip_layers, self.batch)
        precision = resolve_precision(
            asked.kv_cache_dtype, self.index_dtype, self.state_dtype,
            model_dtype=spec.dtype, value_dtype=self.value_cache_dtype, skip=asked.skip_layers,
        )  # fmt: skip
        return ComposedModel(spec, precision, asked, self.generated, self.encoder_tokens)


@record
class ComposedModel:
    """A model under options. `at` composes it for one context."""

    spec: ModelSpec
    precision: Precision
    techniques: Techniques
    generated: int
    encoder_tokens: int | None

    def at(self, n: int) -> Composition:
        """The composition at `n` stored tokens. Raises InputError for a combination without meaning."""
        return compose(self.spec, self.precision, self.techniques, n, self.generated, self.encoder_tokens)
