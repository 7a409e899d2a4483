"""Weight bytes against engine logs, published checkpoint sizes and hand arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.memory.weight_formats import WeightFormat, method_format, weight_formats
from kvplan.memory.weights import WeightEstimate, uncounted, weight_bytes
from kvplan.spec.importers.config import import_config
from kvplan.spec.importers.tensors import TensorInfo, summarize
from kvplan.spec.layers import FullAttention
from kvplan.spec.model import ModelSpec, Parameters, Provenance, WeightQuantization
from kvplan.spec.parameters import count_parameters

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
GIB = 2**30


def published(stem: str) -> ModelSpec:
    config: dict[str, Any] = json.loads((CONFIGS / f"{stem}.json").read_text())
    second = CONFIGS / f"{stem}.hf_quant_config.json"
    quant = json.loads(second.read_text()) if second.exists() else None
    spec = import_config(config, name=stem, quant_config=quant)
    return replace(spec, parameters=count_parameters(config, spec))


def weights(spec: ModelSpec, **options: Any) -> WeightEstimate:
    found = weight_bytes(spec, **options)
    assert found is not None
    return found


def toy(quantization: WeightQuantization | None = None, **changes: Any) -> ModelSpec:
    spec = ModelSpec(
        id="toy", model_type="llama", dtype="bfloat16", layers=("1 x a",), provenance=Provenance("by hand", "assumed"),
        blocks={"a": FullAttention(query_heads=2, kv_heads=1, head_dim=4)}, quantization=quantization,
        parameters=Parameters(
            embedding=1000, attention=4000, dense_mlp=8000, experts=32000, shared_experts=2000, router=100, norms=10,
            head=1000, active=20000, draft=500,
        ),
    )  # fmt: skip
    return replace(spec, **changes)


# vLLM's "model weights take ... GiB" a rank. The rotary table is loaded with the weights: context x rotary width x 2 B.
# Cases: vLLM start-up logs (issues and the llm-d benchmark of vLLM 0.11 on H100); ids as in the project's evidence.
W8 = WeightQuantization("compressed-tensors", bits=8, kept=("lm_head",))
INT4 = WeightQuantization("gptq", bits=4, group_size=128)
AWQ = WeightQuantization("awq", bits=4, group_size=128)
FP8_BLOCK = WeightQuantization("fp8", bits=8, block_shape=(128, 128))
LOGS = [
    ("v0-llama31-8b-3090", "meta-llama--meta-llama-3.1-8b", None, 1, 131072 * 128 * 2, 14.9888, 0.00001),
    ("v0-llama3-8b-h100-tp2", "meta-llama--meta-llama-3.1-8b", None, 2, 8192 * 128 * 2, 7.48, 0.001),
    ("pl-llama33-70b-fp8-tp2", "meta-llama--llama-3.3-70b-instruct", W8, 2, 131072 * 128 * 2, 33.88, 0.001),
    ("v0-llama31-70b-w8a8", "meta-llama--meta-llama-3.1-70b", W8, 1, 131072 * 128 * 2, 67.7229, 0.001),
    ("pl-qwen3-32b-tp2", "qwen--qwen3-32b", None, 2, 40960 * 128 * 2, 30.59, 0.003),
    ("v0-qwen25-72b-gptq", "qwen--qwen2.5-72b-instruct", INT4, 1, 32768 * 128 * 2, 38.526, 0.003),
    ("v1-qwen25-32b-awq", "qwen--qwen2.5-32b-instruct", AWQ, 1, 32768 * 128 * 2, 18.14, 0.008),
    ("v1-qwen3-8b-awq-t4", "qwen--qwen3-8b", AWQ, 1, 40960 * 128 * 2, 5.71, 0.004),
    ("v1-qwen25-15b-minigpu", "qwen--qwen2-1.5b", None, 1, 32768 * 128 * 2, 2.89, 0.003),
    ("v1-qwen3-30b-fp8", "qwen--qwen3-30b-a3b", FP8_BLOCK, 1, 262144 * 128 * 2, 29.09, 0.001),
    ("v1-minimax-4x80gb", "minimaxai--minimax-m2.5", "own", 4, 0, 53.75, 0.004),
]


@pytest.mark.parametrize(("case", "stem", "quantization", "ranks", "rotary", "logged", "within"), LOGS)
def test_vllm_logged_weights(
    case: str, stem: str, quantization: Any, ranks: int, rotary: int, logged: float, within: float
) -> None:
    spec = published(stem)
    if quantization != "own":
        spec = replace(spec, quantization=quantization)
    assert (weights(spec).total_bytes / ranks + rotary) / GIB == pytest.approx(logged, rel=within)


@pytest.mark.parametrize(
    ("stem", "gib"),
    [
        ("openai--gpt-oss-120b", 60.8),  # gpt-oss model card: checkpoint sizes
        ("openai--gpt-oss-20b", 12.8),
        ("meta-llama--meta-llama-3.1-8b", 14.96),  # llama.cpp quantize README: F16 size
    ],
)
def test_published_checkpoint_sizes(stem: str, gib: float) -> None:
    assert weights(published(stem)).total_bytes / GIB == pytest.approx(gib, rel=0.002)


def test_deepseek_r1_repository_size() -> None:
    # 688.6 GB: main model and MTP module in FP8 blocks; the module stores its own copy of embedding and head.
    spec = published("deepseek-ai--deepseek-r1")
    copies = 2 * 2 * 129280 * 7168
    assert (weights(spec, drafting=True).total_bytes + copies) / 1e9 == pytest.approx(688.6, rel=0.001)
    assert weights(spec, drafting=True).total_bytes > weights(spec).total_bytes


def test_kimi_k2_packs_its_experts_only() -> None:
    # 60 sparse layers of 384 experts, 4 bits and a 16-bit scale per 32 weights; what `ignore` names stays in 16 bits.
    parts = {part.name: part for part in weights(published("moonshotai--kimi-k2.5")).parts}
    assert parts["experts"].bytes == 60 * 384 * 3 * 7168 * 2048 * 9 // 16
    assert {name for name, part in parts.items() if part.bits_per_weight == 16} == set(parts) - {"experts"}


@pytest.mark.parametrize(
    ("name", "bits"),
    # Arithmetic on the formats: payload + scale / group.
    [
        ("fp8_block", 8 + Fraction(32, 16384)),
        ("int4_zero", Fraction("4.15625")),
        ("int4_symmetric", Fraction("4.125")),
        ("mxfp4", Fraction("4.25")),
        ("nvfp4", Fraction("4.5")),
        ("nf4", Fraction("4.5")),
    ],
)
def test_bits_per_weight(name: str, bits: Fraction) -> None:
    assert weight_formats()[name].bits_per_weight == bits


@pytest.mark.parametrize(("group", "bits"), [(64, "4.3125"), (32, "4.625"), (128, "4.15625")])
def test_group_size_of_the_checkpoint_wins(group: int, bits: str) -> None:
    found, _ = method_format(WeightQuantization("gptq", bits=4, group_size=group))
    assert isinstance(found, WeightFormat)
    assert found.bits_per_weight == Fraction(bits)


def test_plain_weights_are_exact() -> None:
    found = weights(toy())
    assert found.total_bytes == 2 * 48110
    assert found.exact
    assert found.assumptions == ()
    assert found.bits_per_weight == 16


def test_float32_is_loaded_in_16_bits() -> None:
    spec = toy(dtype="float32")
    assert weights(spec).total_bytes == 2 * 48110
    assert "float32" in weights(spec).assumptions[0]
    assert weights(spec, served_dtype="float32").total_bytes == 4 * 48110


def test_quantized_parts_by_hand() -> None:
    found = weights(toy(WeightQuantization("fp8", bits=8, block_shape=(128, 128))))
    linear = sum(-(-count * (8 * 16384 + 32) // (8 * 16384)) for count in (4000, 8000, 32000, 2000))
    assert found.total_bytes == linear + 2 * (1000 + 100 + 10 + 1000)
    assert not found.exact


def test_mxfp4_packs_experts_only() -> None:
    found = weights(toy(WeightQuantization("mxfp4", bits=4)))
    assert found.total_bytes == 32000 * 17 // 32 + 2 * (48110 - 32000)


def test_narrow_experts_beside_wider_layers() -> None:
    # DeepSeek V4: FP8 blocks, experts in MXFP4; the list of kept modules speaks of the experts' format.
    quantization = WeightQuantization("fp8", bits=8, block_shape=(128, 128), experts_bits=4, kept=("*.attn.*",))
    bits = {part.name: part.bits_per_weight for part in weights(toy(quantization)).parts}
    assert bits["experts"] == Fraction("4.25")
    assert bits["attention"] == 8 + Fraction(32, 16384)


@pytest.mark.parametrize(
    ("kept", "part"),
    [
        ("re:.*self_attn.*", "attention"),
        ("model.layers.*.self_attn", "attention"),
        ("*.attn.*", "attention"),
        ("re:.*shared_experts.*", "shared_experts"),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "dense_mlp"),
    ],
)
def test_kept_modules_stay_in_16_bits(kept: str, part: str) -> None:
    found = weights(toy(WeightQuantization("compressed-tensors", bits=4, group_size=32, kept=(kept,))))
    wide = {item.name for item in found.parts if item.bits_per_weight == 16}
    assert wide == {"embedding", "router", "norms", "head", part}


@pytest.mark.parametrize("kept", ["gate", "lm_head", "model.layers.3.self_attn", "mtp*", "re:(", ""])
def test_patterns_that_keep_no_part(kept: str) -> None:
    found = weights(toy(WeightQuantization("fp8", bits=8, kept=(kept,))))
    assert {item.name for item in found.parts if item.bits_per_weight == 16} == {"embedding", "router", "norms", "head"}


def test_part_of_a_part_is_said() -> None:
    found = weights(toy(WeightQuantization("fp8", bits=8, kept=("model.layers.*.self_attn.o_proj",))))
    assert any("attention" in sentence for sentence in found.assumptions)


def test_an_unknown_method_is_counted_unquantized_and_said() -> None:
    found = weights(toy(WeightQuantization("quip-sharp", bits=2)))
    assert found.total_bytes == 2 * 48110
    assert "quip-sharp" in found.assumptions[0]
    assert not found.exact


def test_mixed_precision_is_counted_at_its_widest() -> None:
    found = weights(toy(WeightQuantization("mixed_precision")))
    assert found.total_bytes == 46000 + 2 * 2110
    assert "mixes" in found.assumptions[0]


def test_published_count_as_a_last_resort() -> None:
    found = weights(toy(parameters=None, published_parameters_b=(7.24, None)))
    assert found.total_bytes == 14_480_000_000
    assert not found.exact
    assert "published" in found.source
    assert weight_bytes(toy(parameters=None)) is None
    assert weight_bytes(toy(parameters=None, published_parameters_b=(None, 3.0))) is None


def test_more_published_than_counted_is_said() -> None:
    """What rounding doesn't explain counts at 16 bits; a tower is blamed only where there is one."""
    spec = toy(published_parameters_b=(0.001, None))
    found = uncounted(spec)
    assert found is not None and spec.parameters is not None
    assert found.parameters == 1_000_000 - spec.parameters.total
    assert found.bytes == 2 * found.parameters
    assert "tower" not in found.says and "at 16 bits" in found.says
    sees = uncounted(replace(spec, architecture="ToyForConditionalGeneration"))
    assert sees is not None and "a vision or audio tower" in sees.says
    assert uncounted(toy(published_parameters_b=(0.0000481, None))) is None


