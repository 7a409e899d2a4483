"""Advice holds what `kvplan estimate --engine` answers for the same setting, and advises nothing that it refuses."""

from __future__ import annotations

import functools

import pytest

from kvplan.answers.advise import Advice, Lever, advise
from kvplan.errors import InputError
from kvplan.served import ServedEstimate, estimate_served
from kvplan.spec.resolve import resolve_model

PLACES = (
    ("llama-3.1-70b", "h200", 4, 8192),
    ("gpt-oss-120b", "h100", 1, 131072),
    ("gemma-3-27b", "h200", 1, 32768),
    ("deepseek-v3", "h200", 8, 131072),
    ("qwen3-next-80b-a3b", "h200", 2, 131072),
)


@functools.cache
def advised(model: str, gpu: str, gpus: int, context: int, engine: str = "vllm", goal: str = "capacity") -> Advice:
    return advise(model, gpu=gpu, goal=goal, ctx=context, num_gpus=gpus, engine=engine)


def served(model: str, gpu: str, gpus: int, context: int, **flags: object) -> ServedEstimate:
    settings = {"max_model_len": context, "tensor_parallel_size": gpus, **flags}
    return estimate_served(resolve_model(model), engine="vllm", gpu=gpu, settings=settings)


def flags_of(lever: Lever) -> dict[str, object]:
    """The vLLM flags that a lever's setting stands for."""
    if lever.technique == "parallel":
        return {"tensor_parallel_size": lever.after.gpus}
    if lever.technique == "decode-context":
        return {"decode_context_parallel_size": int(lever.setting.rpartition(" ")[2].rstrip(")"))}
    dtype, _, windows = lever.setting.removeprefix("KV cache dtype ").partition(", ")
    skipped: dict[str, object] = {"kv_cache_dtype_skip_layers": "sliding_window"} if windows else {}
    return {"kv_cache_dtype": dtype, **skipped}


@pytest.mark.parametrize(("model", "gpu", "gpus", "context"), PLACES)
def test_each_lever_is_what_estimate_answers(model: str, gpu: str, gpus: int, context: int) -> None:
    answer = advised(model, gpu, gpus, context)
    assert {lever.technique for lever in answer.levers} <= {"quantization", "parallel", "decode-context"}
    assert len(answer.levers) >= 4
    for lever in answer.levers:
        engine = served(model, gpu, gpus, context, **flags_of(lever)).engine
        assert engine.refused is None
        assert lever.after.pool_tokens == engine.capacity_tokens
        assert lever.after.sequences == int(engine.max_concurrency or 0)
        assert lever.after.pool_bytes_per_gpu == min(engine.available_bytes)


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "context", "dtype"),
    [(*PLACES[1], "turboquant_k8v4"), (*PLACES[2], "turboquant_3bit_nc"), (*PLACES[3], "fp8_ds_mla")],
)
def test_a_dtype_that_estimate_refuses_is_no_lever(model: str, gpu: str, gpus: int, context: int, dtype: str) -> None:
    with pytest.raises(InputError) as refused:
        served(model, gpu, gpus, context, kv_cache_dtype=dtype)
    answer = advised(model, gpu, gpus, context)
    assert all(dtype not in lever.setting for lever in answer.levers)
    reasons = [ruled.reason for ruled in answer.ruled_out if f"KV cache dtype {dtype}" in ruled.reason]
    assert len(reasons) == 1
    assert str(refused.value).partition("(")[0].partition("found")[0] in reasons[0]


def test_turboquant_leaves_vllms_boundary_layers_in_16_bits() -> None:
    # The first and last 2 of 80 layers: 80 / (4 + 76 x 6.125 / 16), vLLM's own post says 2.4.
    answer = advised(*PLACES[0])
    lever = next(lever for lever in answer.levers if lever.setting.endswith("turboquant_k8v4"))
    assert lever.after.pool_tokens / answer.now.pool_tokens == pytest.approx(80 / (4 + 76 * 6.125 / 16), rel=1e-3)
    assert lever.after.bytes_per_sequence_per_gpu == pytest.approx(2 * 10 * 2**30 / 32 * (4 + 76 * 6.125 / 16) / 80)


def test_a_start_that_estimate_refuses_holds_no_sequence() -> None:
    answer, estimate = advised(*PLACES[1]), served(*PLACES[1])
    assert estimate.engine.refused is not None
    assert answer.now.sequences == 0
    assert answer.now.pool_bytes_per_gpu == estimate.engine.available_bytes[0]
    assert answer.now.longest_context_tokens == estimate.engine.estimated_max_model_len


def test_ranks_that_estimate_refuses_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        served("llama-3.1-70b", "h200", 3, 8192)
    with pytest.raises(InputError) as found:
        advise("llama-3.1-70b", gpu="h200", goal="capacity", ctx=8192, num_gpus=3)
    assert str(found.value) == str(refused.value)


def test_ranks_that_copy_latents_can_split_sequences() -> None:
    # A latent is copied to all of 8 ranks; split over them each holds an eighth.
    answer = advised(*PLACES[3])
    chosen = answer.chosen
    assert chosen is not None
    assert chosen.technique == "decode-context"
    assert chosen.after.pool_tokens == 8 * answer.now.pool_tokens
    assert chosen.after.read_bytes_per_step_per_gpu * 8 == answer.now.read_bytes_per_step_per_gpu
    dense = advised(*PLACES[0])
    assert all(lever.technique != "decode-context" for lever in dense.levers)
    assert sum(ruled.technique == "decode-context" for ruled in dense.ruled_out) == 1


def test_a_choice_runs_a_sequence_where_one_lever_does() -> None:
    # 16 GiB at 131,072 tokens in 16 bits, 8.5 in q8_0 and 4.5 in q4_0, beside 15 GiB of weights on 24 GB.
    answer = advised("llama-3.1-8b", "rtx-3090", 1, 131072, "llama.cpp")
    after = {lever.setting.rpartition(" ")[2]: lever.after.sequences for lever in answer.levers}
    assert answer.now.sequences == after["q8_0"] == 0
    assert after["q4_0"] == 1
    assert answer.chosen is not None
    assert answer.chosen.after.sequences == 1


def test_a_prefix_that_frees_less_than_a_session_is_said_so() -> None:
    # Sessions of 4 GiB in 9: two, and with 0.25 GiB of each stored once 1 + (9 - 4) / 3.75, still two.
    answer = advise("llama-3.1-8b", gpu="h100", goal="idle-sessions", ctx="32k", share_prefix="2k", pool="9GiB")
    (reason,) = (ruled.reason for ruled in answer.ruled_out if ruled.technique == "prefix")
    assert "room for less than one more session" in reason
    assert "changes no byte" not in reason


@pytest.mark.parametrize(("model", "gpu", "gpus"), [("llama-3.1-8b", "rtx-4090", 1), ("llama-3.1-70b", "h100", 2)])
def test_the_longest_context_is_one_that_starts(model: str, gpu: str, gpus: int) -> None:
    answer = advised(model, gpu, gpus, 8192, "vllm", "context")
    limit = resolve_model(model).spec.max_context
    for lever in answer.levers:
        context, flags = lever.after.longest_context_tokens, flags_of(lever)
        assert served(model, gpu, gpus, context, **flags).engine.refused is None
        # One block more than the longest doesn't start, unless the model's own limit binds.
        if context != limit:
            assert served(model, gpu, gpus, context + 64, **flags).engine.refused is not None
