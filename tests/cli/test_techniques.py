"""`kvplan techniques` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
Cli = Callable[..., Ran]


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return found


def test_the_list_has_twelve_with_engines(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli("techniques", "list", "--json").out)
    jsonschema.validate(document, schema("techniques"))
    entries = document["techniques"]
    assert [entry["number"] for entry in entries] == list(range(1, 13))
    assert all(len(entry["engines"]) >= 6 and entry["source"] and entry["headline"] for entry in entries)
    vllm = {entry["name"]: entry["engines"][0] for entry in entries}
    assert vllm["quest"]["support"] == "no"
    assert vllm["prefix"]["support"] == "yes"


def test_without_a_word_it_lists(kvplan_cli: Cli) -> None:
    assert kvplan_cli("techniques").out == kvplan_cli("techniques", "list").out


@pytest.mark.parametrize("name", ["mla", "4", "Latent"])
def test_one_technique_by_name_number_and_alias(kvplan_cli: Cli, name: str) -> None:
    document = json.loads(kvplan_cli("techniques", "show", name, "--json").out)
    jsonschema.validate(document, schema("techniques"))
    assert [entry["name"] for entry in document["techniques"]] == ["mla"]
    text = kvplan_cli("techniques", "show", name).out
    assert "--what-if mla=512+64" in text
    assert "trained into the checkpoint" in text
    assert max(map(len, text.splitlines())) <= 80


# The figures that the issue of the twelve techniques gives for the miniatures.
MINIATURES: dict[str, dict[str, Any]] = {
    "gqa": {"scalars": {"MHA": 768, "GQA": 192, "MQA": 96}},
    "cla": {"scalars": [2048, 1024]},
    "window": {"most": 4},
    "mla": {"scalars_per_token": [64, 12]},
    "hybrid": {"attention_kib": [64, 2048], "state_kib": [16, 16]},
    "csa": {"stored": 8, "read": 2},
    "quest": {"scores": [2.5, 6.0, 4.0, -1.0], "selected": [1, 2], "read": 4, "stored": 8},
    "quantization": {"codes": [-7, -4, -1, 2, 4, 7], "payload_bits": [96, 24]},
    "eviction": {"kept": [0, 2, 5, 7, 8, 9]},
    "paging": {"tables": {"A": [0, 1, 2], "B": [3, 4], "C": [5, 0]}},
    "prefix": {"blocks_hit": 2, "blocks": 3},
    "offload": {"moves": ["A out", "A back", "B out"]},
}


@pytest.mark.parametrize("name", MINIATURES)
def test_miniatures_give_the_published_figures(kvplan_cli: Cli, name: str) -> None:
    document = json.loads(kvplan_cli("techniques", "demo", name, "--json").out)
    jsonschema.validate(document, schema("techniques-demo"))
    outputs = document["miniatures"][0]["outputs"]
    assert {key: outputs[key] for key in MINIATURES[name]} == MINIATURES[name]


def test_all_miniatures_as_text(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("techniques", "demo")
    assert ran.code == 0
    assert "MHA 768; GQA 192; MQA 96" in ran.out
    assert "[6, 7, 8, 9]" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert len(json.loads(kvplan_cli("techniques", "demo", "--json").out)["miniatures"]) == 12


def test_quest_stands_on_one_axis_and_mla_on_both(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli("techniques", "map", "llama-3.1-70b", "--ctx", "128k", "--json").out)
    jsonschema.validate(document, schema("techniques-map"))
    places = {place["technique"]: place for place in document["places"]}
    assert len(places) == 12
    # One summary a page of 16, as wide as a token.
    assert places["quest"]["memory_saved"] == -1 / 16
    assert places["quest"]["reads_saved"] > 0.85
    # 576 values of one latent against 2,048 of K and V.
    assert places["mla"]["memory_saved"] == places["mla"]["reads_saved"] == 1 - 576 / 2048
    assert places["cla"]["memory_saved"] == 0.5
    assert places["cla"]["reads_saved"] == 0
    assert places["offload"]["memory_saved"] == 0


def test_techniques_without_a_place_say_why(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("techniques", "map", "deepseek-v3.2", "--ctx", "128k")
    assert "Without a place here" in ran.out
    assert "addresses every entry" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= 80
    document = json.loads(kvplan_cli("techniques", "map", "deepseek-v3.2", "--json").out)
    refused = [place for place in document["places"] if place["memory_saved"] is None]
    assert refused
    assert all(place["reason"] and place["reads_saved"] is None for place in refused)


@pytest.mark.parametrize(
    ("args", "found", "expected"),
    [
        (("show", "mlaa"), "technique: found 'mlaa'", "nearest: mla"),
        (("demo", "13"), "technique: found '13'", "expected one of gqa"),
        (("map", "llama-3.1-8b", "--plot", "map.jpg"), "--plot: found 'map.jpg'", ".png"),
        (("map", "falcon-7b"), "--ctx", "declares no limit"),
        (("draw",), "draw", ""),
    ],
)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, args: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("techniques", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err
