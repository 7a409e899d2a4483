"""Mistakes that public threads report as found too late: each is found at its line, with what explains it.

The patterns and threads: vllm-project/vllm issues 2418, 13882, 14376, 4232, 8908, 10826, 27508, 49064, 2565, 1157,
4462 and 27347; ggml-org/llama.cpp 11681; joryirving/home-ops pull request 9818. Figures are worked out by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

LLAMA = "vllm serve meta-llama/Llama-3.1-8B"
CASES = [
    # 131,072 tokens x 128 KiB.
    ("longer than the pool", f"{LLAMA} --max-model-len 131072", "l4", 1, "length-over-pool", "fail",
     ("16.00 GiB", "the longest that fits is", "weights 14.99 GiB", "--max-model-len")),
    # 8,030,261,248 parameters x 2 B = 14.96 GiB, and 0.6 of 22.06 GiB is 13.24 GiB.
    ("no room for a cache", f"{LLAMA} --max-model-len 4096 --gpu-memory-utilization 0.6", "l4", 1,
     "weights-over-budget", "fail",
     ("13.24 GiB", "GiB available", "= -", "it would also start on", "8-bit checkpoint")),
    ("heads not divisible", "vllm serve Qwen/Qwen2.5-7B -tp 8 --max-model-len 4096", "h100", 8, "heads-not-divisible",
     "fail", ("28 attention heads", "1, 2, 4")),
    ("more ranks than GPUs", f"{LLAMA} -tp 2 --max-model-len 4096", "h100", 1, "more-ranks-than-devices", "fail",
     ("ranks = TP 2 x PP 1 x DP 1 = 2, GPUs = 1",)),
    ("idle GPUs", f"{LLAMA} --max-model-len 4096", "h100", 2, "idle-capacity", "warning",
     ("1 of 2 GPUs stay idle", "tensor parallel size 2")),
    # 1,024 x 151,936 x 4 B = 593.5 MiB.
    ("share too high", "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 16384 --gpu-memory-utilization 0.95", "h100", 2,
     "share-too-high", "warning", ("593.5 MiB", "max_num_seqs", "3.957 GiB of each GPU")),
    ("more sequences than states", "vllm serve Qwen/Qwen3.5-27B --max-model-len 16384 --max-num-seqs 1024", "h100", 1,
     "states-over-pool", "fail", ("max_num_seqs 1,024", "the highest that starts")),
    ("beyond the checkpoint", "vllm serve Qwen/Qwen3-8B --max-model-len 131072", "h200", 1, "beyond-checkpoint", "fail",
     ("131,072", "40,960 positions")),
    ("bfloat16 on an old card", f"{LLAMA} --max-model-len 1024 --dtype bfloat16", "v100-32gb", 1, "format-unsupported",
     "fail", ("compute capability 7.0", "float16")),
    ("fp8 cache on Ampere", f"{LLAMA} --max-model-len 1024 --kv-cache-dtype fp8", "rtx-3090", 1, "format-unsupported",
     "warning", ("needs 8.9", "fp8_e5m2")),
    ("two words in one", f"{LLAMA} '--max-model-len 16384'", "h100", 1, "joined-argument", "fail",
     ("--max-model-len 16384",)),
    ("a flag that is gone", f"{LLAMA} --max-model-len 4096 --swap-space 4", "h100", 1, "removed-flag", "fail",
     ("--swap-space",)),
    ("a flag that never was", f"{LLAMA} --max-model-length 4096", "h100", 1, "unknown-flag", "fail",
     ("--max-model-len",)),
    ("slots share the context", "llama-server -hf ggml-org/Meta-Llama-3.1-8B-GGUF:BF16 -c 32768 -np 4", "l4", 1,
     "context-split", "warning", ("32,768", "8,192 tokens for each slot")),
    ("no length", f"{LLAMA}", "h200", 1, "length-unset", "warning", ("131072",)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "command", "gpu", "count", "rule", "status", "words"), CASES, ids=[case[0] for case in CASES]
)
def test_each_is_found_and_explained(
    kvplan_cli: Callable[..., Ran], place: Path, name: str, command: str, gpu: str, count: int, rule: str, status: str,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    (place / "serve.sh").write_text(f"#!/bin/sh\n\n{command}\n")
    engine = "    engine: vllm@0.20.0\n" if command.startswith("vllm") else ""
    (place / "capacity.yaml").write_text(
        f"expectations:\n  - name: a\n    manifest: serve.sh\n{engine}    hardware: {count} x {gpu}\n    expect: fits\n"
    )
    ran = kvplan_cli("check", "capacity.yaml", "--no-cache", "--json")
    assert ran.code == (1 if status == "fail" else 0)
    found = [each for each in json.loads(ran.out)["verdicts"] if each["rule"] == rule]
    assert found, ran.out
    assert {(each["status"], each["file"], each["line"]) for each in found} == {(status, "serve.sh", 3)}
    said = " ".join(each["text"] for each in found)
    assert all(word in said for word in words), said


COMPOSE = """services:
  first:
    image: vllm/vllm-openai:v0.20.0
    command: --model Qwen/Qwen3-8B --max-model-len 4096 --gpu-memory-utilization 0.6
    deploy: &gpu
      resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}]}}
  second:
    image: vllm/vllm-openai:v0.20.0
    command: --model Qwen/Qwen3-8B --max-model-len 4096 --gpu-memory-utilization 0.6
    deploy: *gpu
