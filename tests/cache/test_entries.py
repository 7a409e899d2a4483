"""The law of entries on figures worked out by hand: caps, compression, one more token, the printed formula."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvplan.cache.entries import EntryLaw
from kvplan.cache.shard import shard_layer
from kvplan.spec.layers import Mamba2


@pytest.mark.parametrize(
    ("law", "n", "entries"),
    [
        (EntryLaw(), 7, 7),
        (EntryLaw(window=4), 3, 3),
        (EntryLaw(window=4), 10, 4),
        (EntryLaw(ratio=4), 7, 1),
        (EntryLaw(ratio=4), 8, 2),
        # A page summary is there from its page's first token: 17 tokens lie on two pages of 16.
        (EntryLaw(ratio=16, started=True), 16, 1),
        (EntryLaw(ratio=16, started=True), 17, 2),
        (EntryLaw(ratio=16, started=True), 32, 2),
        (EntryLaw(ratio=4, limit=5, constant=2), 40, 7),
        (EntryLaw(window=128, ratio=4), 1000, 32),
        (EntryLaw(constant=1500, grows=False), 9, 1500),
    ],
)
def test_entries_after_n_tokens(law: EntryLaw, n: int, entries: int) -> None:
    assert law.count(n) == entries


@pytest.mark.parametrize(
    ("law", "n", "more"),
    [
        (EntryLaw(), 5, Fraction(1)),
        (EntryLaw(window=4), 3, Fraction(1)),
        (EntryLaw(window=4), 4, Fraction(0)),
        (EntryLaw(ratio=4), 100, Fraction(1, 4)),
        # 5 entries of 4 tokens are full with 20 tokens, and no sooner.
        (EntryLaw(ratio=4, limit=5), 19, Fraction(1, 4)),
        (EntryLaw(ratio=4, limit=5), 20, Fraction(0)),
        (EntryLaw(limit=5), 4, Fraction(1)),
        (EntryLaw(limit=5), 5, Fraction(0)),
        (EntryLaw(constant=3, grows=False), 5, Fraction(0)),
    ],
)
def test_what_one_more_token_adds(law: EntryLaw, n: int, more: Fraction) -> None:
    assert law.slope(n) == more


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (EntryLaw(), "2,000"),
        (EntryLaw(window=128), "min(2,000, 128)"),
        (EntryLaw(ratio=4), "floor(2,000 / 4)"),
        (EntryLaw(ratio=16, started=True), "ceil(2,000 / 16)"),
        (EntryLaw(ratio=4, limit=5, constant=2), "(min(floor(2,000 / 4), 5) + 2)"),
        (EntryLaw(constant=1500, grows=False), "1,500"),
    ],
)
def test_the_formula_says_the_law(law: EntryLaw, text: str) -> None:
    assert law.text(2000) == text


@pytest.mark.parametrize(("groups", "ranks", "share"), [(8, 2, 4), (8, 8, 1), (1, 8, 1), (2, 8, 1)])
def test_mamba2_groups_are_split_and_then_copied(groups: int, ranks: int, share: int) -> None:
    # Groups that the ranks do not divide grow to the ranks: vllm-project/vllm 0.32
    # vllm/model_executor/layers/mamba/mamba_utils.py.
    sharded = shard_layer(Mamba2(64, 64, 128, groups, 4), ranks)
    assert isinstance(sharded, Mamba2)
    assert (sharded.heads, sharded.groups) == (64 // ranks, share)
