"""Composition on known shapes: the combined example, the waterfall's steps, sharing, residence, warnings."""

from __future__ import annotations

import pytest

from kvplan.cache.precision import resolve_precision
from kvplan.cache.techniques import Techniques, apply, parse_techniques, technique_map, waterfall, what_if
from kvplan.spec import layers as kinds
from kvplan.units import GIB, MIB
from tests.techniques.shapes import dense, spec

N128K = 131_072
LLAMA_70B = dense(80, 8, 128, 64)
LLAMA_8B = dense(32, 8, 128, 32)


def test_the_combined_example_40_20_10_5_with_its_three_warnings() -> None:
    """40 GiB (Llama 3.1 70B, 128K) -> CLA2 20 -> FP8 10 -> 50 % budget 5: factors of two each, by hand."""
    cla = what_if(LLAMA_70B, "cla=2")
    half = "h2o:0.25+0.25"
    assert apply(LLAMA_70B, None, Techniques(), N128K).stored_bytes == 40 * GIB
    assert apply(cla, None, Techniques(), N128K).stored_bytes == 20 * GIB
    assert apply(cla, None, parse_techniques(kv_cache_dtype="fp8"), N128K).stored_bytes == 10 * GIB
    found = apply(cla, None, parse_techniques(kv_cache_dtype="fp8", evict=half), N128K)
    assert found.stored_bytes == 5 * GIB
    training, accuracy, eviction = found.warnings
    assert training.startswith("cla=2: needs training")
    assert accuracy.startswith("fp8 needs an accuracy check") and "kernel" in accuracy
    assert eviction.startswith("h2o loses the dropped tokens") and "patched engine" in eviction and "prefix" in eviction


def test_its_waterfall_follows_the_written_order() -> None:
    cla = what_if(LLAMA_70B, "cla=2")
    steps = waterfall(apply(cla, None, parse_techniques(kv_cache_dtype="fp8", evict="h2o:0.25+0.25"), N128K))
    assert [(step.technique, step.kind, step.stored_bytes // GIB, step.read_bytes // GIB) for step in steps] == [
        (None, "baseline", 320, 320),
        ("gqa", "checkpoint", 40, 40),
        ("cla", "what-if", 20, 40),
        ("eviction", "flag", 10, 20),
        ("quantization", "flag", 5, 10),
    ]
    # 80 layers x 64 query heads x 2 x (128 + 128) x 131,072 tokens; GQA and CLA leave attention FLOPs alone.
    assert [step.attention_flops for step in steps[:3]] == [80 * 64 * 512 * N128K] * 3
    assert steps[4].attention_flops == 80 * 64 * 512 * N128K // 2


def test_quest_saves_reads_and_never_memory() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(sparse_read="quest:page=16,budget=2048,dense=0"), 32_768)
    step = waterfall(found)[-1]
    # +6.25 % stored, 1/16 + 1/16 read (mit-han-lab/Quest: one minimum and one maximum key a page).
    assert (step.technique, float(step.factor), float(step.read_factor)) == ("quest", 1.0625, 0.125)
    assert not step.saves_memory
    assert step.saves_reads


