"""Weights of GGUF files known by name alone, held against sizes that llama.cpp publishes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.memory.weights import weight_bytes
from kvplan.spec.model import WeightQuantization
from kvplan.spec.resolve import resolve_model
from kvplan.units import GB, GIB


# ggml-org/llama.cpp tools/quantize/README.md: quantized sizes of Llama 3.1 in GB (Q4_K_M), and of the 8B in GiB.
@pytest.mark.parametrize(("model", "size"), [("llama-3.1-8b", 4.9), ("llama-3.1-70b", 43.1), ("llama-3.1-405b", 249.1)])
def test_q4_k_m(model: str, size: float) -> None:
    spec = replace(resolve_model(model).spec, quantization=WeightQuantization("gguf-q4_k_m"))
    found = weight_bytes(spec)
    assert found is not None
    assert found.total_bytes / GB == pytest.approx(size, rel=0.005)
    assert not found.exact


@pytest.mark.parametrize(
    ("name", "size"),
    [("iq2_xs", 2.42), ("q2_k", 2.95), ("iq4_xs", 4.17), ("q5_k_m", 5.33), ("q6_k", 6.14), ("q8_0", 7.95)],
)
def test_llama_8b(name: str, size: float) -> None:
    spec = replace(resolve_model("llama-3.1-8b").spec, quantization=WeightQuantization(f"gguf-{name}"))
    found = weight_bytes(spec)
    assert found is not None
    assert found.total_bytes / GIB == pytest.approx(size, abs=0.01)
