"""How an error spells what it found: one printable line, in the words of JSON and YAML."""

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import MAX_SENTENCE, InputError, did_you_mean_name, nearest, show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([False, None, 1.5], "[false, null, 1.5]"),
        ({"a": None}, "{'a': null}"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (datetime.date(2026, 1, 2), "the date 2026-01-02"),
        ("it", "'it'"),
    ],
)
def test_values_are_spelt_as_files_spell_them(value: object, text: str) -> None:
    assert show(value) == text


def test_a_number_past_pythons_limit() -> None:
    assert show(10**5000) == "a int too large to print"


def test_long_values_are_cut() -> None:
    assert len(show(["x" * 50] * 10_000)) == len(show("x" * 100_000)) == 60


@given(st.text())
def test_a_sentence_is_one_printable_line(text: str) -> None:
    assert str(InputError(text)).isprintable()


def test_a_sentence_is_bounded_and_keeps_both_ends() -> None:
    sentence = str(InputError("a" + "x" * 100_000 + "z"))
    assert len(sentence) <= MAX_SENTENCE and sentence[0] == "a" and sentence[-1] == "z"


def test_only_a_close_word_is_offered() -> None:
    assert nearest("lama", ["llama", "falcon"]) == ["llama"]
    assert nearest("zzz", ["llama", "falcon"]) == []


def test_a_spelling_offers_its_name() -> None:
    assert did_you_mean_name("flaot16", {"float16": "fp16", "fp8": "fp8"}) == "; nearest: fp16"
