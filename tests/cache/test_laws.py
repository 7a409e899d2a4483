"""Laws of the formula, over models drawn at random."""

from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.layout import LayerContext, layer_parts
from kvplan.cache.precision import resolve_precision
from kvplan.cache.shard import shard_layer
from kvplan.cache.size import plan_cache
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance, branches
from tests import strategies as draw

contexts = st.integers(1, 300_000)
dtypes = st.sampled_from(["bf16", "fp8", "int8", "int4", "nvfp4", "kivi2", "turboquant_k8v4", "q8_0", "q4_0", "fp32"])
AUTO = resolve_precision()


@given(draw.specs(), contexts, st.integers(0, 300_000), dtypes)
def test_stored_bytes_never_fall_as_the_context_grows(spec: ModelSpec, n: int, more: int, dtype: str) -> None:
    plan = plan_cache(spec, resolve_precision(dtype))
    if plan.precision.key.tokens is not None:
        # KIVI packs its key tail once it holds `residual` tokens: bytes rise between whole residuals.
        step = plan.precision.key.tokens.residual
        n, more = -(-n // step) * step, more // step * step
        mixers = [branch for layer in spec.blocks.values() for branch in branches(layer)]
        if any(getattr(mixer, "window", None) or getattr(mixer, "chunk", None) for mixer in mixers):
            return
    assert plan.needed_bytes(n) <= plan.needed_bytes(n + more)


@given(draw.specs(), contexts, dtypes)
def test_components_sum_to_the_whole(spec: ModelSpec, n: int, dtype: str) -> None:
    plan = plan_cache(spec, resolve_precision(dtype))
    assert plan.needed_bytes(n) == sum(group.stored_bytes(n) for group in plan.groups)
    assert plan.needed_bytes(n) == plan.growing_bytes(n) + plan.state_bytes + plan.cross_bytes
    assert plan.total_layers == spec.layer_count


@given(draw.specs(), contexts)
def test_a_layer_never_reads_more_entries_than_it_could_hold(spec: ModelSpec, n: int) -> None:
    for group in plan_cache(spec, AUTO).groups:
        if group.owners:
            assert group.part.read.count(n) <= group.part.stored.count(n)


@given(draw.window, contexts)
def test_a_window_caps_the_entries(layer: kinds.SlidingWindow, n: int) -> None:
    (part,) = layer_parts(layer, LayerContext(AUTO))
    assert part.stored.count(n) == min(n, layer.window)
    assert part.stored_bytes(n) <= part.stored_bytes(layer.window)
    wide = kinds.FullAttention(layer.query_heads, layer.kv_heads, layer.head_dim, layer.v_head_dim)
    assert part.stored_bytes(n) <= layer_parts(wide, LayerContext(AUTO))[0].stored_bytes(n)


@given(draw.recurrent, contexts, dtypes)
def test_state_is_constant_and_untouched_by_the_kv_dtype(layer: kinds.Recurrent, n: int, dtype: str) -> None:
    def total(name: str, at: int) -> int:
        return sum(part.stored_bytes(at) for part in layer_parts(layer, LayerContext(resolve_precision(name))))

    assert total(dtype, n) == total("bf16", 1) > 0


@given(draw.specs(), contexts)
def test_narrower_dtypes_never_cost_more(spec: ModelSpec, n: int) -> None:
    sizes = [plan_cache(spec, resolve_precision(name, "bf16")).needed_bytes(n) for name in ("fp32", "bf16", "fp8")]
    assert sizes == sorted(sizes, reverse=True)
    blocks = [
        plan_cache(spec, resolve_precision(name)).needed_bytes(n) for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
    ]
    assert blocks == sorted(blocks, reverse=True)


@given(draw.specs(), contexts, st.sampled_from([2, 3, 4, 8, 16]))
def test_ranks_together_hold_no_less_than_the_whole(spec: ModelSpec, n: int, ranks: int) -> None:
    whole, rank = plan_cache(spec, AUTO), plan_cache(spec, AUTO, ranks=ranks)
    assert ranks * rank.growing_bytes(n) >= whole.growing_bytes(n)
    assert rank.needed_bytes(n) <= whole.needed_bytes(n)


@given(draw.full, contexts, st.sampled_from([2, 4, 8]))
def test_shards_sum_exactly_where_heads_divide(layer: kinds.FullAttention, n: int, ranks: int) -> None:
    even = kinds.FullAttention(layer.query_heads * ranks, layer.kv_heads * ranks, layer.head_dim, layer.v_head_dim)
    whole = layer_parts(even, LayerContext(AUTO))[0]
    assert ranks * layer_parts(shard_layer(even, ranks), LayerContext(AUTO))[0].stored_bytes(n) == whole.stored_bytes(n)


@given(draw.latent, st.sampled_from([2, 8, 64]))
def test_latents_are_whole_on_each_rank(layer: kinds.LatentAttention, ranks: int) -> None:
    parts, sharded = (layer_parts(each, LayerContext(AUTO)) for each in (layer, shard_layer(layer, ranks)))
    assert [part.entry_bytes for part in parts] == [part.entry_bytes for part in sharded]


@given(draw.specs(), st.lists(contexts, min_size=1, max_size=20), dtypes)
def test_a_curve_agrees_with_single_answers(spec: ModelSpec, lengths: list[int], dtype: str) -> None:
    plan = plan_cache(spec, resolve_precision(dtype))
    curve = plan.needed_bytes(numpy.array(lengths, dtype=numpy.int64))
    singles = [plan.needed_bytes(n) for n in lengths]
    assert list(numpy.broadcast_to(curve, (len(lengths),))) == singles


@given(draw.specs(), st.integers(1, 200_000))
def test_marginal_bytes_are_the_slope(spec: ModelSpec, n: int) -> None:
    plan = plan_cache(spec, AUTO)
    steps = 512  # a multiple of every compression ratio and pool drawn
    mixers = [branch for layer in spec.blocks.values() for branch in branches(layer)]
    edges = [getattr(mixer, name, None) for mixer in mixers for name in ("window", "chunk")]
    if any(edge is not None and n < edge < n + steps for edge in edges) or n % steps:
        n = 300_000 // steps * steps  # past every window drawn
    rise = Fraction(plan.needed_bytes(n + steps) - plan.needed_bytes(n), steps)
    assert plan.marginal_bytes(n) == rise


@given(draw.specs(), st.integers(0, 1 << 40))
def test_the_longest_context_is_the_last_that_fits(spec: ModelSpec, budget: int) -> None:
    plan = plan_cache(spec, AUTO)
    longest = plan.longest_context(budget, 1 << 30)
    if longest:
        assert plan.needed_bytes(longest) <= budget
    if longest < 1 << 30:
        assert plan.needed_bytes(longest + 1) > budget


def test_skipped_layers_stay_in_sixteen_bits() -> None:
    # golden compose.gemma3_27b.fp8_global_only: fp8 on the 10 global layers, 16 bits on the 52 windows.
    spec = ModelSpec(
        id="g", model_type="gemma3", dtype="bfloat16", layers=("52 x local", "10 x global"),
        blocks={"local": kinds.SlidingWindow(32, 16, 128, 1024), "global": kinds.FullAttention(32, 16, 128)},
        provenance=Provenance("test", "verbatim"),
    )  # fmt: skip
    by_kind = plan_cache(spec, resolve_precision("fp8", skip=("sliding_window",)))
    by_number = plan_cache(spec, resolve_precision("fp8", skip=tuple(range(52))))
    assert by_kind.needed_bytes(131072) == by_number.needed_bytes(131072) == 5_804_916_736


@pytest.mark.parametrize("entry", ["sliding_windows", 62, -1])
def test_a_skip_that_names_no_layer_is_refused(entry: str | int) -> None:
    spec = ModelSpec(
        id="g", model_type="g", dtype="bfloat16", layers=("62 x a",), blocks={"a": kinds.FullAttention(1, 1, 64)},
        provenance=Provenance("test", "verbatim"),
    )  # fmt: skip
    with pytest.raises(InputError, match="--kv-cache-dtype-skip-layers: found"):
        plan_cache(spec, resolve_precision("fp8", skip=(entry,)))
