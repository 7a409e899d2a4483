"""Laws that hold for every model vLLM's planner can be asked about."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.vllm import VLLM
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance

GIB = 1 << 30
DEVICE = Device("NVIDIA H200", 141 * GIB, (9, 0))
heads = st.sampled_from([1, 2, 4, 8])
widths = st.sampled_from([64, 128, 256])

attention = st.one_of(
    st.builds(kinds.FullAttention, st.just(8), heads, widths),
    st.builds(kinds.SlidingWindow, st.just(8), heads, widths, st.sampled_from([7, 128, 1024, 4096])),
    st.builds(kinds.ChunkedAttention, st.just(8), heads, widths, st.sampled_from([64, 8192])),
)
latents = st.builds(kinds.LatentAttention, st.just(8), st.sampled_from([256, 512]), st.just(64))
states = st.one_of(
    st.builds(kinds.Mamba1, st.sampled_from([256, 1024]), st.just(16), st.just(4)),
    st.builds(kinds.Mamba2, st.just(8), st.just(64), st.sampled_from([16, 128]), st.just(8), st.just(4)),
    st.builds(kinds.GatedDelta, st.just(8), st.just(128), st.just(16), st.just(128), st.just(4)),
    st.builds(kinds.Kda, st.just(8), st.just(128), st.just(4)),
    st.builds(kinds.ShortConv, st.sampled_from([256, 2048]), st.just(3)),
)


@st.composite
def models(draw: Any) -> ModelSpec:
    """One to three kinds of layers in some order: heads of one width, latents, or either beside states."""
    blocks: dict[str, Any] = {}
    if draw(st.booleans()):
        first = draw(attention)
        blocks["a"] = first
        if draw(st.booleans()):
            window = draw(st.sampled_from([128, 1024]))
            blocks["b"] = kinds.SlidingWindow(8, first.kv_heads, first.head_dim, window)
    else:
        blocks["a"] = draw(latents)
    if not isinstance(blocks["a"], kinds.ChunkedAttention) and draw(st.booleans()):
        blocks["c"] = draw(states)
    order = tuple(f"{draw(st.integers(1, 5))} x {name}" for name in (*blocks, *blocks))
    return ModelSpec("m", "m", "bfloat16", blocks, order, Provenance("test", "verbatim"), max_context=1 << 20)


lengths = st.sampled_from([1, 15, 16, 17, 4096, 33333, 131072])
flags = st.fixed_dictionaries(
    {"max_model_len": lengths, "mamba_ssm_cache_dtype": st.just("float32")},
    optional={"max_num_batched_tokens": st.sampled_from([1, 2048, 10000]), "async_scheduling": st.booleans(),
              "enable_prefix_caching": st.booleans(), "kv_cache_dtype": st.just("fp8")},
)  # fmt: skip
budgets = st.integers(1, 200 * GIB)


def ask(model: ModelSpec, asked: dict[str, Any], available: int, tensor: int = 1) -> EngineAnswer:
    return VLLM.plan(model, asked, Parallelism(tensor=tensor), [available], DEVICE, "0.32.0")


@settings(max_examples=60, deadline=None)
@given(models(), flags, budgets, budgets)
def test_more_memory_never_means_fewer_blocks(model: ModelSpec, asked: dict[str, Any], one: int, other: int) -> None:
    less, more = sorted((one, other))
    poor, rich = ask(model, asked, less), ask(model, asked, more)
    assert poor.bytes_per_block == rich.bytes_per_block
    if poor.num_blocks is not None:
        assert rich.num_blocks is not None and rich.num_blocks >= poor.num_blocks
        assert (rich.capacity_tokens or 0) >= (poor.capacity_tokens or 0)


@settings(max_examples=60, deadline=None)
@given(models(), flags, st.integers(64 * GIB, 200 * GIB))
def test_blocks_fill_the_memory_and_no_more(model: ModelSpec, asked: dict[str, Any], available: int) -> None:
    answer = ask(model, asked, available)
    assume(answer.num_blocks is not None)
    assert answer.num_blocks is not None
    (size,) = answer.bytes_per_block
    assert answer.num_blocks * size <= available < (answer.num_blocks + 1) * size
    assert answer.pool("blocks").bytes == answer.num_blocks * size
    assert size == max(group.bytes_per_block for group in answer.groups)
    assert answer.blocks_per_request == sum(group.blocks_per_request for group in answer.groups)
    assert sum(group.layers for group in answer.groups) == model.layer_count


@settings(max_examples=60, deadline=None)
@given(models(), flags, st.sampled_from([1, 2, 8]))
def test_reserved_is_never_less_than_needed(model: ModelSpec, asked: dict[str, Any], tensor: int) -> None:
    answer = ask(model, asked, 1 << 50, tensor)
    precision = resolve_precision(asked.get("kv_cache_dtype", "auto"), state="float32")
    needed = plan_cache(model, precision, ranks=tensor).needed_bytes(asked["max_model_len"])
    assert answer.reserved_bytes_one_request >= needed


@settings(max_examples=60, deadline=None)
@given(models(), flags, st.integers(1, 4 * GIB))
def test_the_estimate_is_the_longest_length_that_starts(
    model: ModelSpec, asked: dict[str, Any], available: int
) -> None:
    answer = ask(model, asked, available)
    assume(answer.refused is not None)
    estimate = answer.estimated_max_model_len
    if estimate is None:
        assert ask(model, {**asked, "max_model_len": 1}, available).refused is not None
        return
    fixed = {**asked, "max_num_batched_tokens": answer.setting("max_num_batched_tokens")}
    assert ask(model, {**fixed, "max_model_len": estimate}, available).refused is None
    assert ask(model, {**fixed, "max_model_len": estimate + 1}, available).refused is not None


@settings(max_examples=40, deadline=None)
@given(models(), flags, st.integers(1, 64 * GIB))
def test_auto_fit_takes_the_longest_length_that_starts(model: ModelSpec, asked: dict[str, Any], available: int) -> None:
    fitted = ask(model, {**asked, "max_model_len": -1}, available)
    asked = {**asked, "max_num_batched_tokens": fitted.setting("max_num_batched_tokens")}
    whole = ask(model, {**asked, "max_model_len": 1 << 20}, available)
    if whole.refused is None:
        assert fitted.max_model_len == 1 << 20
    elif fitted.refused is None:
        assert fitted.max_model_len == whole.estimated_max_model_len
    else:
        assert whole.estimated_max_model_len is None
