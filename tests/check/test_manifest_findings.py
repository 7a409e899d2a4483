"""What is flagged: each rule on the smallest file that breaks it, and silent on the file that doesn't.

The mistakes are those of public threads: vllm-project/vllm issues 20305, 22072, 34199, 2652 and 28923,
unslothai/unsloth-zoo issue 1210, vllm-project/production-stack pull request 1047, ggml-org/llama.cpp issue 11681,
ollama/ollama issue 6902.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.check.manifests import Finding, read_manifest

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: %(image)s
    %(words)s
    volumeMounts: [{name: shm, mountPath: /dev/shm}]
    resources: {limits: {nvidia.com/gpu: %(gpus)s, memory: %(memory)s}}
  volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""


def pod(words: str, image: str = "vllm/vllm-openai:v0.24.0", gpus: str = "1", memory: str = "64Gi") -> str:
    return POD % {"image": image, "words": words, "gpus": gpus, "memory": memory}


def findings(folder: Path, text: str, name: str = "pod.yaml") -> list[Finding]:
    path = folder / name
    path.write_text(text)
    return list(read_manifest(path).findings)


GOOD = pod("args: [Qwen/Qwen3-8B, --max-model-len=8192]")


def test_a_good_pod_has_nothing_to_flag(tmp_path: Path) -> None:
    assert findings(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("rule", "level", "text", "parts"),
    [
        (
            "more-ranks-than-devices",
            "error",
            pod('args: [Qwen/Qwen3-8B, --max-model-len=8192, -tp, "4"]', gpus="2"),
            ("TP 4", "= 4", "devices in the file = 2"),
        ),
        ("idle-devices", "warning", pod("args: [Qwen/Qwen3-8B, --max-model-len=8192]", gpus="4"), ("3 of 4 devices",)),
        (
            "heads-not-divisible",
            "error",
            pod('args: [Qwen/Qwen3-8B, --max-model-len=8192, -tp, "3"]', gpus="3"),
            ("32 attention heads", "size 3", "1, 2, 4, 8, 16, 32"),
        ),
        (
            "beyond-checkpoint",
            "error",
            pod("args: [Qwen/Qwen3-8B, --max-model-len=131072]"),
            ("131,072", "40,960"),
        ),
        ("removed-flag", "error", pod("args: [Qwen/Qwen3-8B, --max-model-len=8192, --swap-space=4]"), ("0.18.0",)),
        (
            "unknown-flag",
            "error",
            pod("args: [Qwen/Qwen3-8B, --max-model-len=8192, --context-length=5]"),
            ("--context-length", "vllm 0.24.0", "a flag of sglang"),
        ),
        (
            "unknown-flag",
            "error",
            pod("args: [Qwen/Qwen3-8B, --max-model-len=8192, --max-nums-seqs=5]"),
            ("nearest: --max-num-seqs",),
        ),
        ("bare-number", "error", pod("args: [Qwen/Qwen3-8B, --max-model-len, 8192]"), ('"8192"',)),
        (
            "joined-argument",
            "error",
            pod('args: [Qwen/Qwen3-8B, "--max-model-len 8192"]'),
            ("'--max-model-len 8192'", "two elements"),
        ),
        (
            "one-string-command",
            "error",
            pod('command: ["vllm serve Qwen/Qwen3-8B --max-model-len 8192"]'),
            ("one element", "list of words"),
        ),
        (
            "entrypoint-repeated",
            "error",
            pod("args: [serve, Qwen/Qwen3-8B, --max-model-len=8192]"),
            ("'vllm serve' by itself", "'serve'"),
        ),
        (
            "stray-argument",
            "error",
            pod("args: [Qwen/Qwen3-8B, --max-model-len=8192]", image="vllm/vllm-openai:v0.9.0"),
            ("--model Qwen/Qwen3-8B",),
        ),
        (
            "unexpanded-variable",
            "error",
            pod("args: [Qwen/Qwen3-8B, '--max-model-len=${LEN}']"),
            ("${LEN}", "$(LEN)"),
        ),
        (
            "refused-value",
            "error",
            pod('args: [Qwen/Qwen3-8B, "--max-model-len=1.048576e+06"]'),
            ("1.048576e+06", "printed by a template"),
        ),
        (
            "pod-memory",
            "error",
            pod("args: [Qwen/Qwen3-8B, --max-model-len=8192, --kv-offloading-size=40]", memory="32Gi"),
            ("40.00 GiB", "32.00 GiB"),
        ),
        (
            "pod-memory",
            "error",
            pod(
                'args: [-m, /x.gguf, -c, "4096", -np, "1", --cache-ram, "40960"]',
                "ghcr.io/ggml-org/llama.cpp:server",
                memory="16Gi",
            ),
            ("40.00 GiB", "16.00 GiB"),
        ),
        ("length-unset", "warning", pod("args: [Qwen/Qwen3-8B]"), ("40960 from the checkpoint",)),
        (
            "quantized-without-flash",
            "error",
            pod(
                'args: [-m, /x.gguf, -c, "4096", -np, "1", -fa, "off", -ctv, q8_0]', "ghcr.io/ggml-org/llama.cpp:server"
            ),
            ("q8_0", "flash attention"),
        ),
        (
            "context-shared",
            "note",
            pod('args: [-m, /x.gguf, -c, "4096"]', "ghcr.io/ggml-org/llama.cpp:server"),
            ("4,096", "4 slots"),
        ),
        (
            "small-shared-memory",
            "warning",
            pod('args: [Qwen/Qwen3-8B, --max-model-len=8192, -tp, "2"]', gpus="2").replace(
                "medium: Memory", "medium: ''"
            ),
            ("/dev/shm",),
        ),
        (
            "short-liveness-probe",
            "warning",
            GOOD.replace(
                "    resources:", "    livenessProbe: {initialDelaySeconds: 30, periodSeconds: 10}\n    resources:"
            ),
            ("60 s",),
        ),
        (
            "service-name",
            "warning",
            f"{GOOD}---\napiVersion: v1\nkind: Service\nmetadata: {{name: vllm}}\n",
            ("VLLM_PORT",),
        ),
        ("duplicate-key", "warning", GOOD.replace("metadata: {name: p}", "metadata: {name: p, name: q}"), ("name",)),
    ],
)
def test_each_rule(tmp_path: Path, rule: str, level: str, text: str, parts: tuple[str, ...]) -> None:
    found = [finding for finding in findings(tmp_path, text) if finding.rule == rule]
    assert [finding.level for finding in found] == [level]
    for part in parts:
        assert part in found[0].text
    assert 1 <= found[0].line <= text.count("\n")


COMPOSE = """\
services:
  a: {image: "vllm/vllm-openai:v0.24.0", ipc: host, command: [a/b, --max-model-len=8k%s], gpus: [{device_ids: ["0"]}]}
  b: {image: "vllm/vllm-openai:v0.24.0", ipc: host, command: [c/d, --max-model-len=8k%s], gpus: [{device_ids: ["%s"]}]}
