"""`kvplan estimate` as a user meets it: answers, JSON, exit codes, and one sentence for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import Ran

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "estimate.schema.json"
LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 8192,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "max_position_embeddings": 131072, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip

Cli = Callable[..., Ran]


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA_CONFIG, **changes}))
    return path


def test_the_readmes_line(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "128k", "--fp8")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0].startswith(
        "llama-3.1-70b needs 20.00 GiB (21.47 GB) of KV cache for one sequence of"
    )
    assert "131,072" in ran.out
    assert "80 of 80 layers grow with context" in ran.out
    assert "read per decode step" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize(
    "args",
    [
        ("llama-3.1-70b", "--ctx", "128k", "--fp8"),
        ("deepseek-v3.2", "--ctx", "1M", "--explain"),
        ("whisper-large-v3",),
        ("qwen3-next-80b-a3b-instruct", "--gpu", "h200", "--num-gpus", "4", "--batch", "8"),
        ("deepseek-v4-pro", "--kv-cache-dtype", "fp8", "--index-dtype", "fp4", "--drafting"),
    ],
)
def test_json_is_one_document_that_meets_the_schema(kvplan_cli: Cli, args: tuple[str, ...]) -> None:
    ran = kvplan_cli("estimate", *args, "--json")
    document = json.loads(ran.out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["schema_version"] == 1
    cache = document["cache"]
    assert cache["needed_bytes"] == cache["growing_bytes"] + cache["state_bytes"] + cache["cross_bytes"]
    assert cache["needed_bytes"] == document["batch"] * sum(part["bytes"] for part in cache["components"])
    assert cache["read_bytes_per_step"] == document["batch"] * sum(part["read_bytes"] for part in cache["components"])
    assert all(part["derivation"]["formula"] and part["derivation"]["inputs"] for part in cache["components"])


def test_json_figures(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "128k", "--fp8", "--json").out)
    assert document["context_tokens"] == 131072
    assert document["cache"]["needed_bytes"] == document["cache"]["growing_bytes"] == 20 << 30
    assert document["cache"]["bytes_per_token_marginal"] == 163840
    assert document["weights"]["bytes"] == 2 * 70_553_706_496  # measured on the meta device, facts on weights


def test_without_ctx_the_models_limit_is_taken_and_said(kvplan_cli: Cli) -> None:
    document = json.loads(kvplan_cli("estimate", "llama-3.1-8b", "--json").out)
    assert document["context_tokens"] == 131072
    assert document["context_source"] == "the model's limit, no --ctx given"
    ran = kvplan_cli("estimate", "falcon-7b")
    assert ran.code == 2
    assert "falcon-7b declares no limit" in ran.err


def test_beyond_the_models_limit_warns(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("estimate", "mixtral-8x7b-v0.1", "--ctx", "256k", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    assert document["beyond_model_limit"] is True
    assert any("beyond the 32,768" in warning for warning in document["warnings"])


def test_exit_code_tells_whether_it_fits(kvplan_cli: Cli) -> None:
    fits = kvplan_cli("estimate", "llama-3.1-8b", "--ctx", "8k", "--gpu", "h100")
    assert fits.code == 0
    assert "it fits on" in fits.out
    too_large = kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "8k", "--gpu", "h100")
    assert too_large.code == 1
    assert "does NOT fit" in too_large.out


def test_fit_figures_are_consistent(kvplan_cli: Cli) -> None:
    args = ("estimate", "llama-3.1-8b", "--ctx", "32k", "--gpu", "h100", "--json")
    fit = json.loads(kvplan_cli(*args).out)["fit"]
    # 81,559 MiB by nvidia-smi, 90 % of it usable; 16,060,522,496 B of weights (8.030 G parameters in 16 bits).
    assert fit["usable_bytes_per_gpu"] == 81559 * 2**20 * 90 // 100
    left = fit["usable_bytes_per_gpu"] - 2 * 8_030_261_248
    assert fit["max_full_length_sequences"] == left // (131072 * 32768)
    assert fit["longest_context_tokens"] == min(131072, left // 131072)


def test_explain_names_every_source(kvplan_cli: Cli) -> None:
    out = kvplan_cli("estimate", "gemma-3-27b", "--ctx", "128k", "--explain").out
    assert "Derivations" in out
    assert "blocks.local" in out


def test_a_dtype_that_a_layer_cannot_take_says_so(kvplan_cli: Cli) -> None:
    document = json.loads(
        kvplan_cli("estimate", "deepseek-v3", "--ctx", "8k", "--kv-cache-dtype", "kivi2", "--json").out
    )
    assert document["cache"]["needed_bytes"] == 8192 * 61 * 1152
    assert document["warnings"] == ["mla: kivi2 has no layout for an MLA latent: it stays in 16 bits"]


def test_a_users_config_and_folder(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = write_config(tmp_path)
    for source in (path, tmp_path):
        document = json.loads(kvplan_cli("estimate", source, "--ctx", "128k", "--json").out)
        assert document["cache"]["needed_bytes"] == 40 << 30


def test_key_and_value_dtypes_differ_as_in_llama_cpp(kvplan_cli: Cli) -> None:
    args = (
        "estimate",
        "llama-3.1-8b",
        "--ctx",
        "8k",
        "--kv-cache-dtype",
        "q8_0",
        "--value-cache-dtype",
        "q4_0",
        "--json",
    )
    # 32 layers, a row of 1,024 values: 32 blocks of 34 B for K and of 18 B for V (ggml-common.h).
    assert json.loads(kvplan_cli(*args).out)["cache"]["needed_bytes"] == 8192 * 32 * 32 * (34 + 18)


MISTAKES = [
    (("llama-9.9-70b",), 2, "model: found 'llama-9.9-70b', which is no known model", "nearest: llama-"),
    (("qwen3",), 2, "which is short for", "qwen3-"),
    (("llama-3.1-8b", "--gpu", "h1000"), 2, "'h1000'", "nearest"),
    (("llama-3.1-8b", "--kv-cache-dtype", "fp9"), 2, "--kv-cache-dtype: found 'fp9'", "nearest: fp8"),
    (("llama-3.1-8b", "--index-dtype", "q"), 2, "--index-dtype: found 'q'", "expected one of auto, bf16"),
    (("llama-3.1-8b", "--state-dtype", "int3"), 2, "--state-dtype: found 'int3'", "expected one of auto, float32"),
    (("llama-3.1-8b", "--ctx", "0"), 2, "--ctx: found '0'", "a whole number of tokens"),
    (("llama-3.1-8b", "--ctx", "-5"), 2, "--ctx: found '-5'", "a whole number of tokens"),
    (("llama-3.1-8b", "--ctx", "12q"), 2, "--ctx: found '12q'", "128k"),
    (("llama-3.1-8b", "--ctx", "1e400"), 2, "--ctx: found '1e400'", "128k"),
    (("llama-3.1-8b", "--batch", "0"), 2, "--batch: found 0", "from 1"),
    (("llama-3.1-8b", "--batch", "many"), 2, "--batch", "many"),
    (("llama-3.1-8b", "--gpu", "h100", "--num-gpus", "0"), 2, "--num-gpus: found 0", "from 1"),
    (("llama-3.1-8b", "--fp8", "--kv-cache-dtype", "bf16"), 2, "--fp8: found it together with", "one of them"),
    (("llama-3.1-8b", "--assume", "sparse"), 2, "--assume: found 'sparse'", "dense"),
    (("llama-3.1-8b", "--frobnicate"), 2, "--frobnicate", "No such option"),
    (("llama-3.1-8b", "--kv-cache-dtype-skip-layers", "99"), 2, "found layer 99", "0 to 31"),
    (("no/such/config.json",), 2, "no/such/config.json: can't be read", "a readable file"),
    (("no/such/model.gguf",), 2, "no/such/model.gguf", "can't be read"),
    (("a/b/c", "--hub"), 2, "--hub", "owner/name"),
    (("",), 2, "model: found an empty name", "config.json"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "code", "found", "expected"), MISTAKES)
def test_each_mistake_gets_one_sentence(
    kvplan_cli: Cli, args: tuple[str, ...], code: int, found: str, expected: str
) -> None:
    ran = kvplan_cli("estimate", *args)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err
    assert expected in ran.err
    assert "Traceback" not in ran.err


BAD_CONFIGS: list[tuple[str, str, int]] = [
    ("", "an empty file", 2),
    ("hello", "no JSON", 2),
    ("[1, 2]", "expected an object", 2),
    ('{"model_type": "llama", "num_hidden_layers": [1, 2]}', "num_hidden_layers", 2),
    (json.dumps({**LLAMA_CONFIG, "num_attention_heads": -64}), "num_attention_heads", 2),
    (json.dumps({**LLAMA_CONFIG, "head_dim": 0}), "head_dim", 2),
    (json.dumps({**LLAMA_CONFIG, "num_hidden_layers": 10**12}), "num_hidden_layers", 2),
    (json.dumps({**LLAMA_CONFIG, "hidden_size": float("nan")}), "hidden_size", 2),
    (json.dumps({**LLAMA_CONFIG, "num_attention_heads": 96}), "", 3),
    (json.dumps({**LLAMA_CONFIG, "layer_types": ["full_attention"] * 3}), "layer_types", 3),
    (json.dumps({"model_type": "frobnicator", "num_hidden_layers": 3}), "frobnicator", 3),
    ('{"a":' * 10_000 + "1" + "}" * 10_000, "nesting", 2),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found", "code"), BAD_CONFIGS)
def test_each_bad_config_gets_one_sentence(kvplan_cli: Cli, tmp_path: Path, text: str, found: str, code: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    ran = kvplan_cli("estimate", path, "--ctx", "8k")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    assert found in ran.err


def test_a_huge_config_is_not_read(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (50 << 20))
    ran = kvplan_cli("estimate", path)
    assert ran.code == 2
    assert "more than 16,777,216 bytes" in ran.err


def test_an_unknown_architecture_can_be_assumed_dense(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = write_config(tmp_path, model_type="frobnicator", architectures=["FrobnicatorForCausalLM"])
    assert kvplan_cli("estimate", path, "--ctx", "8k").code == 3
    ran = kvplan_cli("estimate", path, "--ctx", "8k", "--assume", "dense", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    assert document["model"]["confidence"] == "assumed"
    assert document["cache"]["needed_bytes"] == 8192 * 327680


def test_specs_that_are_not_verbatim_say_so(kvplan_cli: Cli) -> None:
    out = " ".join(kvplan_cli("estimate", "whisper-large-v3", "--ctx", "100").out.split())
    assert "the spec of whisper-large-v3 is unverified" in out
    assert "the spec of" not in kvplan_cli("estimate", "llama-3.1-8b").out
