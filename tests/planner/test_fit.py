"""`--fit` against brute force over `kvplan estimate`, and its grammar."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.estimator import estimate
from kvplan.hardware.accelerators import find
from kvplan.planner.fit import Question, answer_fit, parse_question
from kvplan.serving import serve
from kvplan.spec.resolve import LoadedModel, resolve_model

MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b-instruct", "deepseek-v2-lite", "gpt-oss-20b")
DEVICES = ("l4", "l40s", "a100-sxm-40gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb")


@cache
def loaded(model: str) -> LoadedModel:
    return resolve_model(model)


def fits(model: str, context: int, users: int, device: str, count: int, dtype: str = "auto") -> bool:
    answer = estimate(loaded(model), ctx=context, batch=users, kv_cache_dtype=dtype, gpu=device, num_gpus=count)
    assert answer.fit is not None
    return answer.fit.fits


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(MODELS), st.integers(1, 300), st.sampled_from(DEVICES), st.sampled_from([1, 2, 4]),
    st.sampled_from(["auto", "fp8"]),
)  # fmt: skip
def test_the_largest_context_fits_and_one_token_more_does_not(
    model: str, users: int, device: str, count: int, dtype: str
) -> None:
    answer = answer_fit(loaded(model), f"largest context for {users} users on {count}x {device}", kv_cache_dtype=dtype)
    limit = loaded(model).spec.max_context or 0
    if answer.value is None:
        assert not fits(model, 1, users, device, count, dtype)
        return
    assert fits(model, answer.value, users, device, count, dtype)
    assert answer.value == limit or not fits(model, answer.value + 1, users, device, count, dtype)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 131072), st.sampled_from(DEVICES), st.sampled_from([1, 2, 8]))
def test_most_users_fit_and_one_more_does_not(model: str, context: int, device: str, count: int) -> None:
    answer = answer_fit(loaded(model), f"most users at {context} tokens on {count} x {device}")
    if answer.value is None:
        assert not fits(model, context, 1, device, count)
        return
    assert fits(model, context, answer.value, device, count)
    assert not fits(model, context, answer.value + 1, device, count)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 64), st.sampled_from([1024, 8192, 32768]))
def test_the_smallest_gpu_is_that_of_a_full_scan(model: str, users: int, context: int) -> None:
    answer = answer_fit(loaded(model), f"smallest gpu for {users} users at {context}", gpus=DEVICES)
    scan = [
        (count, find(device).memory_bytes, device)
        for count in (1, 2, 4, 8, 16)
        for device in DEVICES
        if fits(model, context, users, device, count)
    ]
    found = None if answer.gpu is None else (answer.gpu_count, find(answer.gpu).memory_bytes, answer.gpu)
    assert found == min(scan, default=None)


@pytest.mark.parametrize("users", [1, 7, 60])
def test_with_an_engine_its_own_concurrency_counts(users: int) -> None:
    model = loaded("llama-3.1-8b")
    answer = answer_fit(model, f"largest context for {users} users on h100", engine="vllm")
    assert answer.value is not None

    def held(length: int) -> float:
        served = serve(model, "vllm", find("h100"), {"max_model_len": length}, help_wanted=False)
        return served.engine.max_concurrency or 0.0

    assert held(answer.value) >= users
    assert answer.value == 131072 or held(answer.value + 16) < users


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (
            "largest context for 64 users on 2x h100",
            Question("largest context", 64, None, "h100-sxm-80gb", 2),
        ),
        ("Largest Context on h100", Question("largest context", None, None, "h100-sxm-80gb", 1)),
        ("most users at 128k on 8 x h200", Question("most users", None, 131072, "h200-sxm-141gb", 8)),
        ("most users on 4xl40s at 32000 tokens", Question("most users", None, 32000, "l40s", 4)),
        ("smallest gpu", Question("smallest gpu")),
        ("smallest gpu at 1M context for 1 user", Question("smallest gpu", 1, 1 << 20)),
        ("most users at 8k on rtx 4090", Question("most users", None, 8192, "rtx-4090", 1)),
    ],
)
def test_questions_that_are_understood(text: str, question: Question) -> None:
    assert parse_question(text) == question


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected it to begin with one of largest context"),
        ("bigest context", "nearest: largest context"),
        ("largest context", "a clause such as 'on 2x h100'"),
        ("most users on h100", "a clause such as 'at 128k'"),
        ("most users at 128k", "a clause such as 'on 2x h100'"),
        ("largest context at 8k on h100", "with a fixed context"),
        ("most users for 8 users at 8k on h100", "with a fixed users"),
        ("smallest gpu on h100", "with a fixed gpu"),
        ("largest context for users on h100", "column 21: found 'users', expected a number of users"),
        ("largest context for 0 users on h100", "expected 1 to"),
        ("largest context for 8 users for 9 users on h100", "column 29: found 'for', expected each clause once"),
        ("largest context with h100", "column 17: found 'with', expected one of for N users"),
        ("most users at many on h100", "column 15"),
        ("most users at 8k on", "expected devices such as 2x h100"),
        ("most users at 8k on 2x", "expected devices such as 2x h100"),
        ("most users at 8k on 0x h100", "expected devices such as 2x h100"),
        ("most users at 8k on h1000", "column 21: found the unknown device 'h1000'"),
        ("smallest gpu " * 40, "expected it to begin with"),
    ],
)
def test_questions_that_are_not(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_question(text)
    assert words in str(caught.value)
