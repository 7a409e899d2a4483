"""The support matrix: levels as read from the engines' sources, refusals that name the engines that have it."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cache.formats import find_format
from kvplan.cache.layout import COMPRESSOR_STATE, INDEX_STATE, RECURRENT_STATE, LayerContext, layer_parts
from kvplan.cache.precision import resolve_precision
from kvplan.engines.base import Device, Parallelism
from kvplan.engines.options import Option, read_options
from kvplan.engines.registry import canonical_engine, engine_names, find_engine
from kvplan.engines.support import (
    engines_with,
    kv_dtypes,
    require,
    require_dtype,
    require_layers,
    supports,
    supports_kind,
)
from kvplan.engines.versions import load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance


def model(*blocks: Any) -> ModelSpec:
    named = {f"b{i}": block for i, block in enumerate(blocks)}
    return ModelSpec("m", "jamba", "bfloat16", named, tuple(named), Provenance("t", "verbatim"), max_context=4096)


@pytest.mark.parametrize(
    ("engine", "technique", "kind", "level"),
    [
        ("sglang", "window", "sliding_window", "P"),
        ("sglang", "window", "full_attention", "-"),
        ("sglang", "hybrid", "mamba1", "N"),
        ("llama.cpp", "hybrid", "rwkv", "Y"),
        ("ik_llama.cpp", "window", "sliding_window", "P"),
        ("ollama", "mla", "latent_attention", "Y"),
        ("transformers", "kivi", None, "P"),
        ("lmdeploy", "cla", None, "N"),
        ("trtllm", "eviction", None, "P"),
        ("vllm", "dsa", None, "Y"),
    ],
)
def test_levels(engine: str, technique: str, kind: str | None, level: str) -> None:
    assert supports(engine, technique, kind).level == level


def test_engines_that_have_it_best_first() -> None:
    assert engines_with("kivi") == ["transformers"]
    assert engines_with("quest")[0] == "sglang" and "vllm" not in engines_with("quest")
    assert engines_with("paging") == ["vllm", "sglang", "tensorrt-llm", "lmdeploy"]


def test_refusals_name_the_engines_that_have_it() -> None:
    with pytest.raises(InputError, match=r"lmdeploy has no cla; engines that have it: vllm, llama\.cpp"):
        require("lmdeploy", "cla")
    with pytest.raises(InputError, match=r"sglang has no mamba1 layers, which m needs; .*vllm, llama\.cpp"):
        require_layers("sglang", model(kinds.Mamba1(64, 16, 4)))
    with pytest.raises(
        InputError, match=r"expected one of bf16, fp16, fp8, nvfp4; engines that have it: vllm, lmdeploy"
    ):
        require_dtype("tensorrt-llm", "int4")
    assert require_dtype("sglang", "fp8_e4m3") == "fp8"


def test_partly_is_a_warning() -> None:
    notes = require_layers("sglang", model(kinds.SlidingWindow(8, 8, 64, 16)))
    assert len(notes) == 1 and "sliding_window" in notes[0]


def test_every_engine_answers_for_every_kind() -> None:
    data = load_rules("support")["layer_kinds"]
    for engine in engine_names():
        for kind in kinds.LAYER_BY_KIND:
            if kind != "parallel":
                assert supports_kind(engine, kind).level in ("Y", "P", "N")
    whole = {kind for kind in kinds.LAYER_BY_KIND if kind != "parallel"}
    assert all(set(data[engine]) == whole for engine in data if engine not in load_rules("support")["inherits"])


def test_dtypes_are_known_formats() -> None:
    for engine in engine_names():
        assert all(find_format(name).name == name for name in kv_dtypes(engine))


@pytest.mark.parametrize("call", [lambda: canonical_engine("vlm"), lambda: find_engine("vllm@")])
def test_unknown_engines(call: Any) -> None:
    with pytest.raises(InputError, match="--engine: found"):
        call()


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="nearest: quest"):
        supports("vllm", "qest")
    with pytest.raises(InputError, match="nearest: full_attention"):
        supports_kind("vllm", "full_atention")


def test_find_engine() -> None:
    engine, version = find_engine("llama.cpp@b5614")
    assert (engine.name, version) == ("llama.cpp", "b5614")
    assert {find_engine(name)[0].name for name in engine_names()} == set(engine_names())


@pytest.mark.parametrize("name", [name for name in engine_names() if name != "vllm"])
def test_every_engine_serves_a_dense_model(name: str) -> None:
    """2 layers x 8 heads x 64 x 2 x 2 B = 4,096 B a token: a context of 4,096 needs 16 MiB, 1 GiB holds it."""
    engine, _ = find_engine(name)
    spec = model(kinds.FullAttention(8, 8, 64), kinds.FullAttention(8, 8, 64))
    answer = engine.plan(spec, {}, Parallelism(), [1 << 30], Device("any", 1 << 34))
    assert answer.refused is None and (answer.capacity_tokens or 0) >= 4096
    assert answer.to_dict()["name"] == name
    assert engine.plan(spec, {}, Parallelism(), [0], Device("any", 1 << 34)).refused is not None


def test_state_names_the_engines_look_for() -> None:
    context = LayerContext(resolve_precision())
    four = kinds.CompressedSparse(64, 512, 64, 128, 4, overlap=True, indexer=kinds.Indexer(128))
    names = {part.name for part in (*layer_parts(four, context), *layer_parts(kinds.Mamba1(64, 16, 4), context))}
    assert {COMPRESSOR_STATE, INDEX_STATE, RECURRENT_STATE} <= names


def test_rules_by_version() -> None:
    data = {
        "default": "1.10",
        "oldest": "1.0",
        "rules": {"x": [{"until": "1.9", "value": 1}, {"from": "1.9", "value": 2}]},
    }
    assert [rules_at("e", data, version)["x"] for version in ("1.8.5", "1.9", "v1.10rc2", None)] == [1, 2, 2, 2]
    assert rules_at("e", data, "0.9").warning and rules_at("e", data, "2.0")["x"] == 2
    assert rules_at("e", data, "1.10.3").warning is None


@pytest.mark.parametrize("value", ["-1", True, "1.5", "9" * 30, "11"])
def test_whole_options_are_strict(value: Any) -> None:
    table = (Option("n", "whole", low=0, high=10),)
    with pytest.raises(InputError, match="n: found"):
        read_options(table, {"--n": value})
    assert read_options(table, {"--n": "10"})["n"] == 10
