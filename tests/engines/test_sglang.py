"""SGLang: the default share on 135 settings, pools, states, windows, refusals. Figures by hand from 0.5.23's rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.sglang.budget import default_mem_fraction, static_budget
from kvplan.engines.sglang.engine import ENGINE
from kvplan.errors import InputError
from kvplan.spec.layers import CompressedSparse, FullAttention, GatedDelta, Indexer, LatentAttention, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import GIB

ROWS = json.loads(
    (Path(__file__).parents[1] / "golden/engines/sglang_mem_fraction.json").read_text(encoding="utf-8")
)["rows"]  # fmt: skip
SOURCE = Provenance("test", "verbatim")


def model(blocks: dict[str, Any], layers: tuple[str, ...], model_type: str = "llama", **kwargs: Any) -> ModelSpec:
    kwargs.setdefault("max_context", 131072)
    return ModelSpec("model", model_type, "bfloat16", blocks, layers, SOURCE, **kwargs)


LLAMA_8B = model({"a": FullAttention(32, 8, 128)}, ("32 x a",))
GDN = GatedDelta(16, 128, 32, 128, 4)  # 2,146,304 B with bf16 columns and an fp32 state


def ask(
    spec: ModelSpec, settings: dict[str, Any], budget: int, version: str | None = None, **ranks: int
) -> EngineAnswer:
    return ENGINE.plan(spec, settings, Parallelism(**ranks), [budget], Device("any", 1 << 40), version)


def test_default_share_on_every_setting() -> None:
    assert len(ROWS) == 135
    for memory, tp, pp, mla, graphs, reserved, fraction in ROWS:
        found = default_mem_fraction(memory, tp=tp, pp=pp, mla=mla, prefill_graphs=graphs)
        assert (found.reserved_mib, found.fraction) == (reserved, fraction), (memory, tp, pp, mla, graphs)


def test_share_of_unknown_memory_and_its_extras() -> None:
    """0.95 without a figure; DeepEP reserves 2 GiB; DP attention 3 MiB a request and rank, 4.5 above 300."""
    assert default_mem_fraction(None).fraction == 0.95
    plain = default_mem_fraction(24576)
    assert default_mem_fraction(24576, deepep=True).reserved_mib == plain.reserved_mib + 2048
    assert default_mem_fraction(24576, dp_attention=2).reserved_mib == plain.reserved_mib + 48 * 2 * 3
    many = default_mem_fraction(24576, decode_max_bs=400)
    assert default_mem_fraction(24576, decode_max_bs=400, dp_attention=2).reserved_mib == many.reserved_mib + 400 * 9


def test_budget_is_a_share_of_what_was_free_before_the_weights() -> None:
    assert static_budget(80 * GIB, 60 * GIB, 0.9) == 52 * GIB
    assert static_budget(80 * GIB, 60 * GIB, 0.9, multimodal=True) == 52 * GIB - GIB // 10
    with pytest.raises(InputError, match=r"expected more than 0\.750"):
        static_budget(80 * GIB, 20 * GIB, 0.7)
    with pytest.raises(InputError, match=r"found 1\.5, expected a number in \(0, 1\]"):
        static_budget(80 * GIB, 20 * GIB, 1.5)


@pytest.mark.parametrize(
    ("dtype", "tp", "each"),
    [("auto", 1, 131072), ("auto", 4, 32768), ("auto", 16, 16384), ("fp8_e4m3", 1, 65536), ("nvfp4", 1, 36864)],
)
def test_bytes_of_a_token(dtype: str, tp: int, each: int) -> None:
    """8 KV heads x 128 x 2 x 32 layers; one head stays on each of 16 ranks; 0.5625 B a value in fp4."""
    answer = ask(LLAMA_8B, {"kv_cache_dtype": dtype}, 1000 * each + each - 1, tensor=tp)
    assert answer.capacity_tokens == 1000 and answer.bytes_per_block == (each,)


@pytest.mark.parametrize(("dtype", "each"), [("auto", 1152 + 132), ("fp8_e4m3", 656 + 132)])
def test_bytes_of_an_indexed_latent(dtype: str, each: int) -> None:
    dsa = model({"a": LatentAttention(128, 512, 64, indexer=Indexer(128))}, ("61 x a",))
    assert ask(dsa, {"kv_cache_dtype": dtype}, GIB, tensor=8).bytes_per_block == (61 * each,)


def test_window_pool_of_listed_models_only() -> None:
    """gpt-oss: full tokens = budget / (full + 0.8 x window bytes), window tokens 0.8 of that; Gemma 3 isn't listed."""
    blocks = {"f": FullAttention(64, 8, 64), "w": SlidingWindow(64, 8, 64, 128)}
    oss = model(blocks, ("18 x f", "18 x w"), "gpt_oss")
    each = 18 * 2048  # 8 x 64 x 2 x 2 B
    answer = ask(oss, {}, each * 9000 * 18 // 10)
    assert answer.capacity_tokens == 9000 and answer.pool("window slots").slots == 7200 + 1
    gemma = ask(model(blocks, ("18 x f", "18 x w"), "gemma3_text"), {}, each * 9000 * 2)
    assert gemma.capacity_tokens == 9000 and any("no window pool" in warning for warning in gemma.warnings)
    lower = ask(oss, {"swa_full_tokens_ratio": 0.1}, each * 11000)
    assert lower.capacity_tokens == 10000


def test_window_pool_smaller_than_the_window_is_refused() -> None:
    oss = model({"f": FullAttention(64, 8, 64), "w": SlidingWindow(64, 8, 64, 128)}, ("18 x f", "18 x w"), "gpt_oss")
    answer = ask(oss, {}, 18 * 2048 * 160 * 18 // 10)
    assert answer.refused is not None and "window of 128" in answer.refused.text


def test_state_pool_takes_47_percent() -> None:
    """pool = budget x 0.9 / 1.9; slots leave one for padding; running requests are slots // 3."""
    spec = model({"f": FullAttention(16, 2, 256), "g": GDN}, ("12 x f", "36 x g"), "qwen3_next")
    slot, budget = 36 * 2_146_304, 19 * GIB
    slots = (9 * GIB - slot) // slot
    answer = ask(spec, {}, budget)
    assert answer.pool("state slots").slots == slots + 1
    assert answer.capacity_tokens == (budget - (slots + 1) * slot) // (12 * 2048)
    assert answer.pool("request table").slots == slots // 3 + 1 and answer.binding == "token slots"
    assert ask(spec, {"context_length": 4096}, budget).binding == "state slots"
    assert ask(spec, {"disable_radix_cache": True}, budget).pool("request table").slots == slots + 1


def test_request_table() -> None:
    """2,048 requests at 131,072 + 4 columns of 4 B are 1.0 GiB (log of issue 4127: 2,049 rows)."""
    pool = ask(LLAMA_8B, {"context_length": 131072}, 131072 * 46611).pool("request table")
    assert (pool.slots, pool.bytes_per_slot) == (2049, 131076 * 4)


def test_draft_and_host_pools() -> None:
    """One draft layer beside 32 widens a token by 1/32; HiCache holds twice the tokens and a page."""
    drafted = model({"a": FullAttention(32, 8, 128)}, ("32 x a",), draft_layers=("a",))
    answer = ask(drafted, {"speculative_algorithm": "EAGLE"}, 33 * 4096 * 1000)
    assert answer.capacity_tokens == 1000 and answer.pool("draft slots").bytes == 4096 * 1000
    host = ask(LLAMA_8B, {"enable_hierarchical_cache": True, "page_size": 64}, 131072 * 6400)
    assert host.pool("host slots (HiCache)").slots == 2 * 6400 + 64
    sized = ask(LLAMA_8B, {"enable_hierarchical_cache": True, "hicache_size": 16}, 131072 * 6400)
    assert sized.pool("host slots (HiCache)").slots == 16 * 10**9 // 131072 + 1


def test_deepseek_v4_pages() -> None:
    """584-byte records, pages of 256 tokens padded to 149,760 B, window pool a tenth of the tokens."""
    spec = model({"w": CompressedSparse(64, 512, 64, 128)}, ("2 x w",), "deepseek_v4")
    answer = ask(spec, {"kv_cache_dtype": "fp8_e4m3"}, 2 * 149_760 * 10)
    assert answer.capacity_tokens == 2560 and answer.setting("page_size") == 256


def test_nothing_fits() -> None:
    answer = ask(LLAMA_8B, {}, 1000)
    assert answer.refused is not None and answer.refused.needed_bytes == 131072


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_dtype": "int3"}, "nearest: int8"),
        ({"mem_fraction_static": "0"}, r"in \(0, 1\]"),
        ({"page_size": "x"}, "whole number"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(LLAMA_8B, settings, GIB)


def test_unknown_flags_are_listed() -> None:
    assert any("--tool-call-parser" in text for text in ask(LLAMA_8B, {"--tool-call-parser": "x"}, GIB).warnings)


@given(st.integers(0, 1 << 40), st.sampled_from([1, 16, 64]), st.integers(1, 16))
def test_slots_never_exceed_the_budget(budget: int, page: int, tp: int) -> None:
    answer = ask(LLAMA_8B, {"page_size": page}, budget, tensor=tp)
    count = answer.capacity_tokens or 0
    each = answer.bytes_per_block[0] // page
    assert answer.refused is not None or (count % page == 0 and count * each <= budget < (count + page) * each)
