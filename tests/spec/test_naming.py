"""Block names and compact runs."""

from hypothesis import given
from hypothesis import strategies as st

from kvplan.spec.importers.naming import compact, name_blocks
from kvplan.spec.layers import FullAttention, NoCache, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance, Repeat

words = st.sampled_from(["a", "b", "c"])
sequences = st.lists(words, min_size=1, max_size=40) | st.builds(
    lambda unit, times, tail: unit * times + tail,
    st.lists(words, min_size=1, max_size=6),
    st.integers(1, 12),
    st.lists(words, max_size=4),
)


@given(sequences)
def test_compact_runs_expand_to_the_same_sequence(sequence):
    blocks = {name: NoCache() for name in "abc"}
    spec = ModelSpec("x", "x", "bfloat16", blocks, compact(sequence), Provenance("test", "verbatim"))
    assert spec.sequence() == sequence


def test_compact_finds_the_period():
    assert compact((["local"] * 5 + ["global"]) * 10 + ["local"] * 2) == (
        Repeat(10, ("5 x local", "global")),
        "2 x local",
    )
    assert compact(["attention"] * 80) == ("80 x attention",)


def test_names_tell_kinds_and_heads_apart():
    layers = [FullAttention(32, 8, 128), SlidingWindow(32, 8, 128, 512)]
    assert list(name_blocks(layers).values()) == ["global", "local"]
    assert list(name_blocks([FullAttention(32, 8, 128), FullAttention(32, 4, 128)]).values()) == ["heads8", "heads4"]
    twice = [FullAttention(32, 8, 128), FullAttention(16, 8, 128)]
    assert list(name_blocks(twice).values()) == ["attention", "attention_2"]
