"""Units: what people type for tokens and bytes, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.units import GIB, both, counted, gb, gib, parse_bytes, parse_seconds, parse_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128k", 131072), ("128K", 131072), ("128Ki", 131072), ("128000", 128000), ("131,072", 131072),
        ("131_072", 131072), ("1M", 1048576), ("1m", 1048576), ("0.5k", 512), (" 8k ", 8192), (4096, 4096),
    ],
)  # fmt: skip
def test_tokens(text: str | int, expected: int) -> None:
    assert parse_tokens(text) == expected


@pytest.mark.parametrize(
    "text", ["0", "-5", "12q", "1e400", "", "k", "1.3", "0.0001k", "9" * 50, "١٢", "nan", 0, -1, True]
)
def test_tokens_refused(text: str | int) -> None:
    with pytest.raises(InputError, match=r"--ctx: found .*expected a whole number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GB", 80 * 10**9),
        ("9.5GiB", 19 * GIB // 2),
        ("512M", 512 << 20),
        ("21474836480", 20 * GIB),
        ("1.5TB", 15 * 10**11),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text, "--pool") == expected


def test_bytes_refused() -> None:
    with pytest.raises(InputError, match="--pool: found '5 parsecs'"):
        parse_bytes("5 parsecs", "--pool")


def test_seconds() -> None:
    assert parse_seconds("30ms", "--slo") == pytest.approx(0.03)
    assert parse_seconds("1.5min", "--slo") == 90
    with pytest.raises(InputError):
        parse_seconds("soon", "--slo")


def test_both_readings_are_named() -> None:
    assert gib(40 * GIB) == "40.00 GiB"
    assert gb(40 * GIB) == "42.95 GB"
    assert both(40 * GIB) == "40.00 GiB (42.95 GB)"
    assert both(584) == "584 B"


@given(st.integers(1, 10**12))
def test_plain_numbers_are_themselves(count: int) -> None:
    assert parse_tokens(str(count)) == parse_tokens(f"{count:,}") == count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (4 * GIB, "4.000 GiB"), (40 * GIB, "40.00 GiB"), (400 * GIB, "400.0 GiB"), (1023 * GIB, "1,023 GiB"),
        (GIB * 9996 // 1000, "9.996 GiB"), (GIB * 99996 // 1000, "100.0 GiB"), (GIB * 99996 // 100, "1,000 GiB"),
    ],
)  # fmt: skip
def test_sizes_have_four_significant_digits(count: int, text: str) -> None:
    assert gib(count) == text


def test_one_is_no_plural() -> None:
    assert [counted(count, "layer") for count in (0, 1, 2, 2048)] == ["0 layers", "1 layer", "2 layers", "2,048 layers"]


def test_limits_are_stated() -> None:
    assert parse_tokens("0", "--encoder-tokens", low=0) == 0
    with pytest.raises(InputError, match=r"from 0 to 1,000,000,000,000 such as"):
        parse_tokens(10**13, "--encoder-tokens", low=0)


@pytest.mark.parametrize("odd", [1.0, None, [1], b"1k"])
def test_other_types_are_refused(odd: object) -> None:
    for parse in (parse_tokens, parse_bytes, parse_seconds):
        with pytest.raises(InputError, match="--x: found"):
            parse(odd, "--x")  # type: ignore[operator]
