"""Laws of composition, over models and techniques drawn at random."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques import Composition, Techniques, apply, parse_techniques, technique_map, waterfall, what_if
from kvplan.cache.techniques.offload import Offload
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from tests import strategies as draw
from tests.techniques.shapes import dense, spec

contexts = st.integers(1, 300_000)
evictions = st.sampled_from(
    [None, "snapkv:2048", "h2o:0.1+0.1", "h2o:64+64", "pyramidkv:1024", "streamingllm:4+508", "tova:1000", "adakv:777"]
)
quests = st.sampled_from([None, "quest", "quest:page=8,budget=100,dense=0", "quest:budget=4096,per-query-head"])
blocks = st.sampled_from([None, 1, 16, 128, 256])
dtypes = st.sampled_from(["auto", "fp8", "int4", "nvfp4", "kivi2", "q4_0"])


@st.composite
def techniques(draw_one: st.DrawFn) -> Techniques:
    return parse_techniques(
        evict=draw_one(evictions),
        sparse_read=draw_one(quests),
        block_size=draw_one(blocks),
        kv_cache_dtype=draw_one(dtypes),
        batch=draw_one(st.integers(1, 64)),
    )


def fitting(model: ModelSpec, asked: Techniques, n: int) -> Techniques:
    """`asked` with the techniques left out that the model refuses."""
    for left_out in ((), ("sparse_read",), ("evict",), ("sparse_read", "evict"), ("block_size", "share_prefix")):
        for dtype in (asked.kv_cache_dtype, "auto"):
            tried = replace(asked, kv_cache_dtype=dtype, **dict.fromkeys(left_out))
            with suppress(InputError):
                return apply(model, None, tried, n).techniques
    return Techniques(batch=asked.batch, offload=asked.offload)


def composed(model: ModelSpec, asked: Techniques, n: int) -> Composition:
    return apply(model, None, fitting(model, asked, n), n)


@given(draw.specs(), techniques(), contexts)
def test_no_layer_stores_less_than_it_reads(model: ModelSpec, asked: Techniques, n: int) -> None:
    for group in composed(model, asked, n).plan.groups:
        if group.owners:
            assert group.part.read.count(n) <= group.part.stored.count(n)


@given(draw.specs(), techniques(), contexts)
def test_the_waterfall_ends_at_what_is_stored_and_read(model: ModelSpec, asked: Techniques, n: int) -> None:
    found = composed(model, asked, n)
    steps = waterfall(found)
    assert steps[0].technique is None
    assert (steps[-1].stored_bytes, steps[-1].read_bytes) == (found.stored_bytes, found.read_bytes)
    assert steps[-1].attention_flops == found.attention_flops
    product = Fraction(steps[0].stored_bytes)
    for step in steps[1:]:
        product *= step.factor
        if step.technique == "quest":
            assert not step.saves_memory
        if step.technique in ("paging", "prefix", "offload"):
            assert step.read_factor == 1
    if all(step.stored_bytes for step in steps):
        assert product == found.stored_bytes


@given(st.integers(1, 6), st.sampled_from([8, 16, 32]), st.booleans(), contexts)
def test_architectural_what_ifs_commute(pairs: int, query_heads: int, windows: bool, n: int) -> None:
    """Heads with owners, and heads with windows, are factors of their own: either may come first."""
    plain = dense(4 * pairs, query_heads, 64)
    other = "window=512:1/2" if windows else "cla=2"
    first, second = (what_if(plain, "kv-heads=2"), what_if(plain, other))
    pair = (what_if(first, other), what_if(second, "kv-heads=2"))
    sizes = {plan_cache(model, resolve_precision()).needed_bytes(n) for model in pair}
    entries = 2 * pairs * (n + (min(n, 512) if windows else 0))
    assert sizes == {entries * 2 * 2 * 64 * 2}


@given(
    st.integers(1, 40), st.sampled_from([8, 16, 64]), st.sampled_from(["tova:500", "snapkv:2048", "h2o:0.25+0.25"]),
    contexts,
)  # fmt: skip
def test_precision_eviction_heads_and_layers_are_independent_factors(
    layers: int, query_heads: int, rule: str, n: int
) -> None:
    """Each one's factor is the same whatever else is on."""
    plain = dense(layers + 1, query_heads, 128)
    precisions = [resolve_precision("bf16"), resolve_precision("fp8")]
    for model in (plain, what_if(plain, "kv-heads=4"), what_if(plain, "cla=2")):
        for precision in precisions:
            before = apply(model, precision, Techniques(), n).stored_bytes
            after = apply(model, precision, parse_techniques(evict=rule), n).stored_bytes
            reference = apply(dense(1, 1, 16), precisions[0], Techniques(), n).stored_bytes
            kept = apply(dense(1, 1, 16), precisions[0], parse_techniques(evict=rule), n).stored_bytes
            assert after * reference == before * kept


