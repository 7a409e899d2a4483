"""vLLM on AMD takes AITER's MLA backend where one token makes a block (vllm/platforms/rocm.py), else Triton's."""

from __future__ import annotations

import pytest

from kvplan.hardware.accelerators import find
from kvplan.serving import serve
from kvplan.spec.resolve import resolve_model
from kvplan.units import GIB


@pytest.mark.parametrize(("asked", "block"), [({"block_size": 1}, 1), ({"block_size": 32}, 32), ({}, 16)])
def test_a_latent_on_mi300x(asked: dict[str, int], block: int) -> None:
    settings = {"tensor_parallel_size": 8, "max_model_len": 32768, **asked}
    plan = serve(resolve_model("deepseek-v3"), "vllm", find("mi300x"), settings, available_bytes=(40 * GIB,)).engine
    # 61 layers x (512 + 64) x 2 B = 70,272 B a token, on every rank.
    assert plan.bytes_per_block == 70_272 * block
    assert plan.num_blocks == 40 * GIB // (70_272 * block)
