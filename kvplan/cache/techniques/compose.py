"""Composition by the written order: architecture, compression, window, eviction, precision, reads, paging, sharing,
residence. Each step works on the result of the one before.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.cache.entries import EntryLaw
from kvplan.cache.precision import Precision
from kvplan.cache.shard import shard_layer
from kvplan.cache.size import CachePlan, Group, plan_cache
from kvplan.cache.techniques.eviction import Eviction
from kvplan.cache.techniques.flops import attention_flops, source_layer
from kvplan.cache.techniques.heads import HEADED
from kvplan.cache.techniques.offload import Residence, place
from kvplan.cache.techniques.paging import paged_entries
from kvplan.cache.techniques.prefix import shared_entries
from kvplan.cache.techniques.recurrent import has_recurrent
from kvplan.cache.techniques.rewrite import SELF_ATTENTION, edit_attention, has_kind, owned_attention, relayer
from kvplan.cache.techniques.rules import check, warnings
from kvplan.cache.techniques.runtime import Techniques
from kvplan.cache.techniques.sparse_reads import Quest
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec


@record
class Composition:
    """The cache of `batch` sequences of `n` stored tokens, `generated` of them generated, under `techniques`.

    `plan` has the composed entry laws (a per-layer budget or dense first layers split blocks, named `block.l12` or
    `block.dense`). Bytes: `needed_bytes` of one sequence before pages, `sequence_bytes` of one sequence in whole
    blocks, `stored_bytes` of the batch with the prefix counted once, `shared_bytes` what sharing saves. `read_bytes`
    and `attention_flops` are those of one decode step of the batch. `prefill_bytes` is what one sequence's prompt holds
    before eviction, the peak where no layer is compressed as it finishes.
    """

    spec: ModelSpec
    precision: Precision
    techniques: Techniques
    n: int
    generated: int
    encoder_tokens: int | None
    plan: CachePlan
    needed_bytes: int
    sequence_bytes: int
    shared_bytes: int
    stored_bytes: int
    read_bytes: int
    attention_flops: int
    prefill_bytes: int
    residence: Residence
    warnings: tuple[str, ...]

    @property
    def batch(self) -> int:
        return self.techniques.batch

    @property
    def paging_bytes(self) -> int:
        """What whole blocks cost one sequence beyond its tokens."""
        return self.sequence_bytes - self.needed_bytes


def apply(
    spec: ModelSpec,
    precision: Precision | None,
    techniques: Techniques,
    n: int,
    *,
    generated: int = 0,
    encoder_tokens: int | None = None,
) -> Composition:
    """Compose `techniques` over `spec` at `n` stored tokens of each of `techniques.batch` sequences.

    `precision` None takes the techniques' own dtypes. Raises InputError for a combination without meaning, with the
    reason and what would work.
    """
    chosen = techniques.precision(spec) if precision is None else precision
    check(spec, chosen, techniques, n, generated)
    plan = compose_plan(spec, chosen, techniques, n, generated=generated, encoder_tokens=encoder_tokens)
    needed = int(plan.needed_bytes(n))
    sequence, shared = paged_bytes(plan, techniques, n), shared_prefix_bytes(plan, techniques, n)
    stored = techniques.batch * sequence - shared
    prompt = n - generated
    whole = plan if techniques.evict is None else plan_cache(spec, chosen, encoder_tokens=encoder_tokens)
    prefill = int(whole.needed_bytes(prompt))
    return Composition(
        spec=spec, precision=chosen, techniques=techniques, n=n, generated=generated,
        encoder_tokens=encoder_tokens, plan=plan,
        needed_bytes=needed, sequence_bytes=sequence, shared_bytes=shared, stored_bytes=stored,
        read_bytes=techniques.batch * int(plan.read_bytes(n)),
        attention_flops=techniques.batch * int(attention_flops(plan, n)),
        prefill_bytes=prefill,
        residence=place(stored, techniques.offload),
        warnings=warnings(spec, chosen, techniques, n),
    )  # fmt: skip


def paged_bytes(plan: CachePlan, techniques: Techniques, n: int) -> int:
    """Bytes of one sequence in whole blocks; its needed bytes where the cache is not paged."""
    block = techniques.block
    if block is None:
        return int(plan.needed_bytes(n))
    scattered = techniques.evict is not None and techniques.evict.scattered
    return sum(
        group.owners * int(group.part.bytes(paged_entries(group.part, n, block, scattered)))
        for group in plan.groups
        if group.owners
    )


def shared_prefix_bytes(plan: CachePlan, techniques: Techniques, n: int) -> int:
    """Bytes the batch saves by holding the shared prefix once, less the state snapshot a hybrid keeps for it."""
    if techniques.share_prefix is None or techniques.batch == 1:
        return 0
    block = techniques.block
    assert block is not None
    prefix = techniques.share_prefix
    once = sum(
        group.owners * int(group.part.bytes(shared_entries(group.part, n, prefix, block)))
        for group in plan.groups
        if group.owners
    )
    snapshot = plan.state_bytes if has_recurrent(plan.spec) and prefix >= block else 0
    return (techniques.batch - 1) * once - snapshot


def compose_plan(
    spec: ModelSpec,
    precision: Precision,
    techniques: Techniques,
    n: int,
    *,
    generated: int = 0,
    encoder_tokens: int | None = None,
    ranks: int = 1,
) -> CachePlan:
    """The plan of one sequence at `n` tokens with eviction and sparse reads in its entry laws.

    Budgets are those at `n`: another context needs another plan. With `ranks` the plan is that of one tensor-parallel
    rank. Does not check the combination.
    """
    rule, quest = techniques.evict, techniques.sparse_read
    if rule is None and quest is None:
        return plan_cache(spec, precision, encoder_tokens=encoder_tokens, ranks=ranks)
    if rule is not None and rule.per_query_head:
        spec = _query_head_copies(spec)
    spec, precision, budgets = _split(spec, precision, rule, quest, n, generated)
    plan = plan_cache(spec, precision, encoder_tokens=encoder_tokens, ranks=ranks)
    groups: list[Group] = []
    for group in plan.groups:
        layer = source_layer(spec, group) if group.part.role == "growing" else None
        if layer is not None and rule is not None and isinstance(layer, SELF_ATTENTION):
            group = _evicted(group, budgets[group.block])
        if layer is not None and quest is not None and isinstance(layer, kinds.FullAttention):
            rank_layer = shard_layer(layer, ranks)
            assert isinstance(rank_layer, kinds.FullAttention)
            groups.extend(_quest(group, rank_layer, quest))
        else:
            groups.append(group)
    return replace(plan, groups=tuple(groups))


def _query_head_copies(spec: ModelSpec) -> ModelSpec:
    """K and V repeated to every query head before they are cached, as the reference eviction code does."""

    def edit(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        return replace(layer, kv_heads=layer.query_heads) if isinstance(layer, HEADED) else layer

    return edit_attention(spec, edit, HEADED, "--evict per-query-head", "a model with KV heads")


def _split(
    spec: ModelSpec, precision: Precision, rule: Eviction | None, quest: Quest | None, n: int, generated: int
) -> tuple[ModelSpec, Precision, dict[str, int]]:
    """Give layers whose budget or reads differ a block of their own; return each block's resident tokens."""
    names = spec.sequence()
    places = owned_attention(spec)
    renamed = list(names)
    blocks: dict[str, kinds.Layer] = {}
    budgets: dict[str, int] = {}
    kept = rule.budgets(n, generated, len(places)) if rule is not None else ()
    if rule is not None and not rule.by_layer:
        budgets = dict.fromkeys(spec.blocks, kept[0])
    for order, (number, name) in enumerate(places):
        label = f".l{number}" if rule is not None and rule.by_layer else ""
        if quest is not None and number < quest.dense and has_kind(spec.blocks[name], (kinds.FullAttention,)):
            label += DENSE
        if label:
            renamed[number] = name + label
            blocks[name + label] = spec.blocks[name]
        if rule is not None:
            budgets[renamed[number]] = kept[order]
    if not blocks:
        return spec, precision, budgets
    return relayer(spec, renamed, blocks), _skip_by_number(precision, names, spec), budgets


DENSE = ".dense"


def _skip_by_number(precision: Precision, names: list[str], spec: ModelSpec) -> Precision:
    """Skip entries that name a block as the numbers of its layers, which splitting leaves alone."""
    skip: list[str | int] = []
    for entry in precision.skip:
        if isinstance(entry, str) and entry in spec.blocks:
            skip += [number for number, name in enumerate(names) if name == entry]
        else:
            skip.append(entry)
    return replace(precision, skip=tuple(skip))


def _evicted(group: Group, budget: int) -> Group:
    def cap(law: EntryLaw) -> EntryLaw:
        return replace(law, limit=budget if law.limit is None else min(law.limit, budget)) if law.grows else law

    part = group.part
    return replace(group, part=replace(part, stored=cap(part.stored), read=cap(part.read)))


def _quest(group: Group, layer: kinds.FullAttention, quest: Quest) -> tuple[Group, Group]:
    sparse = not group.block.endswith(DENSE)
    summary = quest.summary(group.part, layer.head_dim, layer.kv_heads, reads=sparse)
    share = layer.query_heads // layer.kv_heads
    part = quest.sparse(group.part, share) if sparse else group.part
    return replace(group, part=part), replace(group, part=summary)
