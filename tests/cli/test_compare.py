"""`kvplan compare` as a user meets it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "compare.schema.json").read_text())
GIB = 1 << 30
Cli = Callable[..., Ran]
TWO = ("compare", "llama-3.1-70b", "gemma-3-27b", "--ctx", "8k,128k")


def test_ratios_are_over_the_first_model_and_setting(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli(*TWO, "--vary", "kv-cache-dtype=bf16,fp8", "--json").out)
    jsonschema.validate(document, SCHEMA)
    assert document["baseline"] == "llama-3.1-70b bf16"
    rows = {(row["model"], row["setting"]): row["cells"] for row in document["rows"]}
    # Llama 3.1 70B 327,680 B a token; Gemma 3 27B 81,920 B a token and 52 windows of 1,024 tokens of 8,192 B.
    assert rows["llama-3.1-70b", "fp8"][1]["stored_bytes"] == 20 * GIB
    assert rows["llama-3.1-70b", "fp8"][1]["stored_ratio"] == 0.5
    gemma = 81920 * 131072 + 52 * 1024 * 8192
    assert rows["gemma-3-27b-it", "bf16"][1]["stored_bytes"] == gemma
    assert rows["gemma-3-27b-it", "bf16"][1]["stored_ratio"] == pytest.approx(gemma / (40 * GIB))


@pytest.mark.parametrize(
    ("sort", "first"),
    [("stored", "llama-3.1-70b"), ("model", "deepseek-v3.2"), ("given", "gemma-3-27b-it"), ("flops", "deepseek-v3.2")],
)
def test_rows_are_sorted(kvplan_cli: Cli, sort: str, first: str) -> None:
    args = ("compare", "gemma-3-27b", "llama-3.1-70b", "deepseek-v3.2", "--ctx", "2k", "--sort", sort, "--json")
    document = json.loads(kvplan_cli(*args).out)
    assert document["rows"][0]["model"] == first
    assert document["baseline"] == "gemma-3-27b-it bf16"


def test_a_refused_combination_leaves_the_others(kvplan_cli: Cli) -> None:
    args = ("compare", "llama-3.1-8b", "deepseek-v3.2", "--ctx", "8k", "--evict", "snapkv:2048")
    document = json.loads(kvplan_cli(*args, "--json").out)
    jsonschema.validate(document, SCHEMA)
    refused = next(row["cells"][0] for row in document["rows"] if row["model"] == "deepseek-v3.2")
    assert refused["stored_bytes"] is None
    assert "addresses every entry" in refused["refused"]
    assert "refused" in kvplan_cli(*args).out
    swapped = kvplan_cli("compare", "deepseek-v3.2", "llama-3.1-8b", *args[3:])
    assert (swapped.code, swapped.out) == (2, "")
    assert "addresses every entry" in swapped.err


def test_values_with_commas_stay_whole(kvplan_cli: Cli) -> None:
    vary = ("sparse-read=none,quest:page=16,budget=2048,quest:page=32,budget=1024", "kv-cache-dtype=bf16,fp8")
    args = ("compare", "llama-3.1-8b", "--ctx", "32k", "--vary", vary[0], "--vary", vary[1], "--json")
    settings = {row["setting"] for row in json.loads(kvplan_cli(*args).out)["rows"]}
    pages = ("sparse-read quest:page=16,budget=2048", "sparse-read quest:page=32,budget=1024")
    assert settings == {"bf16", "fp8", *(f"{page}, {dtype}" for page in pages for dtype in ("bf16", "fp8"))}


def test_contexts_beyond_the_models_limit_are_marked(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("compare", "llama-3.1-70b", "mamba-2.8b", "--ctx", "8k,1M")
    assert "320.0 GiB*" in ran.out
    assert "* beyond what the model declares." in ran.out
    assert "llama-3.1-70b declares 131,072 tokens" in ran.out


def test_csv_holds_the_bytes_of_the_json_document(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    document = json.loads(kvplan_cli(*TWO, "--csv", path, "--json").out)
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    cells = [(row, cell) for row in document["rows"] for cell in row["cells"]]
    assert len(lines) == len(cells) == 4
    for line, (row, cell) in zip(lines, cells, strict=True):
        assert (line["model"], line["setting"]) == (row["model"], row["setting"])
        assert int(line["context_tokens"]) == cell["context_tokens"]
        assert int(line["stored_bytes"]) == cell["stored_bytes"]
        assert int(line["read_bytes_per_step"]) == cell["read_bytes_per_step"]
        assert float(line["stored_ratio"]) == cell["stored_ratio"]


def test_markdown_is_a_table(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    assert kvplan_cli(*TWO, "--markdown", path).code == 0
    lines = path.read_text().splitlines()
    assert "| model | setting | 8,192 tokens | 131,072 tokens |" in lines
    assert "| llama-3.1-70b | bf16 | 2.500 GiB x1 | 40.00 GiB x1 |" in lines
    assert all(line.count("|") == 5 for line in lines if line.startswith("|"))


def test_text_fits_80_columns_and_uses_more(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (
        "compare",
        "llama-3.1-70b",
        "qwen3-next-80b-a3b",
        "--ctx",
        "8k,32k,128k,1M",
        "--vary",
        "kv-cache-dtype=bf16,fp8",
    )
    narrow = kvplan_cli(*args).out.splitlines()
    assert max(map(len, narrow)) <= 80
    assert any(line.startswith("qwen3-next-80b-a3b-instruct ") for line in narrow)
    monkeypatch.setenv("COLUMNS", "140")
    wide = kvplan_cli(*args).out.splitlines()
    assert any(line.startswith("qwen3-next-80b-a3b-instruct  fp8") and "x" in line for line in wide)


def test_curves_bend_where_windows_and_states_do(kvplan_cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    args = (
        "compare",
        "gemma-3-27b",
        "mamba-2.8b",
        "mistral-7b-v0.1",
        "--ctx",
        "64k",
        "--plot",
        tmp_path / "c.svg",
        "--json",
    )
    curves = {curve["model"]: curve for curve in json.loads(kvplan_cli(*args).out)["curves"]}
    assert len(set(curves["mamba-2.8b"]["stored_bytes"])) == 1
    points = dict(zip(curves["mistral-7b-v0.1"]["contexts"], curves["mistral-7b-v0.1"]["stored_bytes"], strict=True))
    assert points[256] == 256 * 131072
    assert points[65536] == 4096 * 131072
    gemma = dict(zip(curves["gemma-3-27b-it"]["contexts"], curves["gemma-3-27b-it"]["stored_bytes"], strict=True))
    assert gemma[256] == 62 * 256 * 8192
    assert gemma[65536] == (10 * 65536 + 52 * 1024) * 8192


@pytest.mark.parametrize(
    ("args", "found", "expected"),
    [
        (("llama-3.1-8b", "--vary", "dtype=fp8"), "--vary: found 'dtype=fp8'", "kv-cache-dtype"),
        (("llama-3.1-8b", "--vary", "evict"), "--vary: found 'evict'", "expected values"),
        (("llama-3.1-8b", "--vary", "kv-cache-dtype=fp8,fp9"), "'fp9'", "nearest: fp8"),
        (("llama-3.1-8b", "--vary", "batch=two"), "--vary batch", "a whole number"),
        (("llama-3.1-8b", "--vary", "evict=tova:64", "--evict", "tova:128"), "fixed by its own option", "one of them"),
        (("llama-3.1-8b", "--vary", "batch=1", "--vary", "batch=2"), "batch twice", "each option once"),
        (("llama-3.1-8b", "--sort", "size"), "--sort: found 'size'", "stored, read, flops"),
        (("llama-3.1-8b", "--ctx", "8k,x"), "--ctx: found 'x'", "128k"),
        (("llama-3.1-8b", "llama-9"), "'llama-9'", "nearest"),
        (("llama-3.1-8b", "--plot", "curves.gif"), "--plot: found 'curves.gif'", ".png"),
        ((), "Missing argument", "models"),
    ],
)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, args: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("compare", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err
