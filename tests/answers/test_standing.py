"""Where a deployment stands: pools in tokens, rooflines, ranks."""

from __future__ import annotations

import pytest

from kvplan.answers.composed import CacheOptions
from kvplan.answers.standing import Deployment
from kvplan.hardware.accelerators import find
from kvplan.spec.resolve import resolve_model

GIB = 1 << 30


def deployment(
    model: str, *, gpus: int = 1, context: int = 8192, batch: int = 1, pool: int | None = None
) -> Deployment:
    device = find("h100-sxm5")
    usable = device.memory_bytes * 9 // 10
    return Deployment(resolve_model(model).spec, device, gpus, context, batch, 16, usable, 16 * GIB, pool)


def test_a_pool_in_tokens_by_division_and_in_blocks() -> None:
    # 8 GiB at 320 KiB a token, then at 160 KiB in 8 bits.
    at = deployment("llama-3.1-70b", pool=8 * GIB)
    wide, narrow = at.standing(CacheOptions()), at.standing(CacheOptions(kv_cache_dtype="fp8"))
    assert (wide.pool_tokens, wide.pool_tokens_in_blocks) == (26214, 26208)
    assert (narrow.pool_tokens, narrow.pool_tokens_in_blocks) == (52428, 52416)


def test_windows_have_no_bytes_a_token() -> None:
    at = deployment("gemma-3-27b", context=32768, pool=16 * GIB).standing(CacheOptions())
    # 10 global layers of 32,768 tokens and 52 windows of 1,024, 8,192 bytes each.
    sequence = 8192 * (10 * 32768 + 52 * 1024)
    assert at.pool_tokens_in_blocks is None
    assert at.bytes_per_sequence == sequence
    assert at.sequences == 16 * GIB // sequence
    assert at.pool_tokens == 16 * GIB * 32768 // sequence


def test_weights_take_their_share_of_each_gpu() -> None:
    one, two = (deployment("llama-3.1-8b", gpus=gpus) for gpus in (1, 2))
    assert two.pool - one.pool == 8 * GIB
    assert one.weight_seconds == pytest.approx(16 * GIB / 3.35e12)


def test_latents_are_copied_to_each_rank() -> None:
    one, eight = (deployment("deepseek-v3", gpus=gpus, pool=8 * GIB).standing(CacheOptions()) for gpus in (1, 8))
    assert one.bytes_per_sequence_per_gpu == eight.bytes_per_sequence_per_gpu == 8192 * 70272
    assert one.pool_tokens == eight.pool_tokens


def test_flops_bind_where_latents_are_read_by_many_heads() -> None:
    # 128 heads x 2 x (576 + 512) FLOPs for 1,152 bytes: 242 FLOPs a byte, below H100's 989e12 / 3.35e12 = 295.
    latent = deployment("deepseek-v3", context=131072).standing(CacheOptions())
    assert not latent.compute_bound
    assert latent.read_seconds == pytest.approx(131072 * 70272 / 3.35e12)
    # In 8 bits the record is 656 bytes: 425 FLOPs a byte, and FLOPs set the pace.
    narrow = deployment("deepseek-v3", context=131072).standing(CacheOptions(kv_cache_dtype="fp8"))
    assert narrow.compute_bound
    assert narrow.read_seconds == pytest.approx(61 * 131072 * 128 * 2 * (576 + 512) / 989e12, rel=1e-3)
