"""Kubernetes and Compose files beyond the 26; each is written here, what it says is read off by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from kvplan.check.manifests import ManifestReading, read_manifest

Read = Callable[..., ManifestReading]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(name: str, text: str, beside: dict[str, str] | None = None, **variables: str) -> ManifestReading:
        for other, content in (beside or {}).items():
            (tmp_path / other).write_text(dedent(content))
        path = tmp_path / name
        path.write_text(dedent(text))
        return read_manifest(path, variables=variables)

    return write_and_read


def test_a_group_made_of_one_template(read: Read) -> None:
    reading = read(
        "lws.yaml",
        """\
        apiVersion: leaderworkerset.x-k8s.io/v1
        kind: LeaderWorkerSet
        metadata: {name: grp}
        spec:
          replicas: 3
          leaderWorkerTemplate:
            size: 4
            workerTemplate:
              spec:
                containers:
                - name: w
                  image: lmsysorg/sglang:v0.5.5
                  command: [python3, -m, sglang.launch_server, --model-path, deepseek-ai/DeepSeek-V3, --tp-size, "32",
                            --nnodes, $(LWS_GROUP_SIZE), --node-rank, $(LWS_WORKER_INDEX)]
                  resources: {limits: {nvidia.com/gpu: 8}}
        """,
    )
    (found,) = reading.commands
    assert (found.accelerator.count, found.nodes, found.replicas, found.line) == (32, 4, 3, 13)
    assert dict(found.command.flags) == {"tp_size": 32, "nnodes": 4}


def test_a_role_based_group(read: Read) -> None:
    reading = read(
        "rbg.yaml",
        """\
        apiVersion: workloads.x-k8s.io/v1alpha2
        kind: RoleBasedGroup
        metadata: {name: pd}
        spec:
          roles:
          - name: decode
            replicas: 4
            leaderWorkerPattern:
              size: 2
              template:
                spec:
                  containers:
                  - name: sglang
                    image: lmsysorg/sglang:v0.5.9
                    command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-0.6B, --tp-size, "2",
                              --nnodes, $(RBG_LWP_GROUP_SIZE)]
                    resources: {limits: {nvidia.com/gpu: "1"}}
        """,
    )
    (found,) = reading.commands
    assert (found.replicas, found.nodes, found.accelerator.count) == (4, 2, 2)
    assert found.command.flags["nnodes"] == 2


def test_compose_with_anchors_merge_keys_and_extends(read: Read) -> None:
    reading = read(
        "compose.yml",
        """\
        x-base: &base
          image: vllm/vllm-openai:v0.15.0
          ipc: host
          environment: &env {CUDA_VISIBLE_DEVICES: "0"}
        services:
          a:
            <<: *base
            command: ["--model", "Qwen/Qwen3-8B", "--gpu-memory-utilization", "0.6"]
          b:
            extends: a
            environment: [CUDA_VISIBLE_DEVICES=1]
            command: --model Qwen/Qwen3-4B --max-model-len 8k
          c:
            <<: *base
            profiles: [big]
            entrypoint: [/bin/bash, -c]
            command: ["vllm serve Qwen/Qwen3-4B --max-model-len $$LEN"]
        """,
    )
    a, b, c = reading.commands
    assert a.command.flags == {"gpu_memory_utilization": 0.6}
    assert (b.command.version, b.command.flags, b.accelerator.devices) == ("0.15.0", {"max_model_len": 8000}, ("1",))
    assert c.condition == "profile big"
    assert c.command.flags == {"max_model_len": None}


def test_a_dot_env_file_and_an_options_file_beside_compose(read: Read) -> None:
    reading = read(
        "compose.yaml",
        """\
        services:
          llm:
            image: vllm/vllm-openai:v0.24.0
            volumes: ["./conf:/etc/vllm:ro"]
            command: --config /etc/vllm/serve.yaml --max-num-seqs ${SEQS:-8}
        """,
        {".env": "SEQS=64\n"},
    )
    assert reading.commands[0].command.flags == {"max_num_seqs": 64}
    assert any("/etc/vllm/serve.yaml" in note for note in reading.commands[0].command.not_knowable)


def test_an_options_file_that_is_mounted_from_the_repository(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "serve.yaml").write_text("model: a/b\nmax-model-len: 4096\n")
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.24.0\n    volumes: ['./conf:/etc/vllm:ro']\n"
        "    command: --config /etc/vllm/serve.yaml\n"
    )
    (found,) = read_manifest(path).commands
    assert (found.command.model, found.command.flags) == ("a/b", {"max_model_len": 4096})


def test_a_file_outside_the_repository_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("max-model-len: 1\n")
    inner = tmp_path / "repo"
    inner.mkdir()
    path = inner / "run.sh"
    for reference in ("../secret.yaml", str(tmp_path / "secret.yaml")):
        path.write_text(f"vllm serve a/b --config {reference}\n")
        (found,) = read_manifest(path).commands
        assert found.command.flags == {}
        assert any("is not here" in note for note in found.command.not_knowable)


def test_kserve_services_of_both_kinds(read: Read) -> None:
    reading = read(
        "kserve.yaml",
        """\
        apiVersion: serving.kserve.io/v1alpha1
        kind: LLMInferenceService
        metadata: {name: llm}
        spec:
          model: {uri: hf://Qwen/Qwen3-32B, name: q}
          replicas: 3
          parallelism: {tensor: 2}
          template:
            containers:
            - name: main
              env:
              - {name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192"}
              resources: {limits: {nvidia.com/gpu: 2}}
        ---
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: own}
        spec:
          predictor:
            minReplicas: 2
            containers:
            - name: kserve-container
              image: vllm/vllm-openai:v0.22.0
              args: [--model=/mnt/models, --dtype=half]
        ---
        apiVersion: serving.kserve.io/v1alpha1
        kind: ServingRuntime
        metadata: {name: alone}
        spec:
          containers:
          - {name: kserve-container, image: "vllm/vllm-openai:v0.22.0", args: [--port=8080]}
        """,
    )
    llm, own = reading.commands
    assert (llm.command.model, llm.replicas, llm.accelerator.count) == ("Qwen/Qwen3-32B", 3, 2)
    assert llm.command.flags == {"tensor_parallel_size": 2, "max_model_len": 8192}
    assert (own.command.model, own.replicas, own.command.flags) == (None, 2, {"dtype": "half"})
    assert any("ServingRuntime/alone" in note for note in reading.not_knowable)


def test_a_model_that_an_init_container_downloads(read: Read) -> None:
    reading = read(
        "pod.yaml",
        """\
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          initContainers:
          - {name: dl, image: python, command: [sh, -c, "hf download Qwen/Qwen3-8B --local-dir /models/q"]}
          containers:
          - name: s
            image: lmsysorg/sglang:v0.5.3-cu126
            command: [/bin/bash, -c]
            args:
            - >
              python3 -m sglang.launch_server
              --model-path /models/q
              --tp $(TP)
              --mem-fraction-static ${MEM:-0.8}
            env:
            - {name: TP, valueFrom: {resourceFieldRef: {resource: limits.nvidia.com/gpu}}}
            resources: {limits: {nvidia.com/gpu: 2}}
        """,
    )
    (found,) = reading.commands
    assert (found.command.model, found.line) == ("Qwen/Qwen3-8B", 13)
    assert found.command.flags == {"tp_size": 2, "mem_fraction_static": 0.8}
    assert found.command.lines["mem_fraction_static"] == 16


def test_an_autoscaler_sets_the_replicas(read: Read) -> None:
    reading = read(
        "all.yaml",
        """\
        # Source: chart/templates/deployment.yaml
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: d}
        spec:
          template:
            spec:
              containers:
              - {name: c, image: "vllm/vllm-openai:v0.22.0", args: [Qwen/Qwen3-8B, --max-model-len=8192]}
        ---
        # Source: chart/templates/hpa.yaml
        apiVersion: autoscaling/v2
        kind: HorizontalPodAutoscaler
        metadata: {name: h}
        spec:
          scaleTargetRef: {kind: Deployment, name: d}
          minReplicas: 2
          maxReplicas: 9
        """,
    )
    assert reading.commands[0].replicas == {"min": 2, "max": 9}


def test_a_dockerfile(read: Read) -> None:
    reading = read(
        "Dockerfile",
        """\
        FROM python AS build
        CMD ["vllm", "serve", "not/this"]
        FROM vllm/vllm-openai:v0.16.0
        ENTRYPOINT ["vllm", "serve"]
        CMD ["Qwen/Qwen3-8B", \\
             "--tensor-parallel-size", "2"]
        """,
    )
    (found,) = reading.commands
    assert (found.line, found.command.version, found.command.model) == (4, "0.16.0", "Qwen/Qwen3-8B")


def test_a_bare_options_file(read: Read) -> None:
    reading = read("args.yaml", "model: Qwen/Qwen3-8B\nmax-model-len: 8192\nenable-prefix-caching: true\n")
    (found,) = reading.commands
    assert found.command.flags == {"max_model_len": 8192, "enable_prefix_caching": True}
    assert found.command.lines["max_model_len"] == 2


def test_tags_of_other_tools_are_tolerated(read: Read) -> None:
    reading = read(
        "ci.yml",
        "serve:\n  script:\n    - !reference [.setup, script]\n    - vllm serve a/b --max-num-seqs 4\n",
    )
    assert [(found.line, found.command.model) for found in reading.commands] == [(4, "a/b")]


def test_variables_that_may_come_from_elsewhere(read: Read) -> None:
    reading = read(
        "pod.yaml",
        """\
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB-MIG-3g.40gb}
          containers:
          - name: c
            image: vllm/vllm-openai:v0.22.0
            command: [sh, -c, "vllm serve a/b --max-model-len ${LEN:-8192}"]
            envFrom: [{configMapRef: {name: elsewhere}}]
            resources: {limits: {nvidia.com/mig-3g.40gb: 1}}
        """,
    )
    (found,) = reading.commands
    assert found.command.flags == {"max_model_len": 8192}
    assert any("LEN is set by the caller" in note for note in found.not_knowable)
    assert any("ConfigMap elsewhere" in note for note in reading.not_knowable)
    assert (found.accelerator.name, found.accelerator.count) == (None, 1)
    assert "slice" in found.accelerator.certainty
