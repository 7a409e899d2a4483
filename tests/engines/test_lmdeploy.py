"""LMDeploy: block bytes by policy, budget, states, refusals. Figures by hand from the 2026-08 snapshot's rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.lmdeploy.engine import ENGINE
from kvplan.errors import InputError
from kvplan.spec.layers import CompressedSparse, FullAttention, GatedDelta, Indexer, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import GIB


def model(blocks: dict[str, Any], layers: tuple[str, ...]) -> ModelSpec:
    return ModelSpec("m", "llama", "bfloat16", blocks, layers, Provenance("test", "verbatim"), max_context=32768)


LLAMA_8B = model({"a": FullAttention(32, 8, 128)}, ("32 x a",))


def ask(spec: ModelSpec, settings: dict[str, Any], budget: int, tensor: int = 1) -> EngineAnswer:
    return ENGINE.plan(spec, settings, Parallelism(tensor=tensor), [budget], Device("any", 1 << 40))


@pytest.mark.parametrize(("policy", "head"), [(0, 512), (8, 2 * 132), (4, 2 * 68), (16, 256), (42, 64 + 4 + 32 + 2)])
def test_block_bytes_by_policy(policy: int, head: int) -> None:
    """K and V of one head of 128 and token; a block is 64 tokens of 8 heads in 32 layers."""
    assert ask(LLAMA_8B, {"quant_policy": policy}, GIB).bytes_per_block == (64 * 32 * 8 * head,)


def test_heads_must_divide_in_the_pytorch_engine() -> None:
    with pytest.raises(InputError, match="found 16 ranks for 8 KV heads"):
        ask(LLAMA_8B, {}, GIB, tensor=16)
    assert ask(LLAMA_8B, {"backend": "turbomind"}, GIB, tensor=16).bytes_per_block == (64 * 32 * 512,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"backend": "turbomind", "quant_policy": 16}, "expected one of 0, 4, 8"), ({"quant_policy": 2}, "quant_policy")],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(LLAMA_8B, settings, GIB)


def test_fewer_than_three_blocks_is_an_error() -> None:
    block = 64 * 32 * 4096
    assert ask(LLAMA_8B, {}, 3 * block).refused is None
    refused = ask(LLAMA_8B, {}, 3 * block - 1).refused
    assert refused is not None and refused.needed_bytes == 3 * block


def test_wide_heads_take_blocks_of_32() -> None:
    assert ask(model({"a": FullAttention(8, 1, 512)}, ("a",)), {}, GIB).groups[0].block_tokens == 32


def test_one_window_drops_blocks_and_mixed_layers_do_not() -> None:
    window = SlidingWindow(32, 8, 128, 4096)
    uniform = ask(model({"w": window}, ("32 x w",)), {}, GIB)
    assert uniform.blocks_per_request == 4096 // 64 + 1
    mixed = ask(model({"w": window, "f": FullAttention(32, 8, 128)}, ("16 x w", "16 x f")), {}, GIB)
    assert mixed.blocks_per_request == 32768 // 64


def test_states_come_off_first() -> None:
    """max_batch_size + 2 slots of 3,207,168 B: 48 value heads of 128 x 128 in fp32, 3 x 10,240 columns in 16 bits."""
    spec = model({"f": FullAttention(24, 4, 256), "g": GatedDelta(16, 128, 48, 128, 4)}, ("f", "3 x g"))
    answer = ask(spec, {"max_batch_size": 8}, 10 * 3 * 3_207_168 + 5 * 64 * 4096)
    assert answer.num_blocks == 5 and answer.pool("state slots").slots == 10


def test_deepseek_v4_flash_state() -> None:
    """21 ratio-4 and 20 ratio-128 layers: 12,206,080 B of compressor rows, and 43 rings of 128 x 584 B."""
    four = CompressedSparse(64, 512, 64, 128, 4, overlap=True, indexer=Indexer(128))
    wide = CompressedSparse(64, 512, 64, 128, 128)
    only = CompressedSparse(64, 512, 64, 128)
    spec = model({"o": only, "c": four, "h": wide}, ("2 x o", "21 x c", "20 x h"))
    answer = ask(spec, {"quant_policy": 16}, 10 * GIB)
    assert answer.pool("state slots").bytes_per_slot == 12_206_080 + 43 * 128 * 584
    assert answer.bytes_per_block == (21 * 64 * (584 + 132) + 20 * 2 * 584,) and answer.groups[0].block_tokens == 256


@given(st.integers(0, 1 << 40))
def test_blocks_fit_the_budget(budget: int) -> None:
    answer = ask(LLAMA_8B, {}, budget)
    pool = answer.pool("blocks")
    assert pool.bytes <= budget < pool.bytes + pool.bytes_per_slot
