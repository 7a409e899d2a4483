"""The twelve miniatures give the figures they are known by (issue: part 2 of the plan; each follows by hand)."""

from __future__ import annotations

import pytest

from kvplan.cache.techniques import find_technique
from kvplan.cache.techniques.miniatures import Miniature, miniature, miniatures


def run(name: str) -> Miniature:
    return miniature(find_technique(name))


def test_all_twelve_run_in_order() -> None:
    assert [each.technique.number for each in miniatures()] == list(range(1, 13))


def test_heads() -> None:
    outputs = run("gqa").outputs
    assert outputs["scalars"] == {"MHA": 768, "GQA": 192, "MQA": 96}
    assert outputs["head_map"] == {"MHA": [*range(8)], "GQA": [0, 0, 0, 0, 1, 1, 1, 1], "MQA": [0] * 8}


def test_sharing() -> None:
    assert run("cla").outputs == {"scalars": [2048, 1024], "scalars_read": [2048, 2048]}


def test_window() -> None:
    outputs = run("window").outputs
    assert outputs["held"][-1] == [6, 7, 8, 9]
    assert outputs["most"] == max(map(len, outputs["held"])) == 4
    assert len(outputs["held"]) == 10


def test_latent() -> None:
    outputs = run("mla").outputs
    assert outputs["scalars_per_token"] == [64, 12]
    assert outputs["factor"] == pytest.approx(5.33, abs=0.004)


def test_recurrent() -> None:
    assert run("hybrid").outputs == {"attention_kib": [64, 2048], "state_kib": [16, 16]}


def test_compressed() -> None:
    assert run("csa").outputs == {"stored": 8, "read": 2}


def test_quest() -> None:
    assert run("quest").outputs == {"scores": [2.5, 6.0, 4.0, -1.0], "selected": [1, 2], "read": 4, "stored": 8}


def test_quantization() -> None:
    outputs = run("quantization").outputs
    assert outputs["codes"] == [-7, -4, -1, 2, 4, 7]
    assert outputs["payload_bits"] == [96, 24]
    assert outputs["scale_bits"] == 16


def test_eviction() -> None:
    assert run("eviction").outputs["kept"] == [0, 2, 5, 7, 8, 9]


def test_paging() -> None:
    assert run("paging").outputs["tables"] == {"A": [0, 1, 2], "B": [3, 4], "C": [5, 0]}


def test_prefix() -> None:
    assert run("prefix").outputs == {"blocks_hit": 2, "blocks": 3, "tokens_hit": 8}


def test_offload() -> None:
    assert run("offload").outputs["moves"] == ["A out", "A back", "B out"]
