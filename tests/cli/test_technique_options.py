"""Technique options of `kvplan estimate`: figures, YAML lists, GPUs, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "estimate.schema.json").read_text())
Cli = Callable[..., Ran]


def test_without_a_technique_there_is_no_composition(kvplan_cli: Cli) -> None:
    assert json.loads(kvplan_cli("estimate", "llama-3.1-8b", "--json").out)["composition"] is None


def test_a_plain_estimate_imports_no_technique() -> None:
    code = (
        "import sys; sys.argv = ['kvplan', 'estimate', 'llama-3.1-8b', '--json']\n"
        "from kvplan.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if 'techniques.' in name or 'matplotlib' in name], file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "options",
    [
        ("--fp8", "--what-if", "cla=2", "--evict", "snapkv:0.5"),
        ("--share-prefix", "2k", "--batch", "64", "--offload", "cpu:64GiB"),
        ("--sparse-read", "quest:page=16,budget=2048", "--block-size", "16", "--gpu", "h200", "--num-gpus", "4"),
        ("--kv-cache-dtype", "kivi2:group=64,residual=128"),
        ("--evict", "pyramidkv:2048", "--generated", "512", "--gpu", "h200", "--num-gpus", "4"),
    ],
)
def test_json_meets_the_schema_and_bytes_add_up(kvplan_cli: Cli, options: tuple[str, ...]) -> None:
    document = json.loads(kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "128k", *options, "--json").out)
    jsonschema.validate(document, SCHEMA)
    composition = document["composition"]
    if composition is None:
        return
    batch = document["batch"]
    assert composition["device_bytes"] + composition["moved_bytes"] == composition["stored_bytes"]
    assert batch * composition["sequence_bytes"] == composition["stored_bytes"] + composition["shared_bytes"]
    assert document["cache"]["needed_bytes"] == batch * composition["needed_bytes_per_sequence"]
    assert document["cache"]["needed_bytes"] == batch * sum(part["bytes"] for part in document["cache"]["components"])


def test_kivi_options(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", "--ctx", "128k", "--kv-cache-dtype", "kivi2:group=64,residual=128", "--json")
    document = json.loads(kvplan_cli(*args).out)
    # 131,072 = 1,024 residual windows: all keys in groups, all values but 128; 2.5 bits a value at group 64.
    layer = 8 * 128 * (131072 * 5 // 16 + (131072 - 128) * 5 // 16 + 128 * 2)
    assert document["cache"]["needed_bytes"] == 32 * layer
    assert document["dtypes"]["kv_key"] == "kivi2:group=64,residual=128"


def test_fit_counts_a_shared_prefix_once(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", "--ctx", "8k", "--gpu", "h100", "--json")
    alone = json.loads(kvplan_cli(*args).out)["fit"]
    shared = json.loads(kvplan_cli(*args, "--share-prefix", "4k").out)["fit"]
    left = 81559 * 2**20 * 90 // 100 - 2 * 8_030_261_248
    # One sequence of 1 GiB, then half of one each: 131,072 bytes a token.
    assert alone["max_full_length_sequences"] == left >> 30
    assert shared["max_full_length_sequences"] == 1 + (left - (1 << 30)) // (1 << 29)


def test_fit_leaves_out_what_is_offloaded(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", "--ctx", "128k", "--batch", "4", "--gpu", "h100")
    assert kvplan_cli(*args).code == 1  # 64 GiB beside 15 GiB of weights on 72 GiB
    assert kvplan_cli(*args, "--offload", "cpu:16GiB").code == 0


def test_ranks_hold_their_share_of_an_evicted_cache(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", "--ctx", "128k", "--evict", "tova:2048", "--gpu", "h100", "--num-gpus", "4")
    fit = json.loads(kvplan_cli(*args, "--json").out)["fit"]
    assert fit["kv_bytes_per_sequence_per_gpu"] == 2048 * 131072 // 4
    assert fit["longest_context_tokens"] == 131072


def test_a_yaml_list_says_the_same_as_the_options(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "techniques.yaml"
    path.write_text(
        "techniques:\n- evict: h2o:0.1+0.1\n- kv-cache-dtype: fp8\n- block-size: 16\n- batch: 4\n"
        "- kv-cache-dtype-skip-layers: [0, 1]\n"
    )
    listed = json.loads(kvplan_cli("estimate", "llama-3.1-8b", "--ctx", "32k", "--techniques", path, "--json").out)
    options = ("--evict", "h2o:0.1+0.1", "--fp8", "--block-size", "16", "--batch", "4")
    skip = ("--kv-cache-dtype-skip-layers", "0,1")
    given = json.loads(kvplan_cli("estimate", "llama-3.1-8b", "--ctx", "32k", *options, *skip, "--json").out)
    assert listed == given
    assert given["batch"] == 4


def test_the_text_names_what_was_applied(kvplan_cli: Cli) -> None:
    ran = kvplan_cli(
        "estimate", "llama-3.1-70b", "--ctx", "8k", "--batch", "64", "--share-prefix", "2k", "--offload", "cpu:64GiB"
    )
    text = " ".join(ran.out.split())
    assert "64 sequences share 2,048 tokens, moved to cpu" in text
    assert "on the device" in text
    assert max(map(len, ran.out.splitlines())) <= 80


MISTAKES = [
    (("--evict", "snap:2048"), "--evict: found 'snap'", "nearest: snapkv"),
    (("--evict", "snapkv"), "--evict: found 'snapkv'", "a budget such as"),
    (("--sparse-read", "dsa"), "needs training", "quest:page=16"),
    (("--block-size", "0"), "--block-size: found '0'", "from 1"),
    (("--share-prefix", "1M"), "--share-prefix: found 1,048,576 tokens", "at most"),
    (("--offload", "tape:1TB"), "--offload: found 'tape'", "expected one of cpu"),
    (("--offload", "network:1TB"), "the link's rate", "bw="),
    (("--what-if", "clas=2"), "--what-if: found 'clas=2'", "nearest: cla"),
    (("--what-if", "evict=snapkv:2048"), "needs no training", "--evict"),
    (("--evict", "snapkv:2048", "--share-prefix", "1k"), "expected one of the two", "--evict"),
    (("--kv-cache-dtype", "kivi2", "--block-size", "16"), "--block-size: kivi2", "fp8"),
    (("--kv-cache-dtype", "kivi2:group=48"), "residual=128", "nearest"),
    (("--evict", "tova:1024", "--drafting"), "--drafting", "expected one of both"),
    (("--generated", "200k"), "generated", "expected 0 to"),
    (("--techniques", "missing.yaml"), "missing.yaml: can't be read", "a readable file"),
]


@pytest.mark.parametrize(("options", "found", "expected"), MISTAKES)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, options: tuple[str, ...], found: str, expected: str) -> None:
    ran = kvplan_cli("estimate", "llama-3.1-8b", "--ctx", "128k", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err


BAD_LISTS = [
    ("- evict: tova:1024\n", "expected one key, techniques"),
    ("techniques: tova\n", "expected one key, techniques"),
    ("techniques:\n- evict: tova:1024\n- evict: tova:64\n", "at most once"),
    ("techniques:\n- cla: 2\n", "--what-if cla=2"),
    ("techniques:\n- evicted: tova:1024\n", "nearest: evict"),
    ("techniques: [&a {evict: tova:1024}, *a]\n", "aliases"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_LISTS)
def test_each_bad_list_gets_one_sentence(kvplan_cli: Cli, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    ran = kvplan_cli("estimate", "llama-3.1-8b", "--techniques", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert expected in ran.err


def test_a_list_and_an_option_that_differ_are_refused(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("techniques:\n- kv-cache-dtype: int8\n")
    ran = kvplan_cli("estimate", "llama-3.1-8b", "--techniques", path, "--fp8")
    assert ran.code == 2
    assert "--kv-cache-dtype: found fp8, and int8 in the list" in ran.err


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        ("mamba-2.8b", ("--evict", "h2o:0.1+0.1"), "holds no single tokens"),
        ("deepseek-v4-pro", ("--evict", "snapkv:2048"), "addresses every entry"),
        ("deepseek-v3", ("--sparse-read", "quest"), "no keys of its own"),
        ("deepseek-v3", ("--evict", "adakv:1024"), "one set of tokens a layer"),
    ],
)
def test_a_combination_without_meaning_is_refused_with_the_reason(
    kvplan_cli: Cli, model: str, options: tuple[str, ...], reason: str
) -> None:
    ran = kvplan_cli("estimate", model, "--ctx", "8k", *options)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
