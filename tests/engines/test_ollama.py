"""Ollama's own defaults over llama.cpp's caches."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.ollama import ENGINE
from kvplan.errors import InputError
from kvplan.spec.layers import FullAttention
from kvplan.spec.model import ModelSpec, Provenance

SPEC = ModelSpec("m", "qwen3", "bfloat16", {"a": FullAttention(64, 8, 128)}, ("64 x a",), Provenance("t", "verbatim"),
                 max_context=40960)  # fmt: skip


def ask(settings: dict[str, Any], version: str | None = None) -> EngineAnswer:
    return ENGINE.plan(SPEC, settings, Parallelism(), [1 << 40], Device("any", 1 << 40), version)


@pytest.mark.parametrize(("version", "context"), [("0.5.7", 2048), ("0.6.8", 4096), (None, 4096)])
def test_default_context_by_release(version: str | None, context: int) -> None:
    answer = ask({}, version)
    assert (answer.name, answer.max_model_len, answer.capacity_tokens) == ("ollama", context, context)


def test_slots_multiply_the_context() -> None:
    """Two slots of 4,096 make the 8,192 cells and 2,048 MiB of issue 11499."""
    answer = ask({"OLLAMA_NUM_PARALLEL": "2"}, "0.10.0")
    assert answer.capacity_tokens == 8192 and answer.needed_bytes_one_request == 2048 << 20
    assert answer.max_model_len == 4096


def test_layers_go_to_the_cpu() -> None:
    def notes(settings: dict[str, Any]) -> list[str]:
        answer = ENGINE.plan(SPEC, settings, Parallelism(), [0], Device("any", 1 << 40), None)
        return [note for note in answer.warnings if "CPU" in note]

    assert len(notes({})) == 1 and "num_gpu" in notes({})[0]
    assert notes({"num_gpu": 64}) == []


def test_quantized_cache_needs_flash_attention() -> None:
    plain = ask({"OLLAMA_KV_CACHE_TYPE": "q8_0"}, "0.9.0")
    assert any("no effect without flash attention" in warning for warning in plain.warnings)
    flash = ask({"OLLAMA_KV_CACHE_TYPE": "q8_0", "OLLAMA_FLASH_ATTENTION": "1"}, "0.9.0")
    assert plain.needed_bytes_one_request * 34 == flash.needed_bytes_one_request * 64


def test_unknown_type() -> None:
    with pytest.raises(InputError, match="kv_cache_type: found 'q5_0', expected one of f16, q8_0, q4_0"):
        ask({"kv_cache_type": "q5_0"})
