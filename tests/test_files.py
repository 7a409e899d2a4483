"""Untrusted files: bounded, without code, and never half-written."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.files import parse_json, parse_yaml, read_json_object, read_text, write_atomic, write_text_atomic


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "an empty file"),
        ("a: 1\na: 2", "line 2, column 1: found the key 'a' twice"),
        ("a: &x [1]\nb: *x", "line 2, column 4: found the alias"),
        ("a: &a [z]\nb: &b [*a,*a]\nc: [*b,*b]", "found the alias"),
        ("a: !!python/object/apply:os.system ['true']", "found the tag"),
        ("a: [1,", "line 2"),
        ("a: b: c", "line 1, column 5"),
        ("? [a]\n: 1", "no scalar"),
        ("[" * 100 + "]" * 100, "nesting deeper than 64"),
        ("a: 2026-13-45", "expected plain YAML"),
        ("a: \x00", "expected plain YAML"),
        ("a: 0200", "line 1, column 4: found 0200, which YAML 1.1 and 1.2 read as different numbers"),
        ("a: 2:08", "found 2:08"),
        ("a: 1:30.5", "found 1:30.5"),
        ("null: 1\nnull: 2", "the key null twice"),
    ],
)
def test_yaml_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        parse_yaml(text, "f.yaml")
    assert "\n" not in str(caught.value)


def test_yaml_read() -> None:
    assert parse_yaml("a: 1\nb: [x, {c: null}]\n", "f.yaml") == {"a": 1, "b": ["x", {"c": None}]}
    assert parse_yaml("[0, -7, 0.5, 1e3, '0200', 2.0e+3]", "f.yaml") == [0, -7, 0.5, "1e3", "0200", 2000.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "an empty file"),
        ("hello", "no JSON at line 1, column 1"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ("[" * 10_000 + "]" * 10_000, "nesting"),
        ("9" * 10_000, "expected a JSON document"),
        ('{"a": ', "no JSON at line 1"),
    ],
)
def test_json_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        parse_json(text, "f.json")
    assert "\n" not in str(caught.value)


def test_json_top_level_must_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(InputError, match="a JSON list at the top, expected an object"):
        read_json_object(path)


def test_reading_is_bounded_and_named(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(b" " * (50 << 20))
    with pytest.raises(InputError, match=r"big\.json: found more than 16,777,216 bytes"):
        read_text(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no UTF-8"):
        read_text(path)
    with pytest.raises(InputError, match="can't be read"):
        read_text(tmp_path / "absent")
    with pytest.raises(InputError, match="can't be read"):
        read_text(tmp_path)


@given(st.text(max_size=200))
def test_any_text_is_an_answer_or_one_sentence(text: str) -> None:
    for parse in (parse_json, parse_yaml):
        try:
            parse(text, "f")
        except InputError as error:
            assert "\n" not in str(error)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_text_atomic(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(InputError, match="can't be written"):
        write_text_atomic(tmp_path / "absent" / "out.json", "text")


def test_a_write_goes_through_links_and_keeps_the_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text_atomic(link, "new")
    assert (real.read_text(), link.is_symlink(), real.stat().st_mode & 0o777) == ("new", True, 0o640)


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "new.yaml", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "new.yaml").stat().st_mode & 0o777 == 0o640


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for target, found in ((pipe, "a device, pipe or socket"), (tmp_path, "a directory"), (loop, "can't be written")):
        with pytest.raises(InputError, match=found) as caught:
            write_text_atomic(target, "text")
        assert "\n" not in str(caught.value)
    assert pipe.is_fifo()
    with pytest.raises(InputError, match="no path"):
        write_text_atomic(Path("a\0b"), "text")
    with pytest.raises(InputError, match="can't be written"):
        write_text_atomic(tmp_path / ("x" * 300), "text")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["loop", "pipe"]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def full(temporary: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"out: can't be written \(No space left on device\)"):
        write_atomic(tmp_path / "out", full)
    assert not list(tmp_path.iterdir())
