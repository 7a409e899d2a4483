"""`kvplan advise` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "advise.schema.json").read_text())
Cli = Callable[..., Ran]
POOL = ("advise", "llama-3.1-70b", "--gpu", "h200", "--ctx", "8k", "--pool", "8GiB")


def advice(kvplan_cli: Cli, *args: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(kvplan_cli(*args, "--json").out)
    jsonschema.validate(document, SCHEMA)
    return document


def lever(document: dict[str, Any], setting: str) -> dict[str, Any]:
    return next(each for each in document["levers"] if each["setting"] == setting)


def test_memory_does_not_drop_in_a_fixed_pool(kvplan_cli: Cli) -> None:
    # 8 GiB at 320 KiB and 160 KiB a token: 26,214 and 52,428 by division, 26,208 and 52,416 in blocks of 16.
    document = advice(kvplan_cli, *POOL)
    fp8 = lever(document, "KV cache dtype fp8")
    assert document["now"]["pool_tokens"] == 26214
    assert fp8["memory"] == (
        "memory did not drop because the pool is fixed; tokens doubled: 26,214 to 52,428 by division, "
        "26,208 to 52,416 in blocks of 16"
    )
    assert fp8["gain_value"] == 52428 - 26214
    assert fp8["rank"] == document["choice"]


def test_an_engine_that_allocates_by_context_frees_memory(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, *POOL, "--engine", "llama.cpp")
    half = lever(document, "KV cache dtype q8_0")
    assert half["memory"].startswith("memory drops by ")


def test_latency_is_bytes_over_bandwidth(kvplan_cli: Cli) -> None:
    document = advice(
        kvplan_cli, "advise", "llama-3.1-8b", "--gpu", "h100", "--ctx", "32k", "--batch", "8", "--goal", "latency"
    )
    # 8 sequences of 4 GiB at 3,350 GB/s.
    seconds = 8 * 4 * 2**30 / 3.35e12
    assert document["now"]["read_seconds"] == pytest.approx(seconds)
    assert lever(document, "KV cache dtype fp8")["gain_value"] == pytest.approx(1000 * seconds / 2)
    assert "at the roofline" in document["constraint"]
    assert any("rooflines" in text for text in document["assumptions"])


def test_quest_is_a_lever_for_latency_alone_and_where_the_engine_has_it(kvplan_cli: Cli) -> None:
    model = ("advise", "llama-3.1-8b", "--gpu", "h100", "--ctx", "128k")
    sglang = advice(kvplan_cli, *model, "--goal", "latency", "--engine", "sglang")
    quest = next(each for each in sglang["levers"] if each["technique"] == "quest")
    assert quest["memory"].startswith("memory does not fall")
    capacity = advice(kvplan_cli, *model, "--engine", "sglang")
    assert all(each["technique"] != "quest" for each in capacity["levers"])
    vllm = advice(kvplan_cli, *model, "--goal", "latency")
    reason = next(each["reason"] for each in vllm["ruled_out"] if each["technique"] == "quest")
    assert reason.startswith("vllm has none")
    assert "sglang" in reason


def test_idle_sessions_wait_on_the_host(kvplan_cli: Cli) -> None:
    args = ("advise", "llama-3.1-8b", "--gpu", "h100", "--ctx", "32k", "--goal", "idle-sessions", "--pool", "16GiB")
    document = advice(kvplan_cli, *args, "--offload", "cpu:256GiB,bw=40GB/s")
    assert document["now"]["idle_sessions"] == 4
    host = next(each for each in document["levers"] if each["technique"] == "offload")
    assert host["after"]["idle_sessions"] == 4 + 64
    assert host["after"]["resume_seconds"] == pytest.approx(4 * 2**30 / 40e9)
    assert host["rank"] == document["choice"]
    assert "bytes are unchanged" in host["memory"]


def test_offload_is_no_lever_for_running_sequences(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, *POOL)
    reason = next(each["reason"] for each in document["ruled_out"] if each["technique"] == "offload")
    assert "must be on the device" in reason


def test_a_longer_context(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, *POOL, "--goal", "context", "--batch", "2")
    # 4 GiB for each of two sequences.
    assert document["now"]["longest_context_tokens"] == (4 << 30) // 327680
    assert lever(document, "KV cache dtype fp8")["after"]["longest_context_tokens"] == (4 << 30) // 163840


def test_a_shared_prefix_is_counted_where_it_is_known(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, *POOL, "--share-prefix", "4k")
    shared = next(each for each in document["levers"] if each["technique"] == "prefix")
    # The first sequence 2.5 GiB, each further one 1.25.
    assert shared["after"]["sequences"] == 1 + int((8 - 2.5) / 1.25)
    assert shared["risk"] == "exact"
    without = advice(kvplan_cli, *POOL)
    assert any("--share-prefix" in each["reason"] for each in without["ruled_out"])


def test_levers_are_those_of_the_checkpoint(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, "advise", "deepseek-v3.2", "--gpu", "h200", "--num-gpus", "8", "--ctx", "128k")
    assert {each["technique"] for each in document["present"]} == {"mla", "dsa"}
    quantized = [each["setting"] for each in document["levers"] if each["technique"] == "quantization"]
    assert quantized == ["KV cache dtype fp8"]
    assert any("turboquant_k8v4" in each["reason"] for each in document["ruled_out"])
    training = {each["technique"] for each in document["ruled_out"] if each["reason"].startswith("needs training")}
    assert training == {"gqa", "cla", "window", "hybrid", "csa"}


def test_gains_are_ranked_and_each_lever_says_what_goes_with_it(kvplan_cli: Cli) -> None:
    document = advice(kvplan_cli, "advise", "gemma-3-27b", "--gpu", "h100", "--ctx", "32k")
    gains = [each["gain_value"] for each in document["levers"]]
    assert gains == sorted(gains, reverse=True)
    assert [each["rank"] for each in document["levers"]] == list(range(1, len(gains) + 1))
    assert all(
        each["tests"] and each["guardrails"] and each["rollback"] and each["evidence"] for each in document["levers"]
    )


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        # 405 x 10^9 weights of 2 bytes are 101 GB on each of 8 GPUs of 80, and 51 on each of 16.
        (("llama-3.1-405b", "--gpu", "h100", "--ctx", "8k"), 16),
        # 141 GB of weights on 2 GPUs of 80 leave nothing of the 92 % that vLLM takes.
        (("llama-3.1-70b", "--gpu", "h100", "--ctx", "128k"), 4),
        # 671 x 10^9 weights of 1 byte: 168 GB on each of 4 GPUs of 141, 84 on each of 8.
        (("deepseek-v3", "--gpu", "h200", "--num-gpus", "2", "--ctx", "128k"), 8),
    ],
)
def test_weights_that_leave_no_room_take_the_fewest_gpus_that_run_one(
    kvplan_cli: Cli, args: tuple[str, ...], gpus: int
) -> None:
    ran = kvplan_cli("advise", *args)
    assert ran.code == 0
    assert "leave no KV pool" in ran.out
    document = advice(kvplan_cli, "advise", *args)
    chosen = document["levers"][document["choice"] - 1]
    assert (chosen["technique"], chosen["after"]["gpus"]) == ("parallel", gpus)
    assert chosen["after"]["sequences"] >= 1


def test_nothing_that_reaches_the_batch_is_said(kvplan_cli: Cli) -> None:
    # 16 GPUs of 24 GB hold 384 GB, the weights are 1.3 TB in 16 bits.
    ran = kvplan_cli("advise", "llama-3.1-405b", "--gpu", "rtx-3090", "--ctx", "128k")
    assert ran.code == 1
    assert "up to 16 times the GPUs hold no more than 0 sequences" in " ".join(ran.out.split())
    assert "no lever here reaches 1" in " ".join(ran.out.split())
    document = advice(kvplan_cli, "advise", "llama-3.1-405b", "--gpu", "rtx-3090", "--ctx", "128k")
    assert document["choice"] is None


def test_an_engine_without_the_layers_is_refused(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("advise", "mamba-2.8b", "--gpu", "h100", "--ctx", "8k", "--engine", "sglang")
    assert (ran.code, ran.out) == (2, "")
    assert "mamba1" in ran.err
    assert "vllm" in ran.err


@pytest.mark.parametrize("goal", ["capacity", "latency", "idle-sessions", "context"])
def test_the_decision_record_has_its_sections(kvplan_cli: Cli, tmp_path: Path, goal: str) -> None:
    path = tmp_path / "record.md"
    ran = kvplan_cli("advise", "llama-3.1-8b", "--gpu", "rtx-4090", "--ctx", "32k", "--goal", goal, "--record", path)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    text = path.read_text()
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    wanted = ["Goal", "Options considered", "Choice", "Assumptions", "Evidence", "Guardrails", "Rollback"]
    assert headings == wanted
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(row.count(" | ") == 5 for row in rows[2:])


def test_the_record_repeats_byte_for_byte(kvplan_cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "a.md", tmp_path / "b.md"
    for path in (first, second):
        kvplan_cli(*POOL, "--record", path)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("args", "found", "expected"),
    [
        (("--gpu", "h100", "--goal", "speed"), "--goal: found 'speed'", "capacity, latency, idle-sessions, context"),
        (("--gpu", "h1000"), "'h1000'", "nearest"),
        (("--gpu", "h100", "--engine", "vlm"), "--engine: found 'vlm'", "nearest: vllm"),
        (("--gpu", "h100", "--kv-cache-dtype", "kivi2"), "kivi2 with vllm", "expected one of"),
        (("--gpu", "h100", "--pool", "much"), "--pool: found 'much'", "80GB"),
        (("--gpu", "h100", "--offload", "cpu"), "--offload: found 'cpu'", "a size"),
        (("--gpu", "h100", "--num-gpus", "0"), "--num-gpus: found 0", "from 1"),
        (("--gpu", "h100", "--share-prefix", "8k"), "--share-prefix: found 8,192", "fewer than the 8,192"),
        ((), "--gpu", "Missing option"),
    ],
)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, args: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("advise", "llama-3.1-8b", "--ctx", "8k", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err