"""


@pytest.mark.parametrize(
    ("shares", "device", "level"),
    [
        ((", --gpu-memory-utilization=0.6", ", --gpu-memory-utilization=0.5"), "0", "error"),
        ((", --gpu-memory-utilization=0.4", ", --gpu-memory-utilization=0.5"), "0", "warning"),
        (("", ""), "0", "error"),
        (("", ""), "1", None),
    ],
)
def test_two_engines_on_one_device(tmp_path: Path, shares: tuple[str, str], device: str, level: str | None) -> None:
    text = COMPOSE % (*shares, device)
    found = [finding for finding in findings(tmp_path, text, "compose.yaml") if finding.rule == "shared-device"]
    assert [finding.level for finding in found] == ([] if level is None else [level])
    if found:
        assert "device 0" in found[0].text
        assert "service a" in found[0].text
        assert "service b" in found[0].text


@pytest.mark.parametrize(("end", "shared"), [("&", True), ("", False)])
def test_only_what_runs_at_the_same_time_shares(tmp_path: Path, end: str, shared: bool) -> None:
    line = "CUDA_VISIBLE_DEVICES=0 vllm serve a/b --max-model-len 8k"
    found = findings(tmp_path, f"{line} {end}\n{line} {end}\n", "run.sh")
    assert any(finding.rule == "shared-device" for finding in found) is shared


def test_a_fraction_of_a_gpu_is_no_request(tmp_path: Path) -> None:
    text = (
        "servingEngineSpec:\n  modelSpec:\n  - "
        "{name: m, modelURL: a/b, requestGPU: 0.5, vllmConfig: {maxModelLen: 1}}\n"
    )
    found = findings(tmp_path, text, "values.yaml")
    assert [(finding.rule, finding.line) for finding in found] == [("fractional-device", 3)]


def test_findings_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(pod("args: [Qwen/Qwen3-8B, --swap-space=4]"))
    listed = read_manifest(path).to_dict()["findings"]
    assert {"rule", "level", "text", "line", "at", "flag"} == set(listed[0])
    assert {item["flag"] for item in listed} >= {"swap_space"}
