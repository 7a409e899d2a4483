"""What a failure says would pass does pass: the change is made in the command, and the check is asked again."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.check.metrics import METRICS, parse_condition
from kvplan.errors import InputError
from tests.conftest import Ran

LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B"
CASES = [
    (f"vllm serve {LLAMA} --max-model-len 131072", "l4", "fits"),
    (f"vllm serve {LLAMA} --max-model-len 32768 --gpu-memory-utilization 0.5", "h100", "capacity_tokens >= 250k"),
    (f"vllm serve {LLAMA} --max-model-len 32768", "h100", "capacity_tokens >= 700k"),
    (f"vllm serve {LLAMA} --max-model-len 65536", "h100", "max_concurrency >= 9"),
    (f"vllm serve {QWEN} --max-model-len 32768", "h100", "max_concurrency >= 12"),
    (f"vllm serve {QWEN} --max-model-len 8192", "a100-40gb", "fits"),
    (f"python -m sglang.launch_server --model-path {LLAMA} --context-length 32768", "h100", "capacity_tokens >= 700k"),
]
FLAG = re.compile(r"--[a-z-]+ [\w.]+")


@pytest.mark.parametrize(("command", "gpu", "sentence"), CASES, ids=[f"{case[1]} {case[2]}" for case in CASES])
def test_the_smallest_change_passes(
    kvplan_cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, gpu: str,
    sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)

    def check(line: str) -> tuple[int, str]:
        Path("capacity.yaml").write_text(
            f"expectations:\n  - name: a\n    command: {line}\n    hardware: {gpu}\n    expect: {sentence}\n"
        )
        ran = kvplan_cli("check", "capacity.yaml", "--no-cache", "--json")
        return ran.code, next(each["change"] for each in json.loads(ran.out)["verdicts"] if each["metric"])

    code, change = check(command)
    assert code == 1
    words = FLAG.match(change)
    assert words is not None, change
    flag, value = words[0].split()
    kept = re.sub(rf"{flag} \S+", "", command)
    ranks = int(value) if flag in ("--tensor-parallel-size", "--tp-size") else 1
    gpu = f"{ranks} x {gpu}" if ranks > 1 else gpu
    assert check(f"{kept} {words[0]}") == (0, "")


@given(st.text(alphabet=string.printable, max_size=60))
def test_any_sentence_is_read_or_refused_in_one(text: str) -> None:
    try:
        condition = parse_condition(text, "expect")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert condition.metric is None or condition.metric.name in METRICS


@given(
    st.sampled_from([name for name, metric in METRICS.items() if metric.unit == "tokens"]),
    st.sampled_from([">=", "<=", "==", ">", "<"]),
    st.integers(1, 10**9),
    st.integers(0, 2 * 10**9),
)
def test_a_comparison_is_the_arithmetic_one(name: str, order: str, asked: int, got: int) -> None:
    condition = parse_condition(f"{name} {order} {asked}", "expect")
    right = {">=": got >= asked, "<=": got <= asked, "==": got == asked, ">": got > asked, "<": got < asked}
    assert condition.holds(got) is right[order]