"""
POD = """apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
    - name: server
      image: ghcr.io/ggml-org/llama.cpp:server-cuda
      args: ["-hf", "ggml-org/Meta-Llama-3.1-8B-GGUF:BF16", "-c", "4096", "-np", "1", "--cache-ram", "40960"]
      resources: {limits: {nvidia.com/gpu: "1", memory: 16Gi}}
"""


@pytest.mark.parametrize(
    ("text", "rule", "line", "words"),
    [
        (COMPOSE, "shared-device", 9, ("1.20", "device 0")),
        (POD, "pod-memory", 8, ("40.00 GiB", "16.00 GiB")),
    ],
    ids=["two engines on one card", "pod memory"],
)
def test_what_needs_no_model_is_found_without_a_gpu(
    kvplan_cli: Callable[..., Ran], place: Path, text: str, rule: str, line: int, words: tuple[str, ...]
) -> None:
    (place / "deploy.yaml").write_text(text)
    ran = kvplan_cli("check", "--manifest", "deploy.yaml", "--no-cache", "--json")
    assert ran.code == 2  # no GPU is named, and it is asked for
    (found,) = [each for each in json.loads(ran.out)["verdicts"] if each["rule"] == rule]
    assert (found["status"], found["line"]) == ("fail", line)
    assert all(word in found["text"] for word in words)
    assert kvplan_cli("check", "--manifest", "deploy.yaml", "--no-cache", "--gpu", "h200").code == 1


@pytest.mark.parametrize(
    ("file", "gpu", "code"),
    [
        # llama.cpp publishes 4.9 and 43.1 GB for Q4_K_M of the 8B and the 70B: one fits a card of 24 GB, one doesn't.
        ("Meta-Llama-3.1-8B-Q4_K_M.gguf", "rtx-3090", 0),
        ("Meta-Llama-3.1-70B-Q4_K_M.gguf", "rtx-3090", 1),
        ("Meta-Llama-3.1-70B-Q4_K_M.gguf", "a100-80gb", 0),
        # A name whose size isn't known: what holds with the checkpoint's 16 bits holds, what doesn't is asked for.
        ("Meta-Llama-3.1-8B-UD-Q8_K_XL.gguf", "rtx-3090", 0),
        ("Meta-Llama-3.1-70B-UD-Q8_K_XL.gguf", "a100-80gb", 2),
    ],
)
def test_gguf_weights_by_their_name(
    kvplan_cli: Callable[..., Ran], place: Path, file: str, gpu: str, code: int
) -> None:  # fmt: skip
    (place / "serve.sh").write_text(f"#!/bin/sh\nllama-server -m /srv/gguf/{file} -c 8192 -np 1 -ngl 99\n")
    assert kvplan_cli("check", "--manifest", "serve.sh", "--gpu", gpu, "--no-cache").code == code