def test_partial_or_empty_tensors_tell_no_weights() -> None:
    for tensors in (summarize([], ("m.gguf",)), summarize(TENSORS, ("m.gguf",), partial=True)):
        found = weights(toy(), tensors=tensors)
        assert found.total_bytes == weights(toy()).total_bytes
        assert any("not all of its tensors" in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (WeightQuantization("fp8", bits=8), "stored as fp8"),
        (WeightQuantization("compressed-tensors", bits=4, group_size=32), "stored as compressed-tensors (int4)"),
        (WeightQuantization("fp8", bits=8, experts_bits=4), "stored as fp8, experts mxfp4"),
    ],
)
def test_the_source_names_the_formats(quantization: WeightQuantization, words: str) -> None:
    assert weights(toy(quantization)).source.endswith(words)


TENSORS = [
    TensorInfo("model.embed_tokens.weight", "BF16", 1000, 2000),
    TensorInfo("model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 4000, 4000),
    TensorInfo("model.layers.0.self_attn.q_proj.weight_scale_inv", "F32", 4, 16),
    TensorInfo("mtp.layers.0.mlp.up_proj.weight", "BF16", 500, 1000),
    TensorInfo("lm_head.weight", "BF16", 1000, 2000),
]


def test_tensors_win_over_counts() -> None:
    tensors = summarize(TENSORS, ("model.safetensors",))
    found = weights(toy(WeightQuantization("fp8", bits=8)), tensors=tensors)
    assert found.total_bytes == 2000 + 4000 + 16 + 2000
    assert found.exact
    assert "model.safetensors" in found.source
    assert weights(toy(), tensors=tensors, drafting=True).total_bytes == tensors.total_bytes
    tied = weights(toy(tied_embeddings=True), tensors=tensors)
    assert tied.total_bytes == 2000 + 4000 + 16


def test_float32_tensors_are_halved() -> None:
    tensors = summarize([TensorInfo("model.embed_tokens.weight", "F32", 1000, 4000)], ("model.safetensors",))
    assert weights(toy(dtype="float32"), tensors=tensors).total_bytes == 2000
    assert weights(toy(dtype="float32"), tensors=tensors, served_dtype="float32").total_bytes == 4000


def test_an_index_gives_only_a_total() -> None:
    tensors = replace(summarize(TENSORS, ("a.safetensors",)), complete=False, bytes_by_part={}, total_bytes=12345)
    assert weights(toy(), tensors=tensors).total_bytes == 12345


@given(
    bits=st.sampled_from([4, 8]),
    group=st.sampled_from([16, 32, 64, 128]),
    method=st.sampled_from(["gptq", "awq", "fp8", "compressed-tensors", "mxfp4", "nvfp4", "bitsandbytes"]),
)
def test_quantized_is_smaller_and_parts_add_up(bits: int, group: int, method: str) -> None:
    found = weights(toy(WeightQuantization(method, bits=bits, group_size=group)))
    assert sum(part.bytes for part in found.parts) == found.total_bytes <= 2 * 48110
    for part in found.parts:
        assert part.bytes * 8 >= part.parameters * part.bits_per_weight > (part.bytes - 1) * 8
