"""YAML of other tools: aliases, merge keys and tags are read, with lines, within bounds."""

from __future__ import annotations

import pytest

from kvplan.errors import InputError
from kvplan.files import compose_yaml


def test_every_value_knows_its_line() -> None:
    (document,) = compose_yaml("a:\n  - x\n  - |\n    one\n    two\nb: 'q'\n", "f.yaml")
    items = document.value["a"].value
    assert [(item.line, item.style) for item in items] == [(2, ""), (3, "|")]
    assert (items[1].text, items[1].end_line) == ("one\ntwo\n", 5)
    assert document.key_lines == {"a": 1, "b": 6}
    assert document.plain() == {"a": ["x", "one\ntwo\n"], "b": "q"}


def test_text_as_written_beside_the_value() -> None:
    (document,) = compose_yaml("a: on\nb: 0x10\nc: 2024-13-45\nd: ~\n", "f.yaml")
    assert [(node.text, node.value) for node in document.value.values()] == [
        ("on", True),
        ("0x10", 16),
        ("2024-13-45", "2024-13-45"),
        ("~", None),
    ]


def test_aliases_and_merge_keys() -> None:
    (document,) = compose_yaml("base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\nsame: *b\n", "f.yaml")
    assert document.plain() == {"base": {"x": 1, "y": 2}, "own": {"x": 1, "y": 3}, "same": {"x": 1, "y": 2}}
    assert document.value["own"].key_lines["y"] == 4


def test_several_documents_and_unknown_tags() -> None:
    first, second = compose_yaml("a: !reference [x, y]\n---\nb: !Sub 'z'\n", "f.yaml")
    assert first.value["a"].tag == "!reference"
    assert second.value["b"].value == "z"


def test_a_key_given_twice_is_reported_and_the_last_counts() -> None:
    (document,) = compose_yaml("a: 1\na: 2\n", "f.yaml")
    assert document.duplicates == [("a", 2)]
    assert document.plain() == {"a": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a\n  b: *a\n", "line 1, column 4: found a value that contains itself"),
        ("[" * 100 + "]" * 100, "nesting deeper than 64"),
        ("a: [1", r"f\.yaml: line \d, column \d: .*, expected YAML"),
        ("a: *unknown", "found undefined alias"),
        ("a: !!python/object:os.system x", None),
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9)),
            "500,000 nodes once aliases are expanded",
        ),
    ],
)
def test_bounds(text: str, message: str | None) -> None:
    if message is None:
        (document,) = compose_yaml(text, "f.yaml")
        assert document.value["a"].value == "x"
        return
    with pytest.raises(InputError, match=message):
        compose_yaml(text, "f.yaml")
