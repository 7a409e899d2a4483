"""`kvplan estimate --engine`: the engine's own figures through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cli.test_estimate import write_config
from tests.conftest import Ran

Cli = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "estimate-engine.schema.json").read_text())
PLANNER = ROOT / "tests" / "golden" / "vllm-planner"
CASES: list[dict[str, Any]] = json.loads((PLANNER / "cases.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = json.loads((PLANNER / "configs.json").read_text())
GPUS = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100-80gb", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA L4": "l4"}
VLLM = ("--engine", "vllm@0.32", "--gpu", "h100")


def document(ran: Ran) -> dict[str, Any]:
    found = json.loads(ran.out)
    jsonschema.validate(found, SCHEMA)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_vllms_planner_case_by_case(kvplan_cli: Cli, tmp_path: Path, case: dict[str, Any]) -> None:
    # vLLM 0.32.0's own planner, asked for the same config, arguments and bytes (tests/golden/vllm-planner/README.md).
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[case["config"]]))
    (tmp_path / "args.yaml").write_text(yaml.safe_dump(case["engine_args"]))
    available = ",".join(map(str, case["available_bytes"]))
    ran = kvplan_cli(
        "estimate", tmp_path / "config.json", "--engine", "vllm@0.32", "--gpu", GPUS[case["device"][0]],
        "--engine-config", tmp_path / "args.yaml", "--available-memory", available, "--json",
    )  # fmt: skip
    engine = document(ran)["engine"]
    if "refused" in case:
        assert ran.code == 1
        assert engine["refused"]["needed_bytes"] == case["refused"]["needed_bytes"]
        assert (engine["estimated_max_model_len"] or 0) == (case["refused"]["estimated_max_model_len"] or 0)
        return
    expected = case["expected"]
    assert ran.code == 0
    per_block = engine["bytes_per_block"]
    assert (per_block if isinstance(per_block, list) else [per_block]) == expected["pool_bytes_per_block"]
    assert engine["num_blocks"] == expected["num_blocks"]
    assert engine["capacity_tokens"] == expected["kv_cache_size_tokens"]
    assert engine["max_concurrency"] == pytest.approx(expected["max_concurrency"], abs=1e-12)
    assert engine["log_line"] == expected["log_line"]


def test_the_answer_for_people(kvplan_cli: Cli) -> None:
    ran = kvplan_cli(
        "estimate", "llama-3.1-70b", *VLLM, "-tp", "4", "--max-model-len", "128k", "--gpu-memory-utilization", "0.9"
    )
    assert (ran.code, ran.err) == (0, "")
    for part in ("Memory of one GPU", "needed", "reserved", "logged", "What would help", "vllm serve", "Memory flag"):
        assert part in ran.out
    assert "--tensor-parallel-size 4 --max-model-len 131072 --gpu-memory-utilization 0.9" in ran.out


def test_a_refusal_has_the_engines_figures_and_what_helps(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", *VLLM, "--ctx", "128k", "--available-memory", "6GiB", "--json")
    ran = kvplan_cli(*args)
    found = document(ran)
    assert ran.code == 1
    # 131,072 tokens of 131,072 B; 48,128 of them fit in 6 GiB less the block vLLM never hands out.
    assert found["engine"]["refused"]["needed_bytes"] == 16 << 30
    assert found["engine"]["refused"]["available_bytes"] == (6 << 30) - (2 << 20)
    assert found["engine"]["estimated_max_model_len"] == (6 * 512 - 1) * 16
    assert [change["flag"] for change in found["changes"]] == ["--max-model-len"]
    assert found["changes"][0]["starts"] is True
    assert "would NOT start" in kvplan_cli(*args[:-1]).out


def test_the_three_sizes_are_named(kvplan_cli: Cli) -> None:
    found = document(
        kvplan_cli("estimate", "gemma-3-27b", *VLLM, "--ctx", "128k", "--available-memory", "40GiB", "--json")
    )
    # facts/byte-conventions: needed 11,173,625,856; vLLM reserves 19,301,662,720 for the same request.
    assert found["needed_bytes_per_gpu"] == 11_173_625_856
    assert found["engine"]["reserved_bytes_one_request"] > found["needed_bytes_per_gpu"]
    assert found["engine"]["log_line"].startswith("GPU KV cache size: ")


@pytest.mark.parametrize(
    "engine", ["sglang", "tensorrt-llm", "llama.cpp", "lmdeploy", "transformers", "ollama", "vllm@0.11"]
)
def test_every_engine_answers(kvplan_cli: Cli, engine: str) -> None:
    args = (
        "estimate",
        "llama-3.1-8b",
        "--engine",
        engine,
        "--gpu",
        "h100",
        "--ctx",
        "32k",
        "--available-memory",
        "40GiB",
    )
    ran = kvplan_cli(*args, "--json")
    assert ran.code == 0, ran.err
    assert document(ran)["engine"]["name"] == engine.partition("@")[0]
    assert kvplan_cli(*args).code == 0


def test_the_engines_own_flags_are_taken(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", *VLLM, "--ctx", "8k", "--available-memory", "20GiB", "--json")
    ran = kvplan_cli(*args, "--num-gpu-blocks-override", "1000")
    assert document(ran)["engine"]["num_blocks"] == 1000
    offload = kvplan_cli(*args, "--kv-offloading-size", "16", "--kv-offloading-backend", "native")
    assert any(pool["name"] == "host" for pool in document(offload)["engine"]["pools"])
    odd = document(kvplan_cli(*args, "--frobnicate", "3"))
    assert any("frobnicate" in warning for warning in odd["warnings"])


def test_a_file_of_arguments_loses_to_options(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("max-model-len: 4096\nkv_cache_dtype: fp8\n")
    args = ("estimate", "llama-3.1-8b", *VLLM, "--available-memory", "20GiB", "--engine-config", path, "--json")
    found = document(kvplan_cli(*args))
    assert found["engine"]["max_model_len"] == 4096
    assert found["dtypes"]["kv_key"] == "fp8"
    assert document(kvplan_cli(*args, "--ctx", "8k"))["engine"]["max_model_len"] == 8192
    path.write_text("- a\n")
    assert "expected a mapping" in kvplan_cli(*args).err


def test_matrix_and_layouts(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", *VLLM, "--matrix", "ctx=8k,128k", "batch=1,64")
    found = json.loads(kvplan_cli(*args, "--json").out)
    assert [row["context_tokens"] for row in found["rows"]] == [8192, 131072]
    assert found["rows"][1]["bytes"][0] == 16 << 30
    assert found["rows"][1]["bytes"][1] is None
    assert " - " in kvplan_cli(*args).out
    plain = json.loads(kvplan_cli("estimate", "llama-3.1-8b", "--matrix", "batch=1,2", "ctx=8k", "--json").out)
    assert plain["rows"][0]["bytes"] == [1 << 30, 2 << 30]
    layouts = json.loads(
        kvplan_cli(
            "estimate",
            "deepseek-v3",
            "--engine",
            "vllm",
            "--gpu",
            "h200",
            "--num-gpus",
            "8",
            "--layouts",
            "--ctx",
            "8k",
            "--json",
        ).out
    )
    by_ranks = {(row["tensor"], row["pipeline"], row["data"], row["decode_context"]): row for row in layouts["rows"]}
    # The latent is copied on each tensor-parallel rank, and split by decode context parallelism (facts/vllm.md, 7).
    whole, split = by_ranks[8, 1, 1, 1], by_ranks[8, 1, 1, 8]
    assert split["capacity_tokens"] > 7 * whole["capacity_tokens"]


MISTAKES = [
    (("--engine", "vlm", "--gpu", "h100"), "--engine: found 'vlm'", "nearest: vllm"),
    (("--engine", "vllm"), "--gpu: found nothing", "--gpu h100"),
    (("--engine", "vllm@", "--gpu", "h100"), "--engine", "a version"),
    ((*VLLM, "--gpu-memory-utilization", "1.5"), "gpu_memory_utilization", "(0, 1]"),
    ((*VLLM, "--gpu-memory-utilization", "0"), "gpu_memory_utilization", "(0, 1]"),
    ((*VLLM, "-tp", "3"), "tensor", "3"),
    ((*VLLM, "-pp", "99"), "--pipeline-parallel-size: found 99", "32 layers"),
    ((*VLLM, "--block-size", "7"), "block", "7"),
    ((*VLLM, "--available-memory", "lots"), "--available-memory: found 'lots'", "9.5GiB"),
    ((*VLLM, "--max-num-batched-tokens", "12q"), "max-num-batched-tokens", "12q"),
    ((*VLLM, "--evict", "snapkv:2048"), "--evict: vllm has no such technique", "tensorrt-llm"),
    ((*VLLM, "--share-prefix", "4k:8"), "--share-prefix: found it beside --engine", "own flags of vllm"),
    ((*VLLM, "--kv-cache-dtype", "q8_0"), "--kv-cache-dtype: found 'q8_0'", "engines that have it: llama.cpp"),
    (("-tp", "2"), "--tensor-parallel-size: found it without --engine", "--engine vllm"),
    (("--available-memory", "20GiB"), "--available-memory: found it without --engine", "--engine vllm"),
    ((*VLLM, "--matrix", "ctx=8k", "rows=1"), "--matrix: found 'rows=1'", "batch=1,8,64"),
    ((*VLLM, "stray"), "stray", "expected"),
    (("--layouts",), "--gpu: found nothing", "device"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "found", "expected"), MISTAKES)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, args: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("estimate", "llama-3.1-8b", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err


def test_an_unknown_version_is_answered_by_the_nearest(kvplan_cli: Cli, tmp_path: Path) -> None:
    write_config(tmp_path)
    found = document(
        kvplan_cli("estimate", tmp_path, "--engine", "vllm@9.9", "--gpu", "h100", "-tp", "4", "--ctx", "8k", "--json")
    )
    assert any("9.9" in warning and "nearest" in warning for warning in found["warnings"])


COMMANDS = [
    # vLLM reads 32k as 32,000 and 32K as 32,768; SGLang and llama.cpp take plain numbers.
    ("vllm serve Qwen/Qwen3-32B -tp 2 --kv-cache-dtype fp8 --max-model-len 32k", "vllm", 32_000),
    ("vllm serve Qwen/Qwen3-32B --tensor-parallel-size=2 --max_model_len=32K", "vllm", 32_768),
    ("python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp-size 2 --context-length 32768", "sglang", 32_768),
    ("llama-server -m qwen3-32b.gguf -c 65536 -np 2 -ctk q8_0 -ctv q8_0", "llama.cpp", 32_768),
    ("trtllm-serve Qwen/Qwen3-32B --tp_size 2 --max_seq_len 32768", "tensorrt-llm", 32_768),
]


@pytest.mark.parametrize(("command", "engine", "length"), COMMANDS)
def test_a_launch_command_is_read_as_the_engine_reads_it(
    kvplan_cli: Cli, command: str, engine: str, length: int
) -> None:
    ran = kvplan_cli("estimate", "--command", command, "--gpu", "h200", "--json")
    assert ran.code == 0, ran.err
    found = document(ran)
    assert found["model"]["id"] == "qwen3-32b"
    assert found["engine"]["name"] == engine
    assert found["engine"]["max_model_len"] == length


def test_what_a_command_says_in_vain_is_listed(kvplan_cli: Cli) -> None:
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --served-model-name x --frobnicate 3"
    warnings = document(kvplan_cli("estimate", "--command", command, "--gpu", "h200", "--json"))["warnings"]
    assert any("served_model_name" in warning for warning in warnings)
    assert ["no argument of vllm" in warning for warning in warnings if "frobnicate" in warning] == [True]
    stray = document(
        kvplan_cli("estimate", "--command", "llama-server -m qwen3-32b.gguf stray", "--gpu", "h200", "--json")
    )
    assert ["no use" in warning for warning in stray["warnings"] if "stray" in warning] == [True]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("vllm serve 'Qwen/Qwen3-32B", "single quote that isn't closed"),
        ("ls -la", "expected a command that starts an engine"),
        ("vllm serve Qwen/Qwen3-32B --max-model-len 1e400", "1e400"),
    ],
)
def test_a_bad_command_gets_one_sentence(kvplan_cli: Cli, command: str, sentence: str) -> None:
    ran = kvplan_cli("estimate", "--command", command, "--gpu", "h200")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert sentence in ran.err


def test_a_figure_pasted_from_a_log_is_a_size(kvplan_cli: Cli) -> None:
    """vLLM prints GiB with two places; 32.06 GiB is no whole number of bytes and is rounded down."""
    answer = document(
        kvplan_cli("estimate", "llama-3.1-70b", *VLLM, "-tp", "4", "--available-memory", "32.06GiB", "--json")
    )
    assert answer["engine"]["available_bytes"] == [int(32.06 * 2**30)]


@pytest.mark.parametrize(
    ("engine", "flag", "value"),
    [
        ("sglang", "--kv-cache-dtype", "fp8_e4m3"),
        ("lmdeploy", "--quant-policy", "8"),
        ("vllm", "--kv-cache-dtype", "fp8"),
    ],
)
def test_help_names_the_flags_and_values_of_the_engine(kvplan_cli: Cli, engine: str, flag: str, value: str) -> None:
    answer = document(
        kvplan_cli("estimate", "llama-3.1-70b", "--engine", engine, "--gpu", "h100", "-tp", "4", "--json")
    )
    assert (flag, value) in [(change["flag"], change["value"]) for change in answer["changes"]]


def test_weights_beyond_the_gpu_are_named(kvplan_cli: Cli) -> None:
    """70.6 B parameters of 2 B are 131.4 GiB."""
    result = kvplan_cli("estimate", "llama-3.1-70b", "--engine", "sglang", "--gpu", "h100")
    assert result.code == 1
    assert "the weights take 131.4 GiB of a GPU that has" in " ".join(result.out.split())


def test_the_command_leaves_out_a_flag_that_would_stop_the_start(kvplan_cli: Cli) -> None:
    answer = document(kvplan_cli("estimate", "llama-3.1-8b", *VLLM, "--foo-bar", "3", "--port", "8000", "--json"))
    assert "--port 8000" in answer["engine_command"] and "foo" not in answer["engine_command"]
