"""A composed cache per rank, and options from lists: what holds for every combination."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.answers.composed import CacheOptions, RankCache, settle
from kvplan.cache.techniques.runtime import Techniques
from kvplan.errors import InputError
from kvplan.spec.resolve import resolve_model

LISTS = (
    (),
    ({"block-size": 16},),
    ({"evict": "tova:2048"},),
    ({"evict": "h2o:0.1+0.1"}, {"block-size": 32}),
    ({"sparse-read": "quest:page=16,budget=2048"}, {"block-size": 16}),
    ({"kv-cache-dtype": "fp8"}, {"share-prefix": 64}),
)
MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b")
techniques = st.sampled_from(LISTS)
models = st.sampled_from(MODELS)
lengths = st.integers(64, 200_000)


def held(model: str, items: tuple[dict[str, object], ...], n: int, ranks: int = 1) -> RankCache:
    return RankCache(CacheOptions(techniques=items).on(resolve_model(model).spec).at(n), ranks)


@given(models, techniques, lengths)
def test_one_rank_holds_the_whole_sequence(model: str, items: tuple[dict[str, object], ...], n: int) -> None:
    cache = held(model, items, n)
    assert cache.sequence_bytes(n) == cache.composition.sequence_bytes


@given(models, techniques, lengths, st.sampled_from([2, 4, 8]))
def test_ranks_together_hold_no_less_than_the_sequence(
    model: str, items: tuple[dict[str, object], ...], n: int, ranks: int
) -> None:
    share = held(model, items, n, ranks).sequence_bytes(n)
    whole = held(model, items, n).sequence_bytes(n)
    assert share * ranks >= whole >= share


@given(models, techniques, lengths, st.integers(1, 1 << 38))
def test_the_longest_context_fits_and_one_token_more_does_not(
    model: str, items: tuple[dict[str, object], ...], n: int, budget: int
) -> None:
    cache, limit = held(model, items, n), 1 << 20
    longest = cache.longest_context(budget, limit)
    if longest:
        assert cache.sequence_bytes(longest) <= budget
    if longest < limit and longest >= 64:
        assert cache.sequence_bytes(longest + 1) > budget


@given(models, techniques, lengths, st.integers(1, 1 << 38))
def test_the_most_sequences_fit_and_one_more_does_not(
    model: str, items: tuple[dict[str, object], ...], n: int, budget: int
) -> None:
    cache = held(model, items, n)
    most = cache.most_sequences(budget, 10**9)
    if most:
        assert cache.batch_bytes(most) <= budget
    if most < 10**9:  # sequences that are equal to the last token cost nothing beside the first
        assert cache.batch_bytes(most + 1) > budget


@given(models, lengths, st.integers(1, 64))
def test_offloaded_bytes_are_those_missing_on_the_device(model: str, n: int, batch: int) -> None:
    cache = held(model, ({"offload": "cpu:1GiB"},), n)
    plain = held(model, (), n)
    assert cache.batch_bytes(batch) == max(0, plain.batch_bytes(batch) - (1 << 30))


def test_a_list_and_options_make_one_set_of_techniques() -> None:
    settled = settle([{"kv-cache-dtype": "fp8"}, {"batch": 4}], "auto", [], 1)
    assert (settled.kv_cache_dtype, settled.batch, settled.skip_layers) == ("fp8", 4, ())
    assert settle(Techniques(), "fp8", ["sliding_window"], 8) == Techniques("fp8", ("sliding_window",), batch=8)
    assert settle([{"batch": 4}], "auto", [], 4).batch == 4
    with pytest.raises(InputError, match="--batch: found 8, and 4 in the list"):
        settle([{"batch": 4}], "auto", [], 8)


def test_what_ifs_of_a_list_are_those_of_the_option() -> None:
    listed = ({"what-if": "window=1024:3/4"}, {"evict": "tova:2048"}, {"what_if": "attention-every=4"})
    options = CacheOptions(techniques=({"evict": "tova:2048"},), what_ifs=("attention-every=4", "window=1024:3/4"))
    spec = resolve_model("llama-3.1-8b").spec
    # 2 global layers that keep 2,048 tokens and 6 windows, 4,096 B a token; 24 states of 2 MiB.
    expected = (2 * 2048 + 6 * 1024) * 4096 + 24 * (1 << 21)
    for asked in (CacheOptions(techniques=listed), options):
        assert asked.on(spec).at(32768).needed_bytes == expected
    with pytest.raises(InputError, match="expected text such as 'cla=2'"):
        CacheOptions(techniques=({"what-if": 2},)).on(spec)