@given(st.integers(1, 5000), st.integers(1, 5000), contexts)
def test_a_window_caps_before_the_budget_does(window: int, budget: int, n: int) -> None:
    model = spec((1, kinds.SlidingWindow(8, 8, 64, window)), (1, kinds.FullAttention(8, 8, 64)))
    found = apply(model, None, parse_techniques(evict=f"tova:{budget}"), n)
    held = {group.kind: group.part.stored.count(n) for group in found.plan.groups}
    assert held == {"sliding_window": min(n, window, budget), "full_attention": min(n, budget)}


@given(draw.specs(), contexts, st.integers(1, 300_000), st.sampled_from([None, 16, 128]))
def test_sharing_a_prefix_among_one_sequence_saves_nothing(
    model: ModelSpec, n: int, shared: int, block: int | None
) -> None:
    alone = composed(model, Techniques(block_size=block, share_prefix=min(shared, n)), n)
    plain = apply(model, None, Techniques(block_size=alone.techniques.block), n)
    assert alone.stored_bytes == plain.stored_bytes
    assert alone.shared_bytes == 0


@given(draw.specs(draw.attention), contexts, st.integers(1, 300_000), st.integers(2, 1000))
def test_sharing_never_drops_below_one_sequence(model: ModelSpec, n: int, shared: int, batch: int) -> None:
    found = composed(model, Techniques(block_size=16, share_prefix=min(shared, n), batch=batch), n)
    assert found.sequence_bytes <= found.stored_bytes <= batch * found.sequence_bytes


@given(draw.specs(), techniques(), contexts, st.integers(1, 10**13))
def test_offload_moves_bytes_and_loses_none(model: ModelSpec, asked: Techniques, n: int, size: int) -> None:
    stays = composed(model, asked, n)
    moves = composed(model, replace(stays.techniques, offload=Offload("cpu", size, 50 * 10**9)), n)
    assert moves.stored_bytes == stays.stored_bytes
    assert moves.residence.device_bytes + moves.residence.moved_bytes == moves.stored_bytes
    assert 0 <= moves.residence.moved_bytes <= size


@given(draw.specs(), techniques(), contexts)
def test_fewer_bits_never_store_more(model: ModelSpec, asked: Techniques, n: int) -> None:
    fits = fitting(model, replace(asked, kv_cache_dtype="bf16"), n)
    sizes = [
        apply(model, None, replace(fits, kv_cache_dtype=dtype), n).stored_bytes for dtype in ("fp32", "bf16", "fp8")
    ]
    assert sizes == sorted(sizes, reverse=True)


@given(draw.specs(), techniques(), contexts)
def test_whole_blocks_round_up_and_one_token_blocks_round_nothing(model: ModelSpec, asked: Techniques, n: int) -> None:
    found = composed(model, asked, n)
    assert found.paging_bytes >= 0
    if found.techniques.block_size == 1:
        assert found.paging_bytes == 0


@given(draw.specs(), contexts)
def test_eviction_under_a_budget_that_holds_everything_changes_nothing(model: ModelSpec, n: int) -> None:
    plain = apply(model, None, Techniques(), n)
    for rule in ("tova:300000", "snapkv:300001", "pyramidkv:300001", "streamingllm:4+300000"):
        assert composed(model, parse_techniques(evict=rule), n).stored_bytes == plain.stored_bytes


@given(draw.specs(), st.integers(256, 300_000))
def test_the_map_places_all_twelve_or_says_why_not(model: ModelSpec, n: int) -> None:
    placed = technique_map(model, n)
    assert [each.number for each in placed] == list(range(1, 13))
    for each in placed:
        assert (each.memory_saved is None) == (each.reads_saved is None) == (each.reason is not None)
    by_name = {each.technique: each for each in placed}
    if by_name["offload"].memory_saved is not None:
        assert by_name["offload"].memory_saved == by_name["offload"].reads_saved == 0
