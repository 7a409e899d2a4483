"""Single rules beside the golden cases: records, support matrix, and the readings behind published figures."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.cache.formats import find_format
from kvplan.cache.precision import resolve_precision
from kvplan.cache.techniques import (
    TECHNIQUES,
    apply,
    compressed,
    engine_support,
    eviction,
    find_technique,
    latent,
    offload,
    paging,
    parse_techniques,
    prefix,
    quantization,
    sparse_reads,
)
from kvplan.cache.techniques.runtime import techniques_from_list
from kvplan.cache.techniques.what_if import what_if
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from tests.techniques.shapes import dense, spec


def test_twelve_records_in_order_each_with_engines_and_a_way_to_ask() -> None:
    assert [technique.number for technique in TECHNIQUES] == list(range(1, 13))
    engines = {"vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers", "lmdeploy"}
    for technique in TECHNIQUES:
        assert {support.engine for support in technique.engines} == engines
        assert (technique.what_if is not None) == technique.needs_training
        assert technique.what_if or technique.option
    assert set(engine_support()) == {technique.name for technique in TECHNIQUES}


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: technique.name)
def test_the_records_own_example_works(technique: object) -> None:
    record = find_technique(technique.name)  # type: ignore[attr-defined]
    model = dense(48, 8, 128, 32)
    if record.what_if:
        assert what_if(model, record.what_if) != model
    if record.option:
        words = record.option.removeprefix("--").split(" ")
        items = [{words[0]: words[1]}, *({words[i].removeprefix("--"): words[i + 1]} for i in range(2, len(words), 2))]
        assert apply(model, None, techniques_from_list(items), 32_768).stored_bytes > 0


@pytest.mark.parametrize(
    ("name", "found"),
    [("MQA", "gqa"), ("7", "quest"), ("kivi", "quantization"), ("mamba", "hybrid"), ("h2o", "eviction")],
)
def test_techniques_are_found_by_alias_and_number(name: str, found: str) -> None:
    assert find_technique(name).name == found


def test_an_unknown_technique_names_the_nearest() -> None:
    with pytest.raises(InputError, match="nearest: paging"):
        find_technique("pagin")


def test_engine_support_says_what_engines_have() -> None:
    support = {row.engine: row.support for row in find_technique("eviction").engines}
    assert support.pop("tensorrt-llm") == "partly"
    assert set(support.values()) == {"no"}


def test_expanded_mla_is_71_times_the_latent() -> None:
    """DeepSeek V3: 128 heads x (192 + 128) values against 576 (mit 'naive' caches before absorbed kernels)."""
    model = spec((61, kinds.LatentAttention(128, 512, 64, 128, 128)))
    precision = resolve_precision()
    assert latent.expanded_bytes(model, precision, 1000) == 61 * 128 * 320 * 2 * 1000
    assert Fraction(128 * 320, 576) == Fraction(640, 9)


def test_snapkv_8_2_and_pyramidkv_12_percent_are_budgets() -> None:
    """8.2x at 16,384 tokens is 1,998 tokens kept (arXiv 2404.14469); 12 % is 1,024 of 8.4k (arXiv 2406.02069)."""
    budget = eviction.budget_for(16_384, 8.2)
    assert budget == 1998
    model = dense(32, 8, 128, 32)
    whole = apply(model, None, parse_techniques(), 16_384).stored_bytes
    kept = apply(model, None, parse_techniques(evict=f"snapkv:{budget}"), 16_384).stored_bytes
    assert whole / kept == pytest.approx(8.2, rel=1e-3)
    assert pytest.approx(0.12, abs=0.003) == 1024 / 8400


def test_kivi_2_6_is_peak_memory_beside_weights() -> None:
    """(W + x) / (W + 3x/16) = 2.6 needs x = 3.12 W: 42 GB of 16-bit cache beside 13.5 GB of weights."""
    cache = quantization.cache_for_peak_ratio(13_500_000_000, 2.6, Fraction(3, 16))
    assert cache / 13_500_000_000 == pytest.approx(3.12, abs=0.01)
    assert 42e9 < cache < 42.3e9


def test_turboquant_published_ratios_with_skipped_boundary_layers() -> None:
    """vLLM post 2026-05-11: 2.4x for k8v4 on 80 layers, 3.7x for 3 bits on 48, two layers skipped at each end."""
    eight, three = find_format("turboquant_k8v4"), find_format("turboquant_3bit_nc")
    assert float(quantization.skip_capacity_ratio(eight, 80, 4, 128)) == pytest.approx(2.42, abs=0.005)
    assert float(quantization.skip_capacity_ratio(three, 48, 4, 128)) == pytest.approx(3.76, abs=0.005)


def test_pyramid_clips_to_a_short_prompt_and_keeps_the_sum() -> None:
    """Zefan-Cai/KVCache-Factory: most clipped to prompt - window, least = 2 x room - most."""
    # room 120: least 6, most 234; at 240 tokens most is 232, least 8, step 224 // 31 = 7.
    tokens = eviction.pyramid_tokens(240, 128, 8, 20, 32)
    assert (tokens[0], tokens[-1]) == (240, 232 - 31 * 7 + 8)
    assert eviction.pyramid_tokens(100, 128, 8, 20, 32) == (100,) * 32
    assert eviction.pyramid_tokens(4096, 128, 8, 20, 1) == (242,)


def test_only_wholly_freed_blocks_come_back() -> None:
    assert eviction.freed_blocks([0, 2, 5, 7, 8, 9], 10, 2) == 0
    assert eviction.freed_blocks([0, 1, 8, 9], 10, 2) == 3


def test_quest_scores_bound_and_the_newest_page_is_always_in() -> None:
    assert sparse_reads.select_pages([2.5, 6.0, 4.0, -1.0], 2, newest=3) == (1, 3)


def test_nsa_and_moba_store_more_than_dense() -> None:
    assert compressed.nsa(65_536).stored_tokens == 65_536 + 4_096 + 512
    assert compressed.moba(1_048_576).stored_tokens == 1_048_576 + 128
    assert compressed.nsa(100).read_tokens == 6 + 100 + 100


def test_paging_replaces_a_contiguous_reservation() -> None:
    """Three sequences of 1, 16 and 17 tokens: 30 wasted in blocks of 16, 6,110 where 2,048 are reserved."""
    assert paging.exact_waste([1, 16, 17], 16).tokens == 30
    assert paging.reservation_waste([1, 16, 17], 2048).tokens == 3 * 2048 - 34
    assert paging.worst_waste(16, 500).tokens == 15
    assert paging.block_table_bytes(131_072, 16) == 8192 * 4


def test_a_pool_hands_out_what_came_back_last_of_all() -> None:
    pool = paging.BlockPool(3)
    pool.allocate("A", 2)
    with pytest.raises(InputError, match="found 1 free"):
        pool.allocate("B", 2)
    pool.release("A")
    assert pool.free == (2, 0, 1)


def test_prefix_keys_chain_and_salts_part_them() -> None:
    tokens = list(range(12))
    changed = [99, *tokens[1:]]
    assert prefix.matching_blocks(tokens, tokens, 4) == 2  # the last token's block is computed again
    assert prefix.matching_blocks(tokens, [*tokens, 12], 4) == 3
    assert prefix.matching_blocks(changed, tokens, 4) == 0
    assert set(prefix.block_hashes(tokens, 4)) & set(prefix.block_hashes(tokens, 4, "tenant")) == set()


def test_state_checkpoints_by_mode() -> None:
    assert [prefix.state_checkpoints(1000, 16, mode) for mode in ("none", "align", "all")] == [1, 2, 63]


def test_transfers_count_fragments_and_hide_behind_compute() -> None:
    assert offload.transfer_seconds(50 * 10**9, 50e9, 1000, 1e-6) == pytest.approx(1.001)
    assert offload.exposed_seconds(0.5, 0.3) == pytest.approx(0.2)
    assert offload.exposed_seconds(0.2, 0.3) == 0


def test_a_window_no_longer_than_the_residual_quantizes_no_value() -> None:
    groups = find_format("kivi2").tokens
    assert groups is not None
    assert quantization.residual(groups, 100) == quantization.Residual(0, 100, 0, 100)