def test_quest_summaries_keep_their_dtype_beside_an_fp8_cache() -> None:
    asked = parse_techniques(kv_cache_dtype="fp8", sparse_read="quest:page=16,budget=2048")
    found = apply(LLAMA_8B, None, asked, 32_768)
    summaries = 32 * 2 * 8 * 128 * 2 * (32_768 // 16)
    assert found.stored_bytes == 2 * GIB + summaries
    wide = apply(LLAMA_8B, None, parse_techniques(sparse_read="quest:metadata=fp32"), 32_768)
    assert wide.stored_bytes == 4 * GIB + 2 * summaries


def test_quest_choices_per_query_head_read_up_to_the_group_times_more() -> None:
    one = apply(LLAMA_8B, None, parse_techniques(sparse_read="quest:dense=0"), 32_768).plan
    each = apply(LLAMA_8B, None, parse_techniques(sparse_read="quest:dense=0,per-query-head"), 32_768).plan
    assert [plan.groups[0].part.read.count(32_768) for plan in (one, each)] == [2048, 4 * 2048]


def test_snapkv_grows_again_while_h2o_does_not() -> None:
    asked = {rule: parse_techniques(evict=rule) for rule in ("snapkv:1024", "h2o:512+512")}
    held = {
        rule: apply(LLAMA_8B, None, asked[rule], 9000, generated=1000).plan.groups[0].part.stored.count(9000)
        for rule in asked
    }
    assert held == {"snapkv:1024": 2024, "h2o:512+512": 1024}


def test_pyramidkv_sums_its_layers_own_budgets() -> None:
    # Zefan-Cai/KVCache-Factory at capacity 128, window 8, 8,192 tokens: 4,272 tokens over 32 layers.
    found = apply(LLAMA_8B, None, parse_techniques(evict="pyramidkv:128,window=8"), 8192)
    assert found.stored_bytes == 4272 * 2 * 8 * 128 * 2


def test_skipped_layers_stay_skipped_when_budgets_split_the_blocks() -> None:
    asked = parse_techniques(kv_cache_dtype="fp8", skip_layers="0,1,b0", evict="pyramidkv:128,window=8")
    assert {group.part.dtype for group in apply(LLAMA_8B, None, asked, 8192).plan.groups} == {"bf16"}


def test_masking_frees_nothing_and_says_so() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(evict="adakv:1024,masked"), 8192)
    assert found.stored_bytes == apply(LLAMA_8B, None, Techniques(), 8192).stored_bytes
    assert any("frees no bytes" in warning for warning in found.warnings)


def test_scattered_tokens_hold_a_block_each() -> None:
    compact = apply(LLAMA_8B, None, parse_techniques(evict="tova:100", block_size=16), 8192)
    spread = apply(LLAMA_8B, None, parse_techniques(evict="tova:100,scattered", block_size=16), 8192)
    token = 131_072
    assert compact.stored_bytes == 7 * 16 * token
    assert spread.stored_bytes == 100 * 16 * token


def test_a_full_window_may_straddle_one_block_more() -> None:
    model = spec((1, kinds.SlidingWindow(1, 1, 64, 1000)))
    sizes = [
        apply(model, None, Techniques(block_size=16), n).stored_bytes // (16 * 256) for n in (999, 1000, 1001, 9000)
    ]
    # ceil(999 / 16) + 1 = 64 blocks once the window moves (vLLM SlidingWindowSpec), never more than the tokens take.
    assert sizes == [63, 63, 63, 64]


def test_sixty_four_sequences_share_a_prefix_of_full_blocks() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(share_prefix="2000", batch=64, block_size=16), 4096)
    token = 131_072
    assert found.shared_bytes == 63 * 2000 * token
    assert found.stored_bytes == (64 * 4096 - 63 * 2000) * token
    odd = apply(LLAMA_8B, None, parse_techniques(share_prefix="2005", batch=64), 4096)
    assert odd.shared_bytes == found.shared_bytes
    assert odd.read_bytes == 64 * 4096 * token
    assert any("blocks of 16 tokens are assumed" in warning for warning in odd.warnings)


def test_a_window_past_the_prefix_shares_nothing() -> None:
    model = spec((1, kinds.SlidingWindow(1, 1, 64, 1024)))
    asked = parse_techniques(share_prefix=2048, batch=4, block_size=16)
    assert apply(model, None, asked, 4096).shared_bytes == 0
    # At 2,560 tokens the window starts at 1,536: blocks 96 to 127 of the prefix are still held by all four.
    assert apply(model, None, asked, 2560).shared_bytes == 3 * 32 * 16 * 256


def test_a_hybrid_keeps_a_state_a_sequence_and_a_snapshot() -> None:
    model = spec((1, kinds.FullAttention(1, 1, 64)), (3, kinds.Lightning(4, 64)))
    state = 3 * 4 * 64 * 64 * 4
    found = apply(model, None, parse_techniques(share_prefix=1024, batch=8, block_size=16), 2048)
    assert found.stored_bytes == (8 * 2048 - 7 * 1024) * 256 + 9 * state


