"""Figures of single functions, each worked out by hand beside it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.cache.entries import EntryLaw
from kvplan.cache.formats import find_format
from kvplan.cache.layout import Part
from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques import (
    Techniques,
    apply,
    eviction,
    latent,
    offload,
    paging,
    parse_techniques,
    quantization,
    sparse_reads,
    what_if,
)
from kvplan.cache.techniques.compose import compose_plan
from kvplan.cache.techniques.flops import entry_flops
from kvplan.cache.techniques.heads import head_map
from kvplan.cache.techniques.rewrite import relayer
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from tests.techniques.shapes import dense, spec

GB = 10**9


def part(law: EntryLaw) -> Part:
    return Part("K+V", "growing", "bf16", law, law, 256, "256 B")


@pytest.mark.parametrize(
    ("link", "seconds"),
    [("cpu", 63), ("pcie5", 63), ("pcie4", 126), ("nvlink-c2c", 7), ("nvme", 450)],
)
def test_a_link_s_own_rate_moves_3150_gb(link: str, seconds: int) -> None:
    # 50 GB/s one way by DMA over PCIe 5 (vLLM post 2026-01-08), half over PCIe 4, half of NVLink-C2C's 900 GB/s both
    # ways (NVIDIA Grace Hopper datasheet), 7 GB/s of an NVMe drive on four PCIe 4 lanes: 3,150 is a multiple of all.
    rule = offload.parse_offload(f"{link}:3150GB")
    assert offload.place(3150 * GB, rule).resume_seconds == seconds


def test_attention_adds_to_what_recomputing_a_token_takes() -> None:
    # 2 x 8e9 parameters and 4e9 of attention at 1e12 FLOP/s: 20 ms, in which 5 MB/s moves 100,000 B.
    assert offload.recompute_seconds(8e9, 1e12, 4e9) == pytest.approx(0.02)
    assert offload.break_even_bandwidth(100_000, 8e9, 1e12, 4e9) == pytest.approx(5e6)


def test_entries_that_are_there_from_the_start_hold_blocks_of_their_own_tokens() -> None:
    # 8 page summaries of 16 meta tokens each stand for 128 tokens: with 32 more, 10 blocks of 16.
    assert paging.paged_entries(part(EntryLaw(ratio=16, constant=8, started=True)), 32, 16) == 10


def test_a_block_that_compressed_entries_do_not_fill_names_the_next_that_they_do() -> None:
    with pytest.raises(InputError, match=r"found 6, expected a multiple of the 4 tokens .*nearest: 8$"):
        paging.paged_entries(part(EntryLaw(ratio=4)), 100, 6)


def test_whole_blocks_cost_the_last_one_s_empty_slots() -> None:
    # 1,000 tokens take 63 blocks of 16: 8 slots are empty, 1,024 B a token and layer (2 x 2 heads x 128 x 2 B).
    found = apply(dense(4, 2, 128), None, Techniques(block_size=16), 1000)
    assert found.paging_bytes == 4 * 8 * 1024


def test_a_prefix_shorter_than_a_block_shares_nothing_and_keeps_no_snapshot() -> None:
    model = spec((1, kinds.FullAttention(1, 1, 64)), (3, kinds.Lightning(4, 64)))
    state = 3 * 4 * 64 * 64 * 4
    found = apply(model, None, parse_techniques(share_prefix=15, batch=8, block_size=16), 2048)
    assert (found.shared_bytes, found.stored_bytes) == (0, 8 * (2048 * 256 + state))
    whole = apply(model, None, parse_techniques(share_prefix=16, batch=8, block_size=16), 2048)
    assert whole.shared_bytes == 7 * 16 * 256 - state


def test_quest_alone_means_the_settings_of_its_paper() -> None:
    # arXiv 2406.10774 and mit-han-lab/Quest: pages of 16, a budget of 2,048, the first two layers read whole.
    assert sparse_reads.parse_sparse_read("quest") == sparse_reads.Quest()
    assert sparse_reads.Quest() == sparse_reads.Quest(16, 2048, 2, "bf16", per_query_head=False)


def test_quest_s_dense_layers_read_everything() -> None:
    # At 32,768 tokens a sparse layer reads 1/16 of summaries and 1/16 of tokens: 2 of 32 dense and 30 x 1/8.
    assert sparse_reads.Quest().model_read_fraction(32_768, 32) == Fraction(2 * 8 + 30, 8 * 32)
    assert sparse_reads.Quest(dense=40).model_read_fraction(32_768, 32) == 1


def test_page_summaries_of_meta_tokens_and_of_a_budget_round_up() -> None:
    quest = sparse_reads.Quest()
    # 100 meta tokens lie on 7 pages of 16, 33 others on 3.
    beside = quest.summary(part(EntryLaw(constant=100)), 64, 1, reads=True)
    assert beside.stored.count(33) == 7 + 3
    # A budget of 100 tokens lies on 7 pages.
    assert quest.summary(part(EntryLaw(limit=100)), 64, 1, reads=True).stored.count(10_000) == 7


def test_one_page_is_the_least_budget() -> None:
    assert sparse_reads.parse_sparse_read("quest:page=16,budget=31").pages == 1


@pytest.mark.parametrize("query", [[1.0], [1.0, 2.0, 3.0]])
def test_a_query_has_the_width_of_the_keys(query: list[float]) -> None:
    with pytest.raises(ValueError, match="zip"):
        sparse_reads.page_scores([[[1.0, 2.0]]], query)


def test_a_latent_expands_to_the_widths_it_names_or_to_deepseek_s() -> None:
    # deepseek-ai/DeepSeek-V3 config: 128 heads of 128 + 64 in K and 128 in V, a latent of 512 beside 64.
    unnamed = latent.expanded(kinds.LatentAttention(128, 512, 64))
    assert unnamed == kinds.FullAttention(128, 128, 192, 128)
    # huggingface/transformers v5.24.0 glm4_moe_lite (GLM-4.7-Flash): 20 heads of 192 + 64 in K and 256 in V.
    assert latent.expanded(kinds.LatentAttention(20, 512, 64, 192, 256)) == kinds.FullAttention(20, 20, 256, 256)


def test_an_expanded_window_stays_a_window() -> None:
    found = latent.expanded(kinds.LatentAttention(16, 512, 64, 128, 128, window=1024))
    assert found == kinds.SlidingWindow(16, 16, 192, 1024, 128)


def test_a_latent_made_of_heads_expands_to_the_heads_it_was_made_of() -> None:
    model = what_if(spec((2, kinds.FullAttention(16, 4, 192, 128)), (1, kinds.FullAttention(16, 4, 96))), "mla=512+64")
    # K of 192 + 64 and V of 128 for each of 16 heads in two layers, K of 96 + 64 and V of 96 in the third.
    assert latent.expanded_bytes(model, resolve_precision(), 10) == 10 * 16 * 2 * (2 * (256 + 128) + (160 + 96))


def test_no_kv_head_is_nearest_to_one() -> None:
    with pytest.raises(InputError, match=r"found 0, expected a divisor of the 8 query heads; nearest: 1$"):
        head_map(8, 0)


def test_two_attention_layers_are_enough_for_a_hybrid() -> None:
    model = what_if(dense(2, 8, 128, 64), "attention-every=2")
    # 4,096 B a token of the layer that stays, a state of 64 x 128 x 128 fp32 values of the other.
    assert plan_cache(model, resolve_precision()).needed_bytes(4096) == 4096 * 4096 + 64 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("text", "held"),
    [
        # One cache for both layers; a window of 1,024 in the first and one global cache in the second.
        ("mlkv=1", 4096),
        ("yoco=1024", 1024 + 4096),
    ],
)
def test_the_fewest_layers_and_caches_that_share(text: str, held: int) -> None:
    # 4,096 B a token and layer: 2 x 8 heads x 128 x 2 B.
    assert plan_cache(what_if(dense(2, 8, 128), text), resolve_precision()).needed_bytes(4096) == held * 4096


def test_another_order_joins_equal_neighbours_and_keeps_what_is_assumed() -> None:
    model = what_if(dense(3, 8, 128), "kv-heads=4")
    (mark,) = model.assumptions
    plain = relayer(model, ["b0", "b0", "new"], {"new": kinds.Lightning(8, 128)})
    assert (plain.layers, plain.assumptions) == (("2 x b0", "1 x new"), (mark,))


def test_scores_cost_two_flops_a_value_of_each_query_head() -> None:
    # q . k: 2 FLOPs a value. An indexer that names no heads has one; a page has a minimum and a maximum key.
    assert entry_flops(kinds.FullAttention(32, 8, 128, indexer=kinds.Indexer(64, 2048)), "index keys") == 2 * 64
    assert entry_flops(kinds.FullAttention(32, 8, 128), sparse_reads.SUMMARY) == 32 * (2 + 2) * 128
    assert entry_flops(kinds.CrossAttention(8, 8, 64), "K+V") == 8 * (2 + 2) * 64


@pytest.mark.parametrize("batch", [1, 10**9])
def test_a_batch_reaches_a_billion(batch: int) -> None:
    assert parse_techniques(batch=batch).batch == batch
    with pytest.raises(InputError, match=r"--batch: found .* from 1 to 1000000000$"):
        parse_techniques(batch=10**9 + 1)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        # Half of a prompt of 8,000, and on top what is generated under a rule that grows; all where keys are masked.
        ("h2o:0.25+0.25", 4000),
        ("snapkv:0.5", 5000),
        ("streamingllm:4+2044", 2048),
        ("adakv:0.5,masked", 9000),
    ],
)
def test_shares_are_of_the_prompt_and_not_of_what_is_generated(text: str, held: int) -> None:
    assert eviction.parse_evict(text).budgets(9000, 1000, 3) == (held,) * 3


def test_a_recurrent_matrix_is_updated_and_read_and_its_shifted_rows_cost_nothing() -> None:
    # A rank-one update and a product: 2 FLOPs each a value of 40 heads x 64 x 64.
    assert entry_flops(kinds.Rwkv(2560, 40, 64), "recurrent state") == 40 * 64 * 64 * 4
    assert entry_flops(kinds.Rwkv(2560, 40, 64), "token shift state") == 0


@pytest.mark.parametrize(("name", "size"), [("kivi2", 96), ("kivi4", 160), ("bf16", 512), ("q4_0", 144)])
def test_slots_of_a_head_of_128(name: str, size: int) -> None:
    # 256 values of K and V: 2 and 4 bits with 32 bits a group of 32 (arXiv 2402.02750) are 3 and 5; 8 blocks of 18 B.
    assert quantization.slot_bytes(find_format(name), 128) == size


def test_half_a_block_is_wasted_on_average_in_each_group() -> None:
    # Lengths spread evenly waste 0 to 15 slots of a block of 16: 7.5, in four groups 30, of 500 and those allocated.
    assert paging.expected_waste(16, 500) == paging.Waste(Fraction(15, 2), Fraction(15, 2) / (500 + Fraction(15, 2)))
    assert paging.expected_waste(16, 500, 4).tokens == 30


def test_a_plan_has_generated_nothing_unless_it_is_told() -> None:
    # 100 of 1,000 tokens kept, and 50 generated ones on top: 4,096 B a token and layer (2 x 8 heads x 128 x 2 B).
    asked, precision = parse_techniques(evict="snapkv:100"), resolve_precision()
    assert compose_plan(dense(2, 8, 128), precision, asked, 1000).needed_bytes(1000) == 2 * 100 * 4096
    later = compose_plan(dense(2, 8, 128), precision, asked, 1000, generated=50)
    assert later.needed_bytes(1000) == 2 * 150 * 4096
