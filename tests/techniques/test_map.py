"""The map's settings and figures at several contexts, and the waterfall's last steps, by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.cache.techniques import Techniques, apply, parse_techniques, technique_map, waterfall, what_if
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB
from tests.techniques.shapes import dense, spec

LLAMA_8B = dense(32, 8, 128, 32)
V4 = spec((2, kinds.CompressedSparse(64, 512, 64, 128, 4)), (2, kinds.CompressedSparse(64, 512, 64, 128, 128)))


def settings(model: ModelSpec, n: int) -> dict[str, str]:
    return {each.technique: each.setting for each in technique_map(model, n)}


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (dense(4, 64, 128), "kv-heads=8"),
        (dense(4, 16, 128), "kv-heads=2"),
        (spec((1, kinds.FullAttention(32, 32, 64)), (1, kinds.SlidingWindow(8, 8, 64, 128))), "kv-heads=1"),
        # An eighth of 12 or 9 heads is no whole number of them: one is left.
        (dense(4, 12, 128), "kv-heads=1"),
        (dense(4, 9, 128), "kv-heads=1"),
    ],
)
def test_an_eighth_of_the_heads_is_what_gqa_would_keep(model: ModelSpec, setting: str) -> None:
    assert settings(model, 1000)["gqa"] == setting


@pytest.mark.parametrize(
    ("n", "budget", "prefix"), [(1, 64, "1"), (100, 64, "50"), (1000, 500, "500"), (131_072, 2048, "65,536")]
)
def test_eviction_and_sharing_are_shown_at_half_the_context(n: int, budget: int, prefix: str) -> None:
    found = settings(LLAMA_8B, n)
    assert (found["eviction"], found["prefix"]) == (f"snapkv:{budget}", f"8 sequences share {prefix} tokens")


def test_blocks_are_of_sixteen_tokens_or_of_the_longest_entry() -> None:
    assert settings(LLAMA_8B, 1000)["paging"] == "blocks of 16"
    assert settings(V4, 1000)["paging"] == "blocks of 128"


def test_eight_sequences_save_seven_of_eight_prefixes() -> None:
    # 1,000 tokens take 63 blocks of 16, 500 shared ones hold 31 of them: 7 x 31 of the 8 x 1,000 tokens asked for.
    (prefix,) = (each for each in technique_map(LLAMA_8B, 1000) if each.technique == "prefix")
    assert prefix.memory_saved == 1 - Fraction(16 * (8 * 63 - 7 * 31), 8 * 1000)
    assert prefix.reads_saved == 0


def test_a_shared_prefix_is_a_step_after_whole_blocks() -> None:
    found = apply(LLAMA_8B, None, parse_techniques(share_prefix=2000, batch=64, block_size=16), 4090)
    paging, prefix = waterfall(found)[-2:]
    token = 131_072
    # 4,090 tokens take 256 blocks of 16; 2,000 of them lie in 125 shared blocks.
    assert (paging.technique, paging.stored_bytes) == ("paging", 64 * 4096 * token)
    assert (prefix.technique, prefix.stored_bytes) == ("prefix", (64 * 4096 - 63 * 2000) * token)
    assert not prefix.saves_reads
    assert prefix.saves_memory
    assert not paging.saves_memory


def test_sharing_layers_saves_memory_and_no_reads_and_offload_alone_moves_bytes() -> None:
    asked = parse_techniques(kv_cache_dtype="fp8", offload="cpu:1GiB")
    steps = {step.technique: step for step in waterfall(apply(what_if(LLAMA_8B, "cla=2"), None, asked, 131_072))}
    assert steps["cla"].saves_memory
    assert not steps["cla"].saves_reads
    # 16 GiB in 16 bits, half of it owned, half of that in fp8.
    assert (steps["offload"].stored_bytes, steps["offload"].moved_bytes) == (4 * GIB, GIB)
    assert all(step.moved_bytes == 0 for name, step in steps.items() if name != "offload")
    (only,) = waterfall(apply(dense(4, 8, 128), None, Techniques(), 1000))
    assert (only.technique, only.factor, only.moved_bytes) == (None, Fraction(1), 0)
