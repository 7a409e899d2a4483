"""Cache dtypes: bytes of one row, from the formats' own documentation."""

from fractions import Fraction

import pytest

from kvplan.cache.formats import find_format, format_names, index_format, state_dtype
from kvplan.errors import InputError

# K and V of one head of width 128, one token. Sources: vLLM 0.32 kv_cache_interface.py and quantization/turboquant
# (196, 134, 118, 102), llama.cpp ggml-common.h block sizes, OCP Microscaling Formats 1.0, mit-han-lab/qserve, SGLang
# 0.5.23 (a scale byte per 16 values), LMDeploy 2026-08 quant_policy 42 (64 + 4 and 32 + 2).
HEAD_128 = {
    "bf16": 512, "fp16": 512, "fp32": 1024, "fp8": 256,
    "fp8_per_token_head": 264, "int8_per_token_head": 264, "int4_per_token_head": 136, "qserve_kv4": 136,
    "nvfp4": 144, "mxfp4": 136, "mxfp8": 264, "fp4_mx_block16": 144, "lmdeploy_turboquant": 102,
    "turboquant_k8v4": 196, "turboquant_4bit_nc": 134, "turboquant_k3v4_nc": 118, "turboquant_3bit_nc": 102,
    "q8_0": 272, "q5_1": 192, "q5_0": 176, "q4_1": 160, "q4_0": 144, "iq4_nl": 144,
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), HEAD_128.items())
def test_attention_rows(name: str, expected: int) -> None:
    attention = find_format(name).attention
    assert attention is not None
    assert attention.size(1, 128, 128) == expected


def test_every_attention_format_is_held() -> None:
    assert {name for name in format_names() if find_format(name).attention is not None} == set(HEAD_128)


# FlashMLA README: 656 = 512 fp8 + 4 fp32 scales + 64 bf16; vLLM 0.32: 352; vLLM 0.33 deepseek_v4: 584 = 448 + 8 + 128;
# vLLM 0.33 and SGLang 0.5.23: 528 (mxfp8) and 288 (nvfp4) of V4.1. Per-token-head on MLA: D + 8 and D / 2 + 8.
@pytest.mark.parametrize(
    ("name", "part", "widths", "expected"),
    [
        ("bf16", "latent", (512, 64), 1152),
        ("fp8", "latent", (512, 64), 576),
        ("fp8", "indexed_latent", (512, 64), 656),
        ("fp8_ds_mla", "latent", (512, 64), 656),
        ("nvfp4_ds_mla", "latent", (512, 64), 352),
        ("nvfp4", "indexed_latent", (512, 64), 352),
        ("int8", "latent", (512, 64), 584),
        ("int4", "latent", (512, 64), 296),
        ("bf16", "compressed", (448, 64), 1024),
        ("fp8", "compressed", (448, 64), 584),
        ("mxfp8", "compressed", (448, 64), 528),
        ("nvfp4", "compressed", (448, 64), 288),
        ("q8_0", "latent", (512, 64), 612),
    ],
)
def test_records(name: str, part: str, widths: tuple[int, int], expected: int) -> None:
    assert getattr(find_format(name), part).size(*widths) == expected


@pytest.mark.parametrize(("name", "expected"), [("bf16", 256), ("fp8", 132), ("fp4", 68)])
def test_index_keys(name: str, expected: int) -> None:
    assert index_format(name)[1].size(128) == expected


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("kivi2", Fraction(3)),
        ("kivi4", Fraction(5)),
        ("nvfp4", Fraction(9, 2)),
        ("q8_0", Fraction(17, 2)),
        ("mxfp4", Fraction(17, 4)),
    ],
)
def test_effective_bits(name: str, bits: Fraction) -> None:
    assert find_format(name).effective_bits() == bits


def test_kivi_residual() -> None:
    # golden quant.kivi2_residual.n1000: keys keep 1000 mod 128 tokens, values 128, in fp16 (jy-yuan/KIVI).
    groups = find_format("kivi2").tokens
    assert groups is not None
    assert groups.size(1000, 8, 128, 128) == 1_154_048


def test_a_block_runs_over_the_whole_row() -> None:
    attention = find_format("q8_0").attention
    assert attention is not None
    assert attention.size(5, 80, 80) == 2 * 13 * 34  # 13 blocks of 32 hold the 400 values of a row
    assert attention.size(1, 33, 33) == 2 * 2 * 34


@pytest.mark.parametrize(
    ("spelling", "name"), [("FP8_E4M3", "fp8"), ("bfloat16", "bf16"), ("int8", "int8_per_token_head"), ("f16", "fp16")]
)
def test_spellings(spelling: str, name: str) -> None:
    assert find_format(spelling).name == name


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--kv-cache-dtype: found 'fp9'.*nearest: fp8"):
        find_format("fp9")
    with pytest.raises(InputError, match="--index-dtype: found 'int3'"):
        index_format("int3")
    with pytest.raises(InputError, match=r"--state-dtype: found 'float33'.*nearest: float32"):
        state_dtype("float33")
