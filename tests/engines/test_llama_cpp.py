"""llama.cpp against the log of build b11549: each cache of 18 full-size shapes x 27 settings and of 37 shapes x 12."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.base import Device, EngineAnswer, Parallelism, Pool
from kvplan.engines.llama_cpp.devices import HOST, layer_devices
from kvplan.engines.llama_cpp.engine import ENGINE
from kvplan.errors import InputError
from kvplan.spec.importers.gguf import spec_from_metadata
from kvplan.spec.layers import FullAttention, LatentAttention, SlidingWindow
from kvplan.spec.model import ModelSpec, Provenance
from kvplan.units import GIB, MIB

FOLDER = Path(__file__).parents[1] / "golden/engines"
GOLDEN = json.loads((FOLDER / "llama_cpp.json").read_text(encoding="utf-8"))
MORE = json.loads((FOLDER / "llama_cpp_more.json").read_text(encoding="utf-8"))
MODELS = {model["model"]: model for model in (*GOLDEN["models"], *MORE["models"])}
DEVICE = Device("any", 1 << 50)
ROUNDING = 0.006  # MiB, printed with two decimals


def spec_of(model: dict[str, Any]) -> ModelSpec:
    arch = model["arch"]
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in model["metadata"].items()}}
    return spec_from_metadata(metadata, label=model["model"], name=model["model"])


def ask(spec: ModelSpec, settings: dict[str, Any], version: str | None = None, **kwargs: Any) -> EngineAnswer:
    parallel = Parallelism(pipeline=kwargs.pop("devices", 1))
    return ENGINE.plan(spec, settings, parallel, kwargs.pop("available", [1 << 60]), DEVICE, version)


def small(**kwargs: Any) -> ModelSpec:
    blocks = kwargs.pop("blocks", {"full": FullAttention(8, 8, 128)})
    return ModelSpec(
        "small", kwargs.pop("model_type", "llama"), "float16", blocks,
        kwargs.pop("layers", ("4 x full",)), Provenance("test", "verbatim"), max_context=8192, **kwargs,
    )  # fmt: skip


def close(pool: Pool, label: str, mib: float) -> bool:
    return abs(pool.parts[label] / MIB - mib) <= ROUNDING


@pytest.mark.parametrize("name", MODELS)
def test_every_line_of_the_log(name: str) -> None:
    model = MODELS[name]
    spec = spec_of(model)
    for case in model["cases"]:
        settings = {**GOLDEN["defaults"], **case["params"]}
        if case.get("refused"):
            with pytest.raises(InputError, match="--cache-type-"):
                ask(spec, settings, "b11549")
            continue
        answer = ask(spec, settings, "b11549")
        assert (answer.setting("ctx_size"), answer.max_model_len) == (case["n_ctx"], case["n_ctx_seq"])
        caches = [pool for pool in answer.pools if "KV cache" in pool.name and pool.layers]
        expected = [row for row in case["kv"] if row[1]]  # a cache without layers is printed, and holds nothing
        for pool, (cells, layers, streams, k, v) in zip(caches, expected, strict=True):
            assert (pool.slots, pool.layers, pool.streams) == (cells * streams, layers, streams), case
            assert close(pool, "K", k) and close(pool, "V", v), (case, pool)
        states = [pool for pool in answer.pools if pool.name == "recurrent state"]
        for pool, (r, s) in zip(states, case.get("rs", []), strict=True):
            assert close(pool, "R", r) and close(pool, "S", s), (case, pool)
        rows = [pool for pool in answer.pools if pool.name.endswith("compressor state")]
        for pool, (layers, mib) in zip(rows, case.get("dsv4", []), strict=True):
            assert pool.layers == layers and abs(pool.bytes / MIB - mib) <= ROUNDING, (case, pool)


def test_the_golden_set_is_whole() -> None:
    cases = [case for model in GOLDEN["models"] for case in model["cases"]]
    assert len(GOLDEN["models"]) == 18 and len(cases) == 18 * 27
    assert sum(case.get("refused", False) for case in cases) == 6
    assert sum(len(case.get("rs", [])) for case in cases) == 108
    assert sum(len(case.get("dsv4", [])) for case in cases) == 75


def test_rounding_up_beyond_the_request() -> None:
    """n_ctx 1,000 for 3 slots makes 512 cells each, 1,536 in all, and says so (log of build b11549)."""
    answer = ask(small(), {"ctx_size": 1000, "parallel": 3})
    assert answer.capacity_tokens == 1536 and answer.max_model_len == 512
    assert any("rounded up" in warning for warning in answer.warnings)


def test_server_defaults_share_one_context() -> None:
    """Auto slots are 4 with one unified context; slots asked for split it (llama.cpp pulls 16736 and 17997)."""
    auto = ask(small(), {"ctx_size": 8192})
    assert (auto.setting("parallel"), auto.setting("kv_unified"), auto.max_model_len) == (4, True, 8192)
    split = ask(small(), {"ctx_size": 8192, "parallel": 4})
    assert (split.setting("kv_unified"), split.max_model_len) == (False, 2048)


def test_slots_of_one_unified_context_share_its_cells() -> None:
    """Four slots on one stream of 8,192 cells hold one request of 8,192 tokens; split, four of 2,048."""
    auto = ask(small(), {"ctx_size": 8192})
    assert (auto.num_blocks, auto.blocks_per_request, auto.max_concurrency) == (8192, 8192, 1.0)
    assert auto.binding == "KV cache" and auto.reserved_bytes_one_request == auto.needed_bytes_one_request
    split = ask(small(), {"ctx_size": 8192, "parallel": 4})
    assert (split.num_blocks, split.blocks_per_request, split.max_concurrency) == (8192, 2048, 4.0)
    assert split.binding == "slots" and 4 * split.reserved_bytes_one_request == split.needed_bytes_one_request


def test_windows_are_kept_for_each_slot() -> None:
    """Window cells of a unified cache: 4 slots x 512 + a micro-batch of 512 = 2,560, so no slot waits for another."""
    answer = ask(small(blocks={"full": SlidingWindow(8, 8, 128, 512)}), {"ctx_size": 8192})
    assert answer.pool("SWA KV cache").slots == 2560 and answer.max_concurrency == 4.0


def test_memory_of_each_stage_serves_its_ranks() -> None:
    """Two sizes on four devices: one layer of 4,096 cells x 2 KiB x 2 fits 16 MiB, and not a byte less.

    Three layers and the output take a device each.
    """
    size, spec = 4096 * 8 * 128 * 2 * 2, small(layers=("3 x full",))
    parallel, settings = Parallelism(tensor=2, pipeline=2), {"ctx_size": 4096, "parallel": 1}
    assert ENGINE.plan(spec, settings, parallel, [size, size], DEVICE).refused is None
    assert ENGINE.plan(spec, settings, parallel, [size, size - 1], DEVICE).refused is not None
    with pytest.raises(InputError, match="found 3 sizes"):
        ENGINE.plan(spec, settings, parallel, [size] * 3, DEVICE)


def test_layers_go_to_the_cpu_where_nothing_says_how_many_stay() -> None:
    settings = {"ctx_size": 4096, "parallel": 1}
    assert any("CPU" in note and "-ngl" in note for note in ask(small(), settings, available=[0]).warnings)
    for more in ({"n_gpu_layers": 4}, {"fit": "off"}):
        assert not any("CPU" in note for note in ask(small(), settings | more, available=[0]).warnings)
    assert not any("CPU" in note for note in ask(small(), settings).warnings)


def test_mla_keys_are_assumed_of_latents_alone() -> None:
    mla = small(blocks={"full": LatentAttention(128, 512, 64, nope_head_dim=128, v_head_dim=128)}, layers=("full",))
    assert any("MLA keys" in note for note in ask(mla, {}).assumptions)
    assert not any("MLA keys" in note for note in ask(small(), {}).assumptions)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("b5000", 128 * 192 + 128 * 128), ("b5614", 576 + 512), ("b11549", 576)],
)
def test_mla_by_build(version: str, expected: int) -> None:
    """Expanded heads, the latent twice, the latent once: values a token and layer (pulls 12801 and 19067)."""
    mla = small(blocks={"full": LatentAttention(128, 512, 64, nope_head_dim=128, v_head_dim=128)}, layers=("full",))
    settings = {"ctx_size": 4096, "parallel": 1}
    assert ask(mla, settings, version).bytes_per_block == (expected * 2,)
    assert ask(mla, {**settings, "gguf_mla_keys": "false"}, version).bytes_per_block == (40960 * 2,)


def test_windows_have_no_pool_before_may_2025() -> None:
    window = small(blocks={"full": SlidingWindow(8, 8, 128, 512)})
    settings = {"ctx_size": 8192, "parallel": 1}
    old, new = ask(window, settings, "b5192"), ask(window, settings, "b5636")
    assert [pool.slots for pool in old.pools] == [8192]
    assert [pool.slots for pool in new.pools] == [8192, 1024] and new.pools[0].layers == 0


def test_window_of_a_model_llama_cpp_does_not_trim() -> None:
    window = small(blocks={"full": SlidingWindow(8, 8, 128, 512)}, model_type="mistral")
    answer = ask(window, {"ctx_size": 8192, "parallel": 1})
    assert [pool.slots for pool in answer.pools] == [8192]
    assert any("mistral" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "flash attention off"),
        ({"cache_type_k": "q8_1"}, "nearest: q8_0"),
        ({"parallel": 1000}, "from -1 to 256"),
        ({"ctx_size": "many"}, "whole number of tokens"),
    ],
)
def test_refused_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(small(), settings)


def test_block_types_need_whole_blocks_in_a_head() -> None:
    with pytest.raises(InputError, match="don't divide a head of 80"):
        ask(small(blocks={"full": FullAttention(8, 8, 80)}), {"cache_type_k": "q8_0"})


def test_a_start_that_does_not_fit() -> None:
    """4 layers x 8 heads x 128 x 2 x 2 B = 16,384 B a cell: 8,192 cells need 128 MiB."""
    answer = ask(small(), {"ctx_size": 8192, "parallel": 1}, available=[64 * MIB])
    assert answer.refused is not None and answer.refused.needed_bytes == 128 * MIB
    assert answer.refused.estimated_max_model_len == 4096 and answer.capacity_tokens is None


def test_fit_shrinks_a_context_nobody_asked_for() -> None:
    answer = ask(small(), {"parallel": 1}, available=[96 * MIB])
    assert answer.refused is None and answer.capacity_tokens == 6144


def test_an_unknown_build_is_answered_as_the_nearest() -> None:
    answer = ask(small(), {}, "b99999")
    assert answer.version == "b11549" and any("b99999" in warning for warning in answer.warnings)
    with pytest.raises(InputError, match="expected one such as b11549"):
        ask(small(), {}, "latest")


@pytest.mark.parametrize(
    ("layers", "devices", "gpu_layers", "expected"),
    [
        (40, 2, None, {0: 21, 1: 19}),  # issue 12012: 420 and 380 of 800 MiB
        (80, 3, None, {0: 27, 1: 27, 2: 26}),  # issue 10176: 843.75, 843.75 and 812.5 of 2,500 MiB
        (32, 1, 10, {HOST: 22, 0: 10}),  # issue 12213: 5,120 MiB on the GPU, 11,264 on the host
    ],
)
def test_layers_over_devices(layers: int, devices: int, gpu_layers: int | None, expected: dict[int, int]) -> None:
    places = layer_devices(layers, devices, gpu_layers)
    assert {device: places.count(device) for device in expected} == expected


def test_host_cache_counts_against_no_device() -> None:
    answer = ask(small(), {"ctx_size": 8192, "parallel": 1, "no_kv_offload": True}, available=[0])
    assert answer.refused is None and any("host memory" in warning for warning in answer.warnings)


def windows() -> Iterator[int]:
    yield from (128, 512, 1024, 4096)


@given(
    st.integers(1, 200_000), st.integers(1, 32), st.booleans(), st.sampled_from([128, 512, 2048]),
    st.sampled_from(list(windows())),
)  # fmt: skip
def test_laws(context: int, slots: int, unified: bool, ubatch: int, window: int) -> None:
    """Whole streams of 256 cells, never fewer than asked for in one; windows never above the context."""
    spec = small(blocks={"full": FullAttention(8, 8, 128), "window": SlidingWindow(8, 8, 128, window)},
                 layers=("2 x full", "2 x window"))  # fmt: skip
    settings = {"ctx_size": context, "parallel": slots, "kv_unified": unified, "ubatch_size": ubatch}
    answer = ask(spec, settings)
    full, swa = answer.pools
    assert full.slots % 256 == 0 and swa.slots % 256 == 0
    assert swa.slots <= full.slots and full.streams == swa.streams == (1 if unified else slots)
    assert full.slots >= context or (not unified and full.slots // slots >= context // slots)
    assert answer.needed_bytes_one_request == sum(pool.bytes for pool in answer.pools) <= 64 * GIB * GIB
