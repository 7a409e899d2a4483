"""transformers' caches against the library's own tensors: 38 tiny models, 18 full-size shapes, 6 static caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.transformers.conventions import peak_storage, stored_tokens, tensor_layers
from kvplan.engines.transformers.engine import ENGINE
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec.importers.config import import_config
from kvplan.spec.layers import CompressedSparse, FullAttention, Indexer, LatentAttention, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import MIB

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/engines/transformers.json").read_text(encoding="utf-8"))
MODELS = {f"{model['set']}/{model['name']}": model for model in GOLDEN["models"]}


def rules(version: str | None = None) -> Rules:
    return rules_at("transformers", load_rules("transformers"), version)


def one(block: Any, layers: int = 1) -> ModelSpec:
    return ModelSpec(
        "one", "llama", "bfloat16", {"a": block}, (f"{layers} x a",), Provenance("test", "verbatim"), max_context=65536
    )


def ask(spec: ModelSpec, settings: dict[str, Any], available: int, version: str | None = None) -> EngineAnswer:
    return ENGINE.plan(spec, settings, Parallelism(), [available], Device("any", 1 << 40), version)


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor(name: str) -> None:
    model = MODELS[name]
    spec = import_config(model["config"], name=model["name"])
    layers = tensor_layers(spec, rules(), "static" if model["set"] == "static" else "dynamic")
    for batch, tokens, runs in model["cases"]:
        expected = [size for size, count in runs for _ in range(count)]
        assert [layer.bytes(tokens) * batch for layer in layers] == expected, (batch, tokens)


def test_the_golden_set_is_whole() -> None:
    counts = {kind: sum(len(m["cases"]) for m in GOLDEN["models"] if m["set"] == kind) for kind in
              ("tiny", "fullsize", "static")}  # fmt: skip
    assert counts == {"tiny": 266, "fullsize": 18, "static": 12}


def test_mla_before_5_stores_expanded_heads() -> None:
    """DeepSeek V3: 128 x (192 + 128) values against 576, 71 times more (notes of 4.x against 5.24.0)."""
    mla = one(LatentAttention(128, 512, 64, nope_head_dim=128, v_head_dim=128))
    old, new = (tensor_layers(mla, rules(version), "dynamic")[0].bytes(1) for version in ("4.50.0", None))
    assert (old, new) == (128 * 320 * 2, 1152)


@pytest.mark.parametrize(("tokens", "rows"), [(3, 2 * 3), (4, 4 + 0), (4096, 4), (4098, 4 + 2 * 2)])
def test_open_rows_of_a_ratio_4_layer(tokens: int, rows: int) -> None:
    """Key and gate rows of 512 + 128 values: the last whole group of 4, and up to 3 rows twice as wide."""
    layer = CompressedSparse(64, 512, 64, 128, ratio=4, overlap=True, indexer=Indexer(128))
    held = tensor_layers(one(layer), rules(), "dynamic")[0].bytes(tokens)
    entries = min(tokens, 127) * 1024 + tokens // 4 * (1024 + 256)
    assert held - entries == 2 * rows * (1024 + 256)


def test_a_v4_layer_without_compression_keeps_its_vector_twice() -> None:
    """DynamicSlidingWindowLayer.update(kv, kv) concatenates both (modeling_deepseek_v4.py 5.24.0)."""
    layer = CompressedSparse(64, 512, 64, 128)
    assert tensor_layers(one(layer), rules(), "dynamic")[0].bytes(300) == 2 * 127 * 1024


def test_the_last_token_is_never_cached() -> None:
    assert stored_tokens(40, 6) == 45 and stored_tokens(8, 1) == 8
    with pytest.raises(InputError, match="at least one token"):
        stored_tokens(0, 4)


def test_storage_right_after_a_prompt() -> None:
    """A 300-token prompt leaves a window of 16 as a view of 300 tokens (tiny gemma3: 15 seen, 300 stored)."""
    spec = one(SlidingWindow(8, 2, 16, 16))
    assert tensor_layers(spec, rules(), "dynamic")[0].bytes(300) == 15 * 2 * 32 * 2
    assert peak_storage(spec, rules(), 300) == 300 * 2 * 32 * 2


def test_plan_and_refusal() -> None:
    """Llama 3.1 70B: 320 KiB a token, 1,280 MiB at 4,096 tokens."""
    spec = one(FullAttention(64, 8, 128), 80)
    fits = ask(spec, {"max_length": 4096}, 4 * 1280 * MIB + 1)
    assert (fits.needed_bytes_one_request, fits.max_concurrency) == (1280 * MIB, 4.0)
    short = ask(spec, {"max_length": 4096, "batch_size": 2, "num_beams": 2}, 4 * 1280 * MIB - 1)
    assert short.refused is not None and short.refused.needed_bytes == 4 * 1280 * MIB
    assert short.estimated_max_model_len == 4095


def test_unknown_cache_is_refused() -> None:
    with pytest.raises(InputError, match="cache_implementation: found 'paged'"):
        ask(one(FullAttention(8, 8, 64)), {"cache_implementation": "paged"}, 1 << 30)


@given(st.integers(1, 10_000), st.integers(2, 500))
def test_a_window_never_holds_more_than_it_is_wide(tokens: int, window: int) -> None:
    spec = one(SlidingWindow(8, 2, 16, window))
    dynamic = tensor_layers(spec, rules(), "dynamic")[0].bytes(tokens)
    static = tensor_layers(spec, rules(), "static")[0].bytes(tokens)
    assert dynamic == min(tokens, window - 1) * 128 and static == min(tokens, window) * 128
