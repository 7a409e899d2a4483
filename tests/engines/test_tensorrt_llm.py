"""TensorRT-LLM: blocks, windows, head rounding, state, host pool. Figures by hand from its resource manager's rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.tensorrt_llm.engine import ENGINE
from kvplan.errors import InputError
from kvplan.spec.layers import FullAttention, LatentAttention, Mamba2, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import GIB


def model(blocks: dict[str, Any], layers: tuple[str, ...], model_type: str = "llama") -> ModelSpec:
    source = Provenance("test", "verbatim")
    return ModelSpec("model", model_type, "bfloat16", blocks, layers, source, max_context=131072)


LLAMA_8B = model({"a": FullAttention(32, 8, 128)}, ("32 x a",))
GEMMA = {"f": FullAttention(32, 16, 128), "w": SlidingWindow(32, 16, 128, 1024)}


def ask(
    spec: ModelSpec, settings: dict[str, Any], budget: int, version: str | None = None, **ranks: int
) -> EngineAnswer:
    return ENGINE.plan(spec, settings, Parallelism(**ranks), [budget], Device("any", 1 << 40), version)


def test_blocks_of_32() -> None:
    """258 blocks x 32 tokens x 131,072 B = 1.01 GiB (issue 8961)."""
    answer = ask(LLAMA_8B, {}, 258 * 32 * 131072 + 1)
    assert (answer.num_blocks, answer.capacity_tokens, answer.bytes_per_block) == (258, 8256, (32 * 131072,))
    assert answer.log_lines[-1] == "Allocated 1.01 GiB for max tokens in paged KV cache (8256)."


@pytest.mark.parametrize(
    ("settings", "tp", "each"),
    [
        ({}, 4, 32768),
        ({}, 16, 16384),  # 8 heads on 16 ranks: one each
        ({"enable_attention_dp": True}, 4, 131072),
        ({"dtype": "fp8"}, 1, 65536),
        ({"dtype": "nvfp4"}, 1, 36864),  # 0.5625 B a value
    ],
)
def test_bytes_of_a_token(settings: dict[str, Any], tp: int, each: int) -> None:
    assert ask(LLAMA_8B, settings, GIB, tensor=tp).bytes_per_block == (32 * each,)


def test_uneven_heads_round_up() -> None:
    """10 heads on 4 ranks: the pool keeps ceil(10 / 4) = 3, the estimate before it 2."""
    spec = model({"a": FullAttention(40, 10, 128)}, ("40 x a",))
    assert ask(spec, {}, GIB, tensor=4).bytes_per_block == (32 * 40 * 3 * 512,)


def test_latent_is_not_sharded() -> None:
    spec = model({"a": LatentAttention(128, 512, 64)}, ("61 x a",), "deepseek_v3")
    assert ask(spec, {}, GIB, tensor=8).bytes_per_block == (32 * 70272,)


def test_derived_windows_are_pools() -> None:
    """A window of 1,024 holds 1024 / 32 + 1 = 33 blocks of a request, full layers 4,096."""
    answer = ask(model(GEMMA, ("10 x f", "52 x w"), "gemma3_text"), {}, 40 * GIB)
    assert [(group.kind, group.blocks_per_request) for group in answer.groups] == [("full", 4096), ("window 1024", 33)]
    one = 32 * 8192 * (10 * 4096 + 52 * 33)
    assert answer.needed_bytes_one_request == one
    assert answer.pool("full blocks").slots == 40 * GIB * 4096 // one


def test_other_windows_store_every_token_unless_listed() -> None:
    spec = model(GEMMA, ("10 x f", "52 x w"), "olmo3")
    plain = ask(spec, {}, 40 * GIB)
    assert plain.bytes_per_block == (32 * 62 * 8192,) and any("max_attention_window" in w for w in plain.warnings)
    listed = ask(spec, {"max_attention_window": [131072, 1024]}, 40 * GIB)
    assert [(group.kind, group.layers) for group in listed.groups] == [("full", 31), ("window 1024", 31)]


def test_states_come_off_first() -> None:
    """64 requests of one fp32 state: 128 x 64 x 128 x 4 B + 3 x 10,240 x 2 B."""
    mamba = Mamba2(128, 64, 128, 8, 4)
    spec = model({"m": mamba, "a": FullAttention(32, 8, 128)}, ("m", "a"), "nemotron_h")
    state = 128 * 64 * 128 * 4 + 3 * 10240 * 2
    answer = ask(spec, {"max_batch_size": 64}, 64 * state + 32 * 4096 * 7)
    assert answer.num_blocks == 7 and answer.pool("state slots").bytes == 64 * state


def test_host_pool_and_limits() -> None:
    answer = ask(LLAMA_8B, {"host_cache_size": 10 * 32 * 131072 + 1, "max_tokens": 4096}, 10 * GIB)
    assert answer.pool("host blocks").slots == 10 and answer.capacity_tokens == 4096
    assert any("max_seq_len becomes 4,096" in warning for warning in answer.warnings) and answer.max_model_len == 4096


def test_a_pool_too_small_for_a_request_shortens_it() -> None:
    """1,000 blocks of 32 tokens hold one request of 32,000 of the 131,072 tokens, in all figures alike."""
    block = 32 * 131072
    answer = ask(LLAMA_8B, {}, 1000 * block + block // 2)
    assert (answer.max_model_len, answer.num_blocks, answer.blocks_per_request) == (32000, 1000, 1000)
    assert answer.max_concurrency == 1.0
    assert answer.needed_bytes_one_request == answer.reserved_bytes_one_request == 1000 * block


def test_a_shortened_request_keeps_whole_windows() -> None:
    """10 full layers of 100 blocks and 52 window layers of 33 make 3,200 tokens; a byte less makes 99 blocks."""
    block, spec = 32 * 8192, model(GEMMA, ("10 x f", "52 x w"), "gemma3_text")
    budget = block * (10 * 100 + 52 * 33)
    answer = ask(spec, {}, budget)
    assert (answer.max_model_len, answer.max_concurrency, answer.needed_bytes_one_request) == (3200, 1.0, budget)
    assert [pool.slots for pool in answer.pools] == [100, 33]
    assert ask(spec, {}, budget - 1).max_model_len == 99 * 32


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 1 << 36))
def test_whatever_starts_holds_one_request(budget: int) -> None:
    for spec in (LLAMA_8B, model(GEMMA, ("10 x f", "52 x w"), "gemma3")):
        answer = ask(spec, {}, budget)
        if answer.refused is None:
            assert (answer.max_concurrency or 0) >= 1 and answer.needed_bytes_one_request <= budget


def test_refusals() -> None:
    answer = ask(LLAMA_8B, {}, 1000)
    assert answer.refused is not None and answer.refused.needed_bytes == 32 * 131072
    with pytest.raises(InputError, match="power of two"):
        ask(LLAMA_8B, {"tokens_per_block": 48}, GIB)


@given(st.integers(1 << 24, 1 << 40), st.integers(1, 4))
def test_pools_fit_the_budget(budget: int, stages: int) -> None:
    answer = ask(model(GEMMA, ("10 x f", "52 x w"), "gemma3"), {}, budget, pipeline=stages)
    for stage in range(stages):
        assert sum(pool.bytes_per_stage[stage] for pool in answer.pools) <= budget
