"""Scripts, units, notes and other files beyond the 26; each is written here, what it says is read off by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from kvplan.check.manifests import ManifestReading, read_manifest
from kvplan.errors import InputError

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


def test_a_script_with_functions_loops_and_conditions(read: Read) -> None:
    reading = read(
        "run.sh",
        """\
        #!/bin/bash
        MODEL="meta-llama/Llama-3.1-8B-Instruct"
        TP=$(nvidia-smi -L | wc -l)
        EXTRA=""
        if [ "$1" = "fp8" ]; then
          EXTRA="--kv-cache-dtype fp8"
        fi
        start() {
          local port=$1; shift
          vllm serve "$MODEL" --port $port "$@" &
        }
        start 8000 --max-model-len 4096
        for i in 0 1 2 3; do
          CUDA_VISIBLE_DEVICES=$i python -m sglang.launch_server --model-path $MODEL --port $((30000 + i)) &
        done
        vllm serve $MODEL -tp $TP $EXTRA
        """,
    )
    first, second, third = reading.commands
    assert (first.line, first.command.flags) == (10, {"max_model_len": 4096})
    assert (second.line, second.replicas, second.command.engine) == (14, 4, "sglang")
    assert third.command.flags == {"tensor_parallel_size": None}
    assert any("EXTRA adds" in note for note in third.command.not_knowable)
    filled = read("again.sh", "vllm serve a/b -tp $TP\n", TP="8")
    assert filled.commands[0].command.flags == {"tensor_parallel_size": 8}


def test_slurm_with_a_container_image_and_all_nodes(read: Read) -> None:
    reading = read(
        "job.sh",
        """\
        #!/bin/bash
        #SBATCH -N 4
        #SBATCH --gpus-per-node=8
        #SBATCH --constraint=a100
        #SBATCH --container-image=lmsysorg/sglang:v0.5.9
        srun --ntasks=$SLURM_NNODES bash -c 'python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 \\
          --tp 32 --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID'
        """,
    )
    (found,) = reading.commands
    assert (reading.kind, found.nodes, found.accelerator.count) == ("Slurm batch script", 4, 32)
    assert (found.command.version, found.accelerator.name) == ("0.5.9", "A100-SXM4-80GB")
    assert found.accelerator.certainty == "inferred: a100 may be PCIe or SXM, of 40 or 80 GB"
    assert found.command.flags == {"tp_size": 32, "nnodes": 4}


def test_a_unit_that_runs_a_container(read: Read) -> None:
    reading = read(
        "vllm.service",
        """\
        [Service]
        Environment=MODEL=Qwen/Qwen3-8B TP=2
        ExecStartPre=-/usr/bin/docker stop vllm
        ExecStart=/usr/bin/docker run --rm --gpus "device=0,1" \\
          vllm/vllm-openai:v0.15.0 \\
          ${MODEL} --tensor-parallel-size $TP --max-model-len 32k
        """,
    )
    (found,) = reading.commands
    assert (found.line, found.command.version, found.command.model) == (4, "0.15.0", "Qwen/Qwen3-8B")
    assert found.command.flags == {"tensor_parallel_size": 2, "max_model_len": 32000}
    assert found.accelerator.devices == ("0", "1")


def test_a_quadlet(read: Read) -> None:
    reading = read(
        "llm.container",
        """\
        [Container]
        Image=ghcr.io/ggml-org/llama.cpp:server-cuda-b6500
        AddDevice=nvidia.com/gpu=all
        Environment=LLAMA_ARG_N_PARALLEL=2
        Exec=-hf Qwen/Qwen3-8B-GGUF:Q4_K_M -c 16384
        """,
    )
    (found,) = reading.commands
    assert (found.command.version, found.context_per_slot) == ("b6500", 8192)


def test_markdown_with_lists_prompts_and_broken_output(read: Read) -> None:
    reading = read(
        "README.md",
        """\
        1. run

           ```
           docker run --runtime nvidia --gpus all \\
               vllm/vllm-openai:v0.9.0 \\
               --model mistralai/Mistral-7B-v0.1
           ```

        ```yaml
        services:
          x:
            image: ollama/ollama:0.12.3
            environment: {OLLAMA_NUM_PARALLEL: 2, OLLAMA_CONTEXT_LENGTH: 8192}
        ```

        ```bash
        (venv) $ vllm serve a/b \\
            --max-model-len 1024
        INFO it's started: vllm serve c/d
        ```
        """,
    )
    assert [(found.line, found.command.engine) for found in reading.commands] == [
        (4, "vllm"),
        (12, "ollama"),
        (17, "vllm"),
    ]
    assert reading.commands[0].accelerator.stated_as == "--gpus all"
    assert reading.commands[1].context_total == 16384


def test_llama_swap_with_macros(read: Read) -> None:
    reading = read(
        "config.yaml",
        """\
        macros:
          llama: /opt/llama-server-abc --port ${PORT}
          ctx: 4096
        models:
          big:
            macros: {ctx: 16384}
            cmd: |
              # a comment
              ${llama}
              --model path/gpt-oss-120b.gguf
              --ctx-size ${ctx} -np 2
            env: ["CUDA_VISIBLE_DEVICES=0,1"]
        """,
    )
    (found,) = reading.commands
    assert (found.line, found.command.flags, found.accelerator.count) == (9, {"ctx_size": 16384, "parallel": 2}, 2)


def test_dstack_with_a_beginning_of_a_flag(read: Read) -> None:
    reading = read(
        "120b.dstack.yml",
        """\
        type: service
        env: [HF_TOKEN, MODEL=openai/gpt-oss-120b]
        commands:
          - |
            vllm serve $MODEL \\
              --tensor-parallel $DSTACK_GPUS_NUM
        resources: {gpu: MI300X:8}
        """,
    )
    (found,) = reading.commands
    assert (found.line, found.command.model, found.command.flags) == (
        5,
        "openai/gpt-oss-120b",
        {"tensor_parallel_size": 8},
    )
    assert (found.accelerator.name, found.accelerator.count) == ("MI300X", 8)


def test_values_of_production_stack(read: Read) -> None:
    reading = read(
        "values.yaml",
        """\
        servingEngineSpec:
          modelSpec:
          - name: llama3
            repository: vllm/vllm-openai
            tag: v0.15.0
            modelURL: meta-llama/Llama-3.1-8B-Instruct
            replicaCount: 2
            requestGPU: 1
            vllmConfig: {maxModelLen: 4096, enableChunkedPrefill: false, extraArgs: ["--max-num-seqs", "32"]}
        """,
    )
    (found,) = reading.commands
    assert (found.command.version, found.replicas, found.accelerator.count) == ("0.15.0", 2, 1)
    assert found.command.flags == {"max_model_len": 4096, "enable_chunked_prefill": False, "max_num_seqs": 32}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("empty.yaml", "", "found an empty file"),
        ("chart.yaml", "{{- if .Values.x }}\na: 1\n{{- end }}\n", "line 1: found a Helm template, .* render it first"),
        ("chart2.yaml", "a: b\nimage: {{ .Values.image }}\n", "line 2: found a Helm template, .* render it first"),
        ("broken.yaml", "a: [1, 2\nb: 3\n", "line 2, column 2: .* expected YAML"),
        ("open.sh", "echo ok\nvllm serve 'x\n", "line 2: found a single quote that isn't closed"),
        ("self.yaml", "a: &a\n  b: *a\n", "contains itself"),
    ],
)
def test_bad_files_are_one_sentence_with_a_line(read: Read, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(name, text)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml: can't be read"):
        read_manifest(tmp_path / "gone.yaml")
