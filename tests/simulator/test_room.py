"""`kvplan simulate` has the pool of `kvplan estimate --engine vllm`: the same question, the same blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.served import estimate_served
from kvplan.simulator.build import Setup, build
from kvplan.simulator.scenario import parse_scenario
from kvplan.spec.resolve import resolve_model

WORKLOAD = {"arrivals": {"rate": 1}, "requests": 1, "prompt": 100, "output": 10}


def setup(model: str, gpu: str, engine: dict[str, Any], **hardware: Any) -> Setup:
    document = {"model": model, "hardware": {"gpu": gpu, **hardware}, "engine": engine, "workload": WORKLOAD}
    return build(parse_scenario(document, "test"), Path()).setup


@pytest.mark.parametrize(
    ("model", "gpu", "flags", "hardware"),
    [
        ("llama-3.1-8b", "h100", {}, {}),
        ("llama-3.1-8b", "l4", {"max_model_len": 8192, "kv_cache_dtype": "fp8"}, {"memory_utilization": 0.95}),
        ("llama-3.1-70b", "h100", {"max_model_len": 32768, "max_num_seqs": 64}, {"tensor_parallel": 4}),
        ("gpt-oss-20b", "h100", {"max_num_batched_tokens": 4096}, {}),  # windows
        ("gemma-3-27b", "a100", {"max_model_len": 65536}, {"tensor_parallel": 2}),
        ("nemotron-nano-9b-v2", "h100", {"max_model_len": 32768}, {}),  # recurrent states
        ("deepseek-v3", "h200", {"max_model_len": 65536}, {"tensor_parallel": 8}),  # latents
    ],
)
@pytest.mark.parametrize("version", [None, "0.19"])
def test_blocks_are_those_of_the_estimate(
    model: str, gpu: str, flags: dict[str, Any], hardware: dict[str, Any], version: str | None
) -> None:
    found = setup(model, gpu, {**flags, "version": version}, **hardware)
    settings = {
        **flags,
        "tensor_parallel_size": hardware.get("tensor_parallel", 1),
        "gpu_memory_utilization": hardware.get("memory_utilization"),
    }
    name = "vllm" if version is None else f"vllm@{version}"
    engine = estimate_served(resolve_model(model), engine=name, gpu=gpu, settings=settings).engine
    assert found.layout.blocks == engine.usable_blocks
    assert found.block_bytes == engine.bytes_per_block
    assert [law.block for law in found.layout.groups] == [group.block_tokens for group in engine.groups]
    assert found.settings.max_num_seqs == engine.settings["max_num_seqs"]
    assert found.settings.max_num_batched_tokens == engine.settings["max_num_batched_tokens"]
    assert found.settings.prefix_caching == engine.settings["enable_prefix_caching"]


def test_given_bytes_and_blocks_take_the_place_of_the_budget() -> None:
    """Llama 3.1 8B: 2 x 8 x 128 x 2 B x 32 layers x 16 tokens = 2 MiB a block, one of which vLLM never hands out."""
    assert setup("llama-3.1-8b", "h100", {"kv_cache_memory": "4GiB", "max_model_len": 8192}).layout.blocks == 2047
    assert setup("llama-3.1-8b", "h100", {"num_blocks": 1000, "max_model_len": 8192}).layout.blocks == 999


def test_a_device_without_room_is_named() -> None:
    with pytest.raises(InputError, match=r"hardware: found t4, on which vLLM .* doesn't start llama-3.1-8b"):
        setup("llama-3.1-8b", "t4", {})


def test_a_length_that_does_not_fit_is_said_and_simulated() -> None:
    """128 K tokens of 128 KiB are 16 GiB, and 4 GiB hold 32,752 of them beside the block that is never handed out."""
    found = setup("llama-3.1-8b", "h100", {"kv_cache_memory": "4GiB"})
    assert found.layout.blocks == 2047
    assert found.max_model_len == 131_072
    assert "needs 16.00 GiB" in found.says[0]


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        (
            "hardware",
            {"gpu": "h100", "pipeline_parallel": 2},
            "pipeline_parallel has no step time yet, expected tensor",
        ),
        ("hardware", {"gpu": "h100", "data_parallel_size": 2}, "is written as replicas"),
        ("engine", {"name": "sglang"}, "engine.name: found 'sglang', expected vllm, whose pool is simulated"),
        ("engine", {"eviction_policy": "optimal"}, "expected lru, fifo or lfu, since the offline optimum knows the"),
    ],
)
def test_what_is_not_modelled_is_refused_in_a_sentence(part: str, values: dict[str, Any], words: str) -> None:
    document = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100"}, "workload": WORKLOAD, part: values}
    with pytest.raises(InputError, match=words):
        parse_scenario(document, "test")


def test_states_kept_all_along_a_prompt_are_refused() -> None:
    """vLLM 0.11 keeps Mamba states at every block of a prompt (mode all), which no fixed count describes."""
    with pytest.raises(InputError, match="enable_prefix_caching: false"):
        setup("nemotron-nano-9b-v2", "h100", {"version": "0.11.2", "enable_prefix_caching": True})
