"""Dtype choices of K and V apart: the name, the sources and the rows of a pair, and the pairs that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cache.layout import LayerContext, layer_parts
from kvplan.cache.precision import resolve_precision
from kvplan.errors import InputError
from kvplan.spec import layers as kinds


def test_k_and_v_of_two_block_formats_cost_what_their_blocks_do() -> None:
    # ggml-org/llama.cpp ggml/src/ggml-common.h: 32 values take 34 B in q8_0 and 18 B in q4_0. 128 values are 4 blocks.
    precision = resolve_precision("q8_0", value_dtype="q4_0")
    (part,) = layer_parts(kinds.FullAttention(32, 8, 128), LayerContext(precision))
    assert (part.key_bytes, part.entry_bytes) == (8 * 4 * 34, 8 * (4 * 34 + 4 * 18))
    assert (precision.name, part.dtype) == ("q8_0/q4_0", "q8_0/q4_0")


def test_a_pair_names_both_sources_and_a_single_dtype_its_own_once() -> None:
    single, other = resolve_precision("fp8"), resolve_precision("q4_0")
    assert single.source == single.key.source
    pair = resolve_precision("fp8", value_dtype="q4_0")
    assert pair.source == f"{single.source}; {other.source}"


@pytest.mark.parametrize(
    ("key", "value", "field", "named"),
    [
        ("turboquant_k8v4", "fp8", "--kv-cache-dtype", "turboquant_k8v4"),
        ("fp8", "turboquant_k8v4", "--value-cache-dtype", "turboquant_k8v4"),
        ("kivi2", "fp8", "--kv-cache-dtype", "kivi2"),
        ("fp8", "kivi2", "--value-cache-dtype", "kivi2"),
    ],
)
def test_formats_that_store_k_and_v_together_pair_with_none(key: str, value: str, field: str, named: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: found {named}, which stores K and V together"):
        resolve_precision(key, value_dtype=value)


@pytest.mark.parametrize("entry", [True, False, 1.5, None])
def test_what_is_neither_a_number_nor_a_kind_is_no_layer_to_skip(entry: Any) -> None:
    with pytest.raises(InputError, match=r"^--kv-cache-dtype-skip-layers: found"):
        resolve_precision(skip=(0, entry))
