"""The parts of single layers in bytes that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from kvplan.cache.layout import LayerContext, layer_parts
from kvplan.cache.precision import resolve_precision
from kvplan.spec import layers as kinds


def parts(layer: kinds.SingleLayer, dtype: str = "auto", **context: int) -> dict[str, tuple[str, int]]:
    """Dtype and bytes of one entry of each part, by name."""
    found = layer_parts(layer, LayerContext(resolve_precision(dtype), **context))
    return {part.name: (part.dtype, part.entry_bytes) for part in found}


def test_rwkv_keeps_two_shifted_rows_and_a_matrix_or_three_vectors() -> None:
    # ggml-org/llama.cpp b11549: 2 x n_embd shifts; a state of n_embd x head_dim from version 5 on. Engines keep fp32.
    assert parts(kinds.Rwkv(2560, 40, 64)) == {
        "token shift state": ("model dtype", 2 * 2560 * 2),
        "recurrent state": ("float32", 40 * 64 * 64 * 4),
    }
    assert parts(kinds.Rwkv(2560, 40, 64, 5, matrix_state=False)) == {
        "token shift state": ("model dtype", 25_600),
        "recurrent state": ("float32", 30_720),
    }


def test_deepseek_v4_flash_compressors_hold_what_llama_cpp_measures() -> None:
    # 21 layers of ratio 4 with overlapping blocks and an indexer, 20 of ratio 128: 12,206,080 B = 11.64 MiB a sequence
    # (ggml-org/llama.cpp b11549 and InternLM/lmdeploy 2026-08).
    four = kinds.CompressedSparse(64, 512, 64, 128, 4, overlap=True, indexer=kinds.Indexer(128, 512))
    far = kinds.CompressedSparse(64, 512, 64, 128, 128)
    near, wide = parts(four), parts(far)
    assert near["compressor state"] == ("float32", 65_536)
    assert near["index compressor state"] == ("float32", 16_384)
    assert wide["compressor state"] == ("float32", 524_288)
    (made,) = (part for part in layer_parts(four, LayerContext(resolve_precision())) if part.name == "compressor state")
    assert made.entry_formula == "8 rows x 4 x 512 x 4 B"
    assert 21 * (65_536 + 16_384) + 20 * 524_288 == 12_206_080


def test_the_named_dtype_is_that_of_states_and_not_of_columns() -> None:
    found = layer_parts(kinds.Mamba2(128, 64, 128, 8, 4), LayerContext(resolve_precision(state="bfloat16")))
    assert [(part.dtype, part.entry_bytes) for part in found] == [
        ("model dtype", 3 * (128 * 64 + 2 * 8 * 128) * 2),
        ("bfloat16", 128 * 64 * 128 * 2),
    ]


def test_an_engine_s_own_columns_leave_the_state_alone() -> None:
    # ggml-org/llama.cpp b11549 keeps the convolution's columns in 32 bits.
    precision = replace(resolve_precision(state="bfloat16"), conv="float32")
    found = layer_parts(kinds.ShortConv(2048, 3), LayerContext(precision))
    assert [(part.dtype, part.entry_bytes) for part in found] == [("float32", 2 * 2048 * 4)]
    state = layer_parts(kinds.Lightning(32, 128), LayerContext(precision))
    assert [(part.dtype, part.entry_bytes) for part in state] == [("bfloat16", 32 * 128 * 128 * 2)]


def test_a_layer_takes_the_asked_dtype_unless_it_is_skipped() -> None:
    layer = kinds.FullAttention(32, 8, 128)
    assert parts(layer, "fp8") == {"K+V": ("fp8", 2 * 8 * 128)}
    assert parts(layer, "fp8", skipped=True) == {"K+V": ("bf16", 2 * 8 * 128 * 2)}


def test_k_and_v_are_told_apart_unless_they_share_a_slot() -> None:
    wide = kinds.FullAttention(32, 8, 192, 128)
    (plain,) = layer_parts(wide, LayerContext(resolve_precision("bf16")))
    assert (plain.key_bytes, plain.entry_bytes) == (8 * 192 * 2, 8 * (192 + 128) * 2)
    (packed,) = layer_parts(kinds.FullAttention(32, 8, 128), LayerContext(resolve_precision("turboquant_k8v4")))
    # 128 B of K, 64 B of V with 4 B beside them, in one slot of a head.
    assert (packed.key_bytes, packed.entry_bytes) == (0, 8 * (128 + 64 + 4))


def test_kivi_adds_whole_residuals() -> None:
    (part,) = layer_parts(kinds.FullAttention(8, 8, 128), LayerContext(resolve_precision("kivi2")))
    # 2 bits and 4 B for each group of 32 values: 3 bits a value, K and V of 8 heads.
    assert part.entry_bytes == 8 * 256 * 3 // 8
    assert part.slope(128 * 9) == Fraction(8 * 256 * 3, 8)
    # Of the first 128 tokens the keys are packed and the values all stay in 16 bits.
    assert part.slope(0) == 8 * 128 * 3 // 8 + 8 * 128 * 2


@pytest.mark.parametrize(("tokens", "entries"), [(0, 0), (1500, 1500)])
def test_cross_attention_holds_the_encoder_s_tokens(tokens: int, entries: int) -> None:
    (part,) = layer_parts(kinds.CrossAttention(8, 8, 64), LayerContext(resolve_precision(), encoder_tokens=tokens))
    assert part.stored.count(7) == entries
    (unknown,) = layer_parts(kinds.CrossAttention(8, 8, 64), LayerContext(resolve_precision()))
    assert unknown.stored.count(7) == 0
