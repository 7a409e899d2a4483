"""`kvplan estimate` of commands that name a GGUF file, of layer-splitting engines, and of versions not known."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvplan.engines.versions import load_rules
from kvplan.memory.terms import overheads
from kvplan.units import GIB
from tests.conftest import Ran

Cli = Callable[..., Ran]
#: Cos and sin of 128 rotary values at 131,072 positions, 2 B each, beside the weights of Llama 3.1 8B.
ROTARY = 131072 * 128 * 2


def served(kvplan_cli: Cli, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kvplan_cli("estimate", *args, "--json").out)
    return found


def weights(found: dict[str, Any]) -> float:
    size: int = next(term["nominal"] for term in found["memory"]["stages"][0]["terms"] if term["name"] == "weights")
    return (size - ROTARY) / GIB


# Sizes that ggml-org/llama.cpp tools/quantize/README.md publishes for Llama 3.1 8B, in GiB.
@pytest.mark.parametrize(
    ("command", "size"),
    [
        ("llama-server -m Meta-Llama-3.1-8B-Q4_K_M.gguf", 4.58),
        ("llama-server -m Meta-Llama-3.1-8B-Q8_0.gguf", 7.95),
        ("llama-server -m Meta-Llama-3.1-8B-F16.gguf", 14.96),
        ("ollama run llama3.1:8b-instruct-q8_0", 7.95),
        ("ollama run llama3.1:8b", 4.58),
    ],
)
def test_the_weights_are_those_of_the_file(kvplan_cli: Cli, command: str, size: float) -> None:
    found = served(kvplan_cli, "--command", command, "--gpu", "rtx-3090")
    assert weights(found) == pytest.approx(size, abs=0.01)
    assert any("give MODEL" in warning for warning in found["warnings"])
    given = served(kvplan_cli, "llama-3.1-8b", "--command", command, "--gpu", "rtx-3090")
    assert weights(given) == weights(found)
    assert not any("give MODEL" in warning for warning in given["warnings"])


def test_a_file_type_of_unknown_size_is_said(kvplan_cli: Cli) -> None:
    found = served(kvplan_cli, "--command", "llama-server -m Meta-Llama-3.1-8B-TQ1_0.gguf", "--gpu", "h100")
    assert weights(found) == pytest.approx(14.96, abs=0.01)
    assert any("size of TQ1_0 weights isn't known" in warning for warning in found["warnings"])


def test_ollama_keeps_a_model_that_has_a_narrow_format(kvplan_cli: Cli) -> None:
    # gpt-oss comes in MXFP4 everywhere; no other format is taken for it.
    run = served(kvplan_cli, "--command", "ollama run gpt-oss:20b", "--gpu", "h100")
    plain = served(kvplan_cli, "gpt-oss-20b", "--engine", "ollama", "--gpu", "h100")
    assert weights(run) == weights(plain)


def test_a_context_of_0_is_the_models_own(kvplan_cli: Cli) -> None:
    for command in ("llama-server -m llama-3.1-8b.gguf -c 0", "llama-server -m llama-3.1-8b.gguf"):
        found = served(kvplan_cli, "--command", command, "--gpu", "h100")
        assert (found["engine"]["max_model_len"], found["engine"]["max_concurrency"]) == (131072, 1.0)


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_layer_splits_have_layouts_of_layers_alone(kvplan_cli: Cli, engine: str) -> None:
    args = ("llama-3.1-8b", "--engine", engine, "--gpu", "h100", "--num-gpus", "4", "--layouts", "--ctx", "8k")
    rows = served(kvplan_cli, *args)["rows"]
    assert sorted((row["tensor"], row["pipeline"], row["data"], row["decode_context"]) for row in rows) == [
        (1, 1, 4, 1), (1, 2, 2, 1), (1, 4, 1, 1),
    ]  # fmt: skip
    assert all(row["starts"] for row in rows)


def test_only_engines_with_decode_context_ranks_have_rows_of_them(kvplan_cli: Cli) -> None:
    args = ("deepseek-v3", "--gpu", "h200", "--num-gpus", "8", "--layouts", "--ctx", "8k", "--engine")
    sizes = {engine: {row["decode_context"] for row in served(kvplan_cli, *args, engine)["rows"]}
             for engine in ("vllm", "sglang", "tensorrt-llm")}  # fmt: skip
    assert sizes == {"vllm": {1, 2, 4, 8}, "sglang": {1}, "tensorrt-llm": {1}}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp"])
def test_memory_and_layout_know_the_same_releases(engine: str) -> None:
    rules, figures = load_rules(engine.replace("-", "_").replace(".", "_")), overheads()[engine]
    assert (str(figures["default"]), str(figures["oldest"])) == (str(rules["default"]), str(rules["oldest"]))


@pytest.mark.parametrize(("version", "notes"), [("5", 1), ("0.12", 0)])
def test_a_version_is_answered_once(kvplan_cli: Cli, version: str, notes: int) -> None:
    found = served(kvplan_cli, "llama-3.1-8b", "--engine", f"lmdeploy@{version}", "--gpu", "h100")
    assert sum("answered as" in warning for warning in found["warnings"]) == notes
