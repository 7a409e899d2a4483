"""`kvplan explain` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "explain.schema.json").read_text())
GIB = 1 << 30
Cli = Callable[..., Ran]
COMBINED = ("explain", "llama-3.1-70b", "--ctx", "128k", "--what-if", "cla=2", "--fp8", "--evict", "snapkv:0.5")


def test_the_combined_example_of_the_field(kvplan_cli: Cli) -> None:
    # 40 GiB -> CLA2 20 -> half of the tokens 10 -> FP8 5, from 320 as plain MHA (Llama 3.1 70B at 131,072 tokens).
    document = json.loads(kvplan_cli(*COMBINED, "--json").out)
    assert [step["stored_bytes"] / GIB for step in document["steps"]] == [320, 40, 20, 10, 5]
    assert [step["read_bytes_per_step"] / GIB for step in document["steps"]] == [320, 40, 40, 20, 10]
    assert [step["decided_by"] for step in document["steps"]] == ["baseline", "checkpoint", "what-if", "flag", "flag"]
    assert [step["stored_factor"] for step in document["steps"]] == [1, 0.125, 0.5, 0.5, 0.5]
    assert [step["read_factor"] for step in document["steps"]] == [1, 0.125, 1, 0.5, 0.5]
    warnings = document["warnings"]
    assert len(warnings) == 3
    assert "needs training" in warnings[0]
    assert "accuracy check" in warnings[1]
    assert "loses the dropped tokens for good" in warnings[2]


def test_flops_are_those_of_query_heads_over_the_tokens_read(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli(*COMBINED, "--json").out)
    dense = 80 * 64 * 2 * (128 + 128) * 131072
    assert [step["attention_flops_per_step"] for step in document["steps"]] == [
        dense,
        dense,
        dense,
        dense // 2,
        dense // 2,
    ]


def test_a_read_saving_is_never_shown_as_a_memory_saving(kvplan_cli: Cli) -> None:
    args = ("explain", "llama-2-7b", "--ctx", "32k", "--sparse-read", "quest:page=16,budget=2048", "--json")
    quest = json.loads(kvplan_cli(*args).out)["steps"][-1]
    assert quest["technique"] == "quest"
    assert quest["stored_factor"] == 1.0625
    assert quest["read_factor"] < 0.2


def test_deepseek_v32_reads_less_through_its_indexer_and_stores_more(kvplan_cli: Cli) -> None:
    steps = json.loads(kvplan_cli("explain", "deepseek-v3.2", "--ctx", "128k", "--json").out)["steps"]
    indexer = next(step for step in steps if step["technique"] == "quest")
    # 1,152 bytes of latent in 16 bits and 132 of fp8 index key a token and layer; 2,048 latents read.
    assert indexer["stored_bytes"] == 61 * 131072 * (1152 + 132)
    assert indexer["read_bytes_per_step"] == 61 * (131072 * 132 + 2048 * 1152)


@pytest.mark.parametrize(
    "args",
    [
        COMBINED,
        ("explain", "qwen3-next-80b-a3b", "--ctx", "1M"),
        ("explain", "deepseek-v4-pro", "--fp8", "--offload", "cpu:1GiB"),
        ("explain", "gemma-3-27b", "--batch", "16", "--share-prefix", "2k"),
        ("explain", "whisper-large-v3",),
        ("explain", "mamba-2.8b", "--ctx", "8k"),
    ],
)  # fmt: skip
def test_json_meets_the_schema_and_text_fits_80_columns(kvplan_cli: Cli, args: tuple[str, ...]) -> None:
    document = json.loads(kvplan_cli(*args, "--json").out)
    jsonschema.validate(document, SCHEMA)
    composition, last = document["composition"], document["steps"][-1]
    assert last["stored_bytes"] == composition["stored_bytes"]
    assert last["read_bytes_per_step"] == composition["read_bytes_per_step"]
    text = kvplan_cli(*args)
    assert text.code == 0
    assert max(map(len, text.out.splitlines())) <= 80


def test_text_shows_three_quantities_and_who_decides(kvplan_cli: Cli) -> None:
    out = kvplan_cli(*COMBINED).out
    head = next(line for line in out.splitlines() if line.startswith("after"))
    assert head.split() == ["after", "decided", "by", "stored", "read/step", "FLOP/step"]
    row = next(line for line in out.splitlines() if line.startswith("layers share caches"))
    assert row.split()[-7:] == ["GiB", "x0.5", "40.00", "GiB", "=", "344", "G"]
    assert "what-if" in row


def test_no_colour_codes_where_none_are_wanted(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for args in (COMBINED, ("techniques",), ("compare", "llama-3.1-8b"), ("advise", "llama-3.1-8b", "--gpu", "h100")):
        out = kvplan_cli(*args).out
        assert "\x1b[3" not in out
        assert "\x1b[9" not in out


@pytest.mark.parametrize(
    ("options", "found", "expected"),
    [
        (("--what-if", "mla=512"), "--what-if mla: found '512'", "mla=512+64"),
        (("--evict", "dms"), "needs training", "snapkv"),
        (("--plot", "out.txt"), "--plot: found 'out.txt'", ".png, .svg or .pdf"),
        (("--plot", "no/such/folder/out.png"), "can't be written", "a writable folder"),
        (("--assume", "sparse"), "--assume: found 'sparse'", "expected dense"),
        (("--ctx", "none"), "--ctx: found 'none'", "128k"),
        (("--batch", "0"), "--batch: found 0", "from 1"),
    ],
)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, options: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("explain", "llama-3.1-8b", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err
