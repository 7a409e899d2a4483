"""What-ifs: the layers they make, against arithmetic by hand, and what they refuse."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques import what_if
from kvplan.cache.techniques.what_if import assume
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from tests.techniques.shapes import dense, spec

LLAMA_70B = dense(80, 8, 128, 64)
AUTO = resolve_precision()


def needed(model: ModelSpec, n: int) -> int:
    return int(plan_cache(model, AUTO).needed_bytes(n))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kv-heads=64", 80 * 2 * 64 * 128 * 2 * 4096),
        ("kv-heads=1", 80 * 2 * 128 * 2 * 4096),
        ("cla=3", 27 * 4096 * 4096),
        ("mlkv=4", 4 * 4096 * 4096),
        ("owners=0+40", 2 * 4096 * 4096),
        ("owners=0-19", 20 * 4096 * 4096),
        ("yoco=1024", (40 * 1024 + 4096) * 4096),
        ("window=1024", 80 * 1024 * 4096),
        ("window=1024:5/6", (67 * 1024 + 13 * 4096) * 4096),
        ("mla=512+64", 80 * 576 * 2 * 4096),
        ("mla=512+0", 80 * 512 * 2 * 4096),
        ("mla=1+64", 80 * 65 * 2 * 4096),
        ("attention-every=4", 20 * 4096 * 4096 + 60 * 64 * 128 * 128 * 4),
        ("dsa=2048", 80 * (4096 + 256) * 4096),
    ],
)
def test_bytes_of_llama_70b_at_4096_tokens(text: str, expected: int) -> None:
    """4,096 B a token and layer (2 x 8 x 128 x 2); 5 of 6 over 80 layers leave 13 global ones."""
    assert needed(what_if(LLAMA_70B, text), 4096) == expected


def test_csa_stores_v4s_entries_in_turn() -> None:
    found = plan_cache(what_if(dense(2, 8, 128, 64), "csa=4+128"), AUTO)
    # (128 + 1,024) x 1,024 + 1,024 x 256 and (128 + 32) x 1,024: DeepSeek V4's bf16 records at 4,096 tokens.
    assert found.growing_bytes(4096) == 1152 * 1024 + 1024 * 256 + 160 * 1024


def test_sharing_reads_what_it_read_before() -> None:
    for text in ("cla=2", "mlkv=8", "owners=0-19"):
        assert plan_cache(what_if(LLAMA_70B, text), AUTO).read_bytes(4096) == plan_cache(LLAMA_70B, AUTO).read_bytes(
            4096
        )


def test_a_hybrid_takes_the_models_own_recurrent_shape() -> None:
    layer = kinds.GatedDelta(16, 128, 32, 128, 4)
    model = what_if(spec((8, kinds.FullAttention(16, 2, 256)), (8, layer)), "attention-every=2")
    assert model.counts == {"b1": 12, "b0": 4}


def test_parallel_mixers_keep_their_other_branch() -> None:
    both = kinds.Parallel((kinds.FullAttention(8, 8, 64), kinds.Lightning(8, 64)))
    model = spec((4, both))
    state = 4 * 8 * 64 * 64 * 4
    assert needed(what_if(model, "cla=2"), 100) == 2 * 2048 * 100 + state
    assert needed(what_if(model, "window=10"), 100) == 4 * 2048 * 10 + state


def test_marks_say_that_it_needs_training() -> None:
    model = what_if(what_if(LLAMA_70B, "kv-heads=4"), "cla=2")
    assert [mark.partition(":")[0] for mark in model.assumptions] == ["what-if kv-heads=4", "what-if cla=2"]
    assert all("needs training" in mark for mark in model.assumptions)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("kv-heads=7", "nearest: 8"),
        ("kv-heads=100", "nearest: 64"),
        ("kv-heads=0", "kv-heads=8"),
        ("kv-heads", "kv-heads=8"),
        ("cla=", "expected a value; nearest: cla=2"),
        ("kvheads=8", "nearest: kv-heads"),
        ("cla=1", "nearest: 2"),
        ("cla=81", "nearest: 80"),
        ("cla=two", "cla=2"),
        ("mlkv=81", "nearest: 80"),
        ("owners=3", "expected layer 0"),
        ("owners=0+80", "nearest: 79"),
        ("owners=a", "owners=0-19"),
        ("window=1024:6/5", "window=1024:5/6"),
        ("window=0", "128k"),
        ("mla=512", "mla=512+64"),
        ("mla=0+64", "mla=512+64"),
        ("attention-every=1", "nearest: 2"),
        ("attention-every=90", "nearest: 80"),
        ("csa=0", "csa=4+128"),
        ("csa=0+128", "csa=4+128"),
        ("evict=snapkv:2048", "--evict"),
        ("quest=1", "--sparse-read"),
    ],
)
def test_a_bad_what_if_names_the_nearest_valid_choice(text: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        what_if(LLAMA_70B, text)
    assert nearest in str(caught.value)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (spec((4, kinds.LatentAttention(128, 512, 64))), "kv-heads=8"),
        (spec((4, kinds.LatentAttention(128, 512, 64))), "window=1024"),
        (spec((4, kinds.LatentAttention(128, 512, 64))), "yoco=1024"),
        (spec((4, kinds.Lightning(8, 64))), "cla=2"),
        (spec((4, kinds.Lightning(8, 64))), "attention-every=2"),
        (spec((4, kinds.Lightning(8, 64))), "csa=4"),
        (spec((4, kinds.Lightning(8, 64))), "mla=512+64"),
        (what_if(LLAMA_70B, "cla=2"), "cla=2"),
        (what_if(LLAMA_70B, "cla=2"), "window=1024"),
        (what_if(LLAMA_70B, "cla=2"), "attention-every=4"),
        (what_if(LLAMA_70B, "cla=2"), "csa=4"),
        (dense(1, 8, 128), "attention-every=2"),
        (dense(1, 8, 128), "yoco=1024"),
    ],
)
def test_a_model_that_it_has_no_meaning_for_is_refused(model: ModelSpec, text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        what_if(model, text)


LLAMA_8B = dense(32, 8, 128, 32)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # 8 attention layers of 4,096 B a token, 6 of them windows; 24 states of 32 x 128 x 128 fp32 values.
        (("window=1024:3/4", "attention-every=4"), (2 * 32768 + 6 * 1024) * 4096 + 24 * 32 * 128 * 128 * 4),
        # 32 layers of which every second one owns; windows and global layers share among themselves.
        (("window=1024:3/4", "cla=2"), (12 * 1024 + 4 * 32768) * 4096),
        (("mla=512+64", "cla=2"), 16 * 576 * 2 * 32768),
        # DeepSeek V3.2's record in 16 bits: a latent of 576 values and an index key of 128.
        (("dsa=2048", "mla=512+64"), 32 * (576 + 128) * 2 * 32768),
        (("window=1024", "mla=512+64"), 32 * 576 * 2 * 1024),
        (("kv-heads=4", "cla=2", "window=1024:1/2"), (8 * 1024 + 8 * 32768) * 2048),
    ],
)
def test_what_ifs_multiply_in_whatever_order_they_are_written(texts: tuple[str, ...], expected: int) -> None:
    found = {needed(assume(LLAMA_8B, order), 32768) for order in permutations(texts)}
    assert found == {expected}


def test_compression_takes_the_attention_layers_that_recurrence_leaves() -> None:
    # Of 32 layers 8 stay attention: (128 + 8,192) records of 1,024 B and 8,192 index keys of 256 B each.
    for order in permutations(("csa=4", "attention-every=4")):
        found = plan_cache(assume(LLAMA_8B, order), AUTO)
        assert found.growing_bytes(32768) == 8 * ((128 + 8192) * 1024 + 8192 * 256)


@pytest.mark.parametrize(
    "texts",
    [
        ("mla=512+64", "csa=4"),
        ("kv-heads=4", "mla=512+64"),
        ("kv-heads=4", "csa=4"),
        ("window=1024", "csa=4"),
        ("dsa=2048", "csa=4"),
        ("cla=2", "csa=4"),
        ("cla=2", "mlkv=4"),
        ("yoco=1024", "owners=0-3"),
        ("yoco=1024", "window=512"),
        ("yoco=1024", "mla=512+64"),
        ("window=1024:1/2", "window=512"),
    ],
)
def test_one_that_would_undo_another_is_refused_in_either_order(texts: tuple[str, str]) -> None:
    for order in permutations(texts):
        with pytest.raises(InputError, match=r"^--what-if: found .* expected") as caught:
            assume(LLAMA_8B, order)
        assert all(text in str(caught.value) for text in texts)
