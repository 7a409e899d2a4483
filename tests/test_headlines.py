"""The figures the field quotes, each with the unit and the assumption that make it true, through the public API."""

from pathlib import Path

import pytest
import yaml

import kvplan
from kvplan.units import GIB

PEERS = yaml.safe_load((Path(__file__).parent / "golden" / "peers.yaml").read_text())["right_values"]
N128K, N256K, N1M = 131_072, 262_144, 1_048_576

# Registered names of the hand-worked models whose Hugging Face id differs from the one the spec was read from.
NOT_REGISTERED = {"microsoft/Phi-3-mini-128k-instruct": "phi-3.5-mini-instruct"}
# V4-Pro's hand-worked rows leave the fp32 compressor state out (18,710,528 B, golden csa.v4_pro.compressor_state).
WITHOUT_STATE = {"deepseek-ai/DeepSeek-V4-Pro"}


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("hf_id", PEERS)
def test_thirteen_models_by_hand(hf_id: str, dtype: str) -> None:
    cache = kvplan.estimate(NOT_REGISTERED.get(hf_id, hf_id), ctx=N128K, kv_cache_dtype=dtype).cache
    found = cache.growing_bytes if hf_id in WITHOUT_STATE else cache.needed_bytes
    assert found == PEERS[hf_id][dtype]


def needed(model: str, ctx: int, **options: str) -> int:
    return kvplan.estimate(model, ctx=ctx, **options).cache.needed_bytes


def growing(model: str, ctx: int, **options: str) -> int:
    return kvplan.estimate(model, ctx=ctx, **options).cache.growing_bytes


def test_llama_3_1_70b_at_128k_is_40_gib_and_20_in_fp8() -> None:
    assert needed("llama-3.1-70b", N128K) == 40 * GIB
    assert needed("llama-3.1-70b", N128K, kv_cache_dtype="fp8") == 20 * GIB


def test_llama_3_1_70b_with_64_kv_heads_would_be_320_gib() -> None:
    from dataclasses import replace

    spec = kvplan.load_model("llama-3.1-70b").spec
    ((name, block),) = spec.blocks.items()
    as_mha = replace(spec, blocks={name: replace(block, kv_heads=64)})
    assert kvplan.estimate(as_mha, ctx=N128K).cache.needed_bytes == 320 * GIB


def test_qwen3_next_is_3_gib_and_would_be_12_with_attention_everywhere() -> None:
    # Qwen3-Next's headline counts KV only, in 16 bits; its recurrent state is 77,266,944 B more.
    answer = kvplan.estimate("qwen3-next-80b-a3b-instruct", ctx=N128K).cache
    assert answer.growing_bytes == 3 * GIB
    assert answer.growing_bytes // answer.growing_layers * answer.total_layers == 12 * GIB
    assert answer.state_bytes == 77_266_944


def test_jamba_is_4_gib_against_mixtrals_32_at_256k() -> None:
    # arXiv 2403.19887, KV table, 16-bit, state not counted. Mixtral's own limit is 32K: arithmetic past it.
    assert growing("jamba-v0.1", N256K) == 4 * GIB
    assert growing("mixtral-8x7b-v0.1", N256K) == 32 * GIB


def test_deepseek_v2_saves_93_3_percent_only_with_6_bits() -> None:
    # arXiv 2405.04434 against DeepSeek 67B (95 layers, 8 KV heads of 128): values per token.
    latent = needed("deepseek-v2-chat", 1) // 2
    dense = 2 * 95 * 8 * 128
    assert round(100 * (1 - latent / dense), 1) == 82.2
    assert round(100 * (1 - latent * 6 / (dense * 16)), 1) == 93.3


def test_gemma_3_27b_drops_from_62_gib_to_10_41() -> None:
    # ggml-org/llama.cpp issue 12637 quotes 62 and 10; arXiv 2503.19786 gives the 5:1 pattern and the 1,024 window.
    answer = kvplan.estimate("gemma-3-27b-it", ctx=N128K).cache
    assert answer.needed_bytes == 11_173_625_856
    assert round(answer.needed_bytes / GIB, 2) == 10.41
    per_layer = answer.components[-1].bytes // answer.components[-1].layers
    assert answer.growing_layers == 10
    assert 62 * per_layer == 62 * GIB


@pytest.mark.parametrize(("model", "expected", "percent"), [("deepseek-v4-pro", 5_280_404_480, 10.5)])
def test_deepseek_v4_against_v3_2_at_1m(model: str, expected: int, percent: float) -> None:
    # The published 10 % needs V3.2 in fp8 (656 + 132) and V4 with the fp4 indexer (584, 68).
    v32 = needed("deepseek-v3.2", N1M, kv_cache_dtype="fp8")
    v4 = growing(model, N1M, kv_cache_dtype="fp8", index_dtype="fp4")
    assert (v32, v4) == (50_402_951_168, expected)
    assert round(100 * v4 / v32, 1) == percent


def test_deepseek_v4_flash_is_7_3_percent_of_v3_2() -> None:
    # 2 window-only, 21 ratio-4 and 20 ratio-128 layers; vLLM post of 2026-04-24.
    from kvplan.spec.layers import CompressedSparse, Indexer
    from kvplan.spec.model import ModelSpec, Provenance

    def layer(ratio: int | None, overlap: bool = False, indexer: Indexer | None = None) -> CompressedSparse:
        return CompressedSparse(64, 512, 64, 128, ratio, overlap, indexer)

    flash = ModelSpec(
        id="deepseek-v4-flash", model_type="deepseek_v4", dtype="bfloat16", max_context=N1M,
        blocks={"window": layer(None), "csa": layer(4, True, Indexer(128, 512, 64)), "hca": layer(128)},
        layers=("2 x window", "21 x csa", "20 x hca"), provenance=Provenance("vLLM post 2026-04-24", "reconstructed"),
    )  # fmt: skip
    found = kvplan.estimate(flash, ctx=N1M, kv_cache_dtype="fp8", index_dtype="fp4").cache.growing_bytes
    assert found == 3_688_172_544
    assert round(100 * found / needed("deepseek-v3.2", N1M, kv_cache_dtype="fp8"), 1) == 7.3


def test_compressor_state_is_fixed() -> None:
    # golden csa.v4_pro.compressor_state: 30 layers of 81,920 B and 31 of 524,288 B.
    for ctx in (1, N128K, N1M):
        assert kvplan.estimate("deepseek-v4-pro", ctx=ctx).cache.state_bytes == 18_710_528


def test_dsa_reads_a_fifth_of_the_dense_cache() -> None:
    # golden mla.v32_read_bytes.128k: all index keys and the top 2,048 records, 61 layers.
    cache = kvplan.estimate("deepseek-v3.2", ctx=N128K, kv_cache_dtype="fp8").cache
    assert cache.read_bytes_per_step == 61 * 18_644_992
    assert cache.read_bytes_per_step < cache.needed_bytes


def test_kimi_linear_and_minimax_state() -> None:
    # golden hybrid.kimi_linear_48b.1m and hybrid.minimax_text_01: shapes of vLLM 0.33 mamba_utils.
    from kvplan.cache.layout import LayerContext, layer_parts
    from kvplan.cache.precision import resolve_precision
    from kvplan.spec.layers import Kda, Lightning

    context = LayerContext(resolve_precision())
    kda = sum(part.stored_bytes(1) for part in layer_parts(Kda(32, 128, 4), context))
    lightning = sum(part.stored_bytes(1) for part in layer_parts(Lightning(64, 128), context))
    assert (20 * kda, 70 * lightning) == (43_417_600, 293_601_280)