def test_offload_keeps_the_total_and_times_the_way_back() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(offload="cpu:1GiB,bw=50GB/s"), 32_768)
    assert (found.stored_bytes, found.residence.moved_bytes, found.residence.device_bytes) == (4 * GIB, GIB, 3 * GIB)
    assert found.residence.resume_seconds == pytest.approx(0.021474836)


def test_the_peak_of_a_prompt_is_before_eviction() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(evict="snapkv:1024"), 16_384)
    assert (found.stored_bytes, found.prefill_bytes) == (128 * MIB, 2 * GIB)


def test_v4_steps_from_heads_to_one_vector_to_compressed_entries() -> None:
    """DeepSeek V4-Pro at 1M in bf16: 9.62 GiB (vLLM post 2026-04-24) and 18,710,528 B of state."""
    ratio4 = kinds.CompressedSparse(128, 512, 64, 128, 4, True, kinds.Indexer(128, 1024, 64))
    model = spec((30, ratio4), (31, kinds.CompressedSparse(128, 512, 64, 128, 128)))
    steps = waterfall(apply(model, None, Techniques(), 1_048_576))
    assert [step.technique for step in steps] == [None, "gqa", "mla", "csa"]
    assert steps[1].stored_bytes == 61 * 2 * 512 * 2 * 1_048_576
    assert steps[2].factor == steps[2].read_factor == 0.5
    assert steps[3].stored_bytes == 10_334_371_840 + 18_710_528


def test_recurrent_layers_start_as_attention_of_the_models_own_shape() -> None:
    """Qwen3-Next at 128K: 12 GiB with all 48 layers attention (2 KV heads of 256), 3 GiB and 77,266,944 B of state."""
    model = spec((12, kinds.FullAttention(16, 2, 256)), (36, kinds.GatedDelta(16, 128, 32, 128, 4)))
    steps = waterfall(apply(model, None, Techniques(), N128K))
    assert [step.stored_bytes for step in steps] == [96 * GIB, 12 * GIB, 3 * GIB + 77_266_944]


def test_a_model_without_attention_starts_as_one_head_of_its_hidden_size() -> None:
    model = spec((4, kinds.Mamba2(8, 64, 128, 1, 4)), hidden_size=1024)
    first, last = waterfall(apply(model, None, Techniques(), 1000))
    assert first.stored_bytes == 4 * 2 * 1024 * 2 * 1000
    assert last.technique == "hybrid"


def test_quest_stands_on_one_axis_and_mla_on_both() -> None:
    placed = {each.technique: each for each in technique_map(LLAMA_8B, N128K)}
    quest, mla, gqa, cla = (placed[name] for name in ("quest", "mla", "gqa", "cla"))
    assert quest.memory_saved is not None and quest.reads_saved is not None
    assert quest.memory_saved == -0.0625
    assert quest.reads_saved > 0.8
    # 576 values against 2 x 8 x 128: 71.875 % less, stored and read.
    assert (mla.memory_saved, mla.reads_saved, mla.kind) == (0.71875, 0.71875, "what-if")
    assert (gqa.memory_saved, gqa.kind) == (0.75, "checkpoint")
    assert (cla.memory_saved, cla.reads_saved) == (0.5, 0)


def test_a_kivi_cache_after_eviction_quantizes_what_is_left() -> None:
    # 2,048 tokens kept: keys leave no tail (2,048 mod 128), values 128; 3 bits a value at group 32.
    asked = parse_techniques(kv_cache_dtype="kivi2", evict="snapkv:2048")
    values = 8 * 128
    layer = 2048 * values * 3 // 8 + 1920 * values * 3 // 8 + 128 * values * 2
    assert apply(LLAMA_8B, None, asked, 32_768).stored_bytes == 32 * layer


def test_precision_none_takes_the_techniques_dtypes() -> None:
    asked = parse_techniques(kv_cache_dtype="fp8")
    assert apply(LLAMA_8B, None, asked, 4096).precision == resolve_precision("fp8")
