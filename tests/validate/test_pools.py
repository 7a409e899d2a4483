"""Real tensors against figures worked out by hand, against `kvplan.cache`, and against the allocator's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvplan.cache.precision import resolve_precision
from kvplan.errors import InputError
from kvplan.memory.allocator import predict_allocations
from kvplan.spec.resolve import resolve_model
from kvplan.validate.capacity import Churn, capacity_checks
from kvplan.validate.device import OutOfMemory, open_device
from kvplan.validate.groups import lay_out, pool_groups, shortened
from kvplan.validate.pools import Pools, allocate_layer, tensor_bytes
from tests.validate.fake_allocator import FakeDevice

torch = pytest.importorskip("torch", reason="needs torch")

MIB = 1 << 20

# Bytes of one entry of one layer, by hand from the published shapes:
# Llama 3.1 8B 8 KV heads of 128; Gemma 3 27B 16 of 128; gpt-oss 8 of 64; MLA 512 + 64 (FlashMLA README: 656 = 512 fp8
# + 4 fp32 scales + 64 bf16; indexer 128 fp8 + fp32 scale); DeepSeek V4 448 + 7 scales + 64 bf16 + 1 = 584;
# Qwen3-Next: 3 columns x 8192 channels x 2 B, 32 x 128 x 128 fp32 (vLLM 0.32 mamba_utils.py).
ENTRIES = [
    ("llama-3.1-8b", "auto", "K+V", 2 * 8 * 128 * 2),
    ("llama-3.1-8b", "fp8", "K+V", 2 * 8 * 128),
    ("llama-3.1-8b", "int8_per_token_head", "K+V", 8 * (2 * 128 + 2 * 4)),
    ("llama-3.1-8b", "int4_per_token_head", "K+V", 8 * (128 + 2 * 4)),
    ("llama-3.1-8b", "nvfp4", "K+V", 8 * 2 * (64 + 8)),
    ("gemma-3-27b", "fp8", "K+V", 2 * 16 * 128),
    ("deepseek-v3", "auto", "latent", 1152),
    ("deepseek-v3", "fp8", "latent", 576),
    ("deepseek-v3", "fp8_ds_mla", "latent", 656),
    ("deepseek-v3.2", "fp8", "latent", 656),
    ("deepseek-v3.2", "fp8", "index keys", 132),
    ("deepseek-v4-pro", "fp8", "window", 584),
    ("deepseek-v4-pro", "fp8", "compressed", 584),
    ("deepseek-v4-pro", "bf16", "window", 1024),
    ("qwen3-next-80b-a3b", "auto", "recurrent state", 32 * 128 * 128 * 4),
    ("qwen3-next-80b-a3b", "auto", "conv state", 3 * 8192 * 2),
]


@pytest.mark.parametrize(("model", "dtype", "part", "size"), ENTRIES)
def test_the_tensors_of_one_entry(model: str, dtype: str, part: str, size: int) -> None:
    spec = resolve_model(model).spec
    groups = pool_groups(spec, resolve_precision(dtype, model_dtype=spec.dtype), 16)
    group = next(group for group in groups if group.part.name == part)
    layer = allocate_layer(open_device("cpu"), group.entry, 3, group.entries_per_block)
    assert sum(map(tensor_bytes, layer.tensors)) == 3 * group.entries_per_block * size
    assert replace(group, layers=1).bytes(3) == 3 * group.entries_per_block * size


def test_v4_states_are_the_published_rows() -> None:
    """8 rows of 2 x 2 x 512 and of 2 x 2 x 128, 128 rows of 2 x 512, in fp32 (vLLM 0.33 deepseek_v4/compressor.py)."""
    spec = resolve_model("deepseek-v4-pro").spec
    groups = pool_groups(spec, resolve_precision("fp8", model_dtype=spec.dtype), 256)
    by_layer = {
        sizes: True for group in groups if group.part.role == "state" for sizes in [replace(group, layers=1).bytes(1)]
    }
    assert set(by_layer) == {65_536, 16_384, 524_288}


MODELS = [
    "llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3.2", "deepseek-v4-pro", "qwen3-next-80b-a3b",
    "jamba-v0.1", "falcon-h1-3b-instruct", "rwkv-5-world-3b", "whisper-large-v3", "llama-4-scout-17b-16e-instruct",
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_every_layout_is_the_plan_to_the_byte_and_to_the_block(model: str, generator: Any) -> None:
    spec, _ = shortened(resolve_model(model).spec, 1)
    case = lay_out(spec, 8 * MIB, kv_cache_dtype="fp8", requests=3)
    with Pools(open_device("cpu"), case) as pools:
        pools.fill(generator)
        assert [pool.measured_bytes for pool in pools.groups] == [
            group.bytes(blocks) for group, blocks in zip(case.groups, case.blocks, strict=True)
        ]
        assert 0 < sum(pools.sizes) <= 8 * MIB
        rows, series = capacity_checks(pools, Churn(24, 8), seed=3)
    assert {row.status for row in rows} == {"pass", "info"}
    assert series[0].y == sorted(series[0].y)


def test_a_block_that_is_written_over_is_seen(generator: Any) -> None:
    case = lay_out(shortened(resolve_model("llama-3.1-8b").spec, 1)[0], 2 * MIB)
    with Pools(open_device("cpu"), case) as pools:
        pool = pools.groups[0]
        pool.write_marks(torch, [0, 1], [11, 12])
        assert pool.wrong_marks(torch, [0, 1], [11, 12]) == 0
        pool.layers[0].fields["value"][1].zero_()
        assert pool.wrong_marks(torch, [0, 1], [11, 12]) == 1


def test_a_pool_that_gives_one_block_away_twice_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.validate.blocks import BlockPool

    honest = BlockPool.take

    def lying(self: BlockPool) -> int:
        """Hand out block 4 where 5 is due."""
        block = honest(self)
        return 4 if block == 5 else block

    monkeypatch.setattr(BlockPool, "take", lying)
    case = lay_out(shortened(resolve_model("llama-3.1-8b").spec, 1)[0], 2 * MIB)
    with Pools(open_device("cpu"), case) as pools:
        rows, _ = capacity_checks(pools, Churn(0), seed=3)
    assert {"fail"} <= {row.status for row in rows}


def test_every_byte_is_filled(generator: Any) -> None:
    case = lay_out(shortened(resolve_model("deepseek-v3.2").spec, 1)[0], 2 * MIB, kv_cache_dtype="fp8")
    with Pools(open_device("cpu"), case) as pools:
        for pool in pools.groups:
            for layer in pool.layers:
                for tensor in layer.fields.values():
                    tensor.view(torch.uint8).zero_()
        pools.fill(generator)
        for pool in pools.groups:
            for layer in pool.layers:
                for tensor in layer.fields.values():
                    wide = tensor.to(torch.float32)
                    assert bool(torch.isfinite(wide).all())
                    assert float((wide == 0).float().mean()) < 0.05


def test_the_allocator_agrees_with_the_prediction(fake_device: Callable[..., FakeDevice]) -> None:
    for model, budget in (("llama-3.1-8b", 96 * MIB), ("gemma-3-27b", 200 * MIB), ("qwen3-next-80b-a3b", 90 * MIB)):
        device = fake_device()
        case = lay_out(shortened(resolve_model(model).spec, 4)[0], budget, requests=2)
        with Pools(device, case) as pools:
            assert device.allocator() == predict_allocations(pools.sizes)
        assert device.allocator() == predict_allocations([])


def test_running_out_in_the_middle_frees_everything(fake_device: Callable[..., FakeDevice]) -> None:
    device = fake_device()
    device.memory.fail_at = 5
    case = lay_out(shortened(resolve_model("llama-3.1-8b").spec, 4)[0], 32 * MIB)
    with pytest.raises(OutOfMemory, match="found no room for a tensor of") as caught, Pools(device, case):
        pytest.fail("the pools must not open")
    assert caught.value.exit_code == 2
    assert device.allocator() == predict_allocations([])


def test_a_dtype_without_tensors_names_those_that_have() -> None:
    spec = resolve_model("llama-3.1-8b").spec
    with pytest.raises(InputError, match=r"--kv-cache-dtype: found q8_0 for K\+V.*expected one of bf16"):
        pool_groups(spec, resolve_precision("q8_0"), 16)


def test_a_model_that_does_not_fit_says_what_it_takes() -> None:
    with pytest.raises(
        InputError, match=r"--pool: found 1\.0+ MiB .*one request of 16 tokens of llama-3.1-8b takes 2\.0+ MiB"
    ):
        lay_out(resolve_model("llama-3.1-8b").spec, MIB)
