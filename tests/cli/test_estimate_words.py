"""What `kvplan estimate` says about its options, dtypes, weights and limits, and what its Python form takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

import kvplan
from kvplan.errors import InputError
from kvplan.spec.importers.config import import_config
from kvplan.spec.importers.tensors import TensorInfo, summarize
from kvplan.spec.resolve import LoadedModel, resolve_model
from kvplan.spec.traits import traits
from tests.cli.test_estimate import LLAMA_CONFIG, write_config
from tests.conftest import Ran

Cli = Callable[..., Ran]


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("llama-3.1-8b", {"encoder_tokens": 9}, "--encoder-tokens has no effect: llama-3.1-8b has no cross attention"),
        ("whisper-large-v3", {"encoder_tokens": 9}, "--encoder-tokens has no effect: the checkpoint of"),
        ("llama-3.1-8b", {"index_dtype": "fp8"}, "--index-dtype has no effect"),
        ("llama-3.1-8b", {"state_dtype": "bfloat16"}, "--state-dtype has no effect"),
        ("llama-3.1-8b", {"drafting": True}, "--drafting has no effect"),
        ("llama-3.1-8b", {"num_gpus": 2}, "--num-gpus has no effect without --gpu"),
        (
            "llama-3.1-8b",
            {"skip_layers": ["sliding_window"], "kv_cache_dtype": "fp8"},
            "sliding_window has no effect",
        ),
        ("llama-3.1-8b", {"skip_layers": [0]}, "K and V are in bf16 anyway"),
        ("mamba-2.8b", {"skip_layers": [0], "kv_cache_dtype": "fp8"}, "skip-layers layer 0 has no effect"),
    ],
)
def test_an_option_without_effect_is_said_once(model: str, options: dict[str, Any], sentence: str) -> None:
    said = kvplan.estimate(model, ctx="1k", **options).assumptions
    assert len([line for line in said if sentence in line]) == 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("whisper-large-v3", {"encoder_tokens": 1500}),
        ("deepseek-v3.2", {"drafting": True, "kv_cache_dtype": "fp8", "skip_layers": [0]}),
        ("qwen3-next-80b-a3b-instruct", {"state_dtype": "bfloat16", "num_gpus": 2, "gpu": "h100"}),
    ],
)
def test_an_option_with_an_effect_is_not(model: str, options: dict[str, Any]) -> None:
    assert not [line for line in kvplan.estimate(model, ctx="1k", **options).assumptions if "no effect" in line]


def test_assuming_dense_on_a_known_architecture_is_said(kvplan_cli: Cli, tmp_path: Path) -> None:
    for model in ("llama-3.1-8b", write_config(tmp_path)):
        assert "--assume dense has no effect" in kvplan_cli("estimate", model, "--ctx", "1k", "--assume", "dense").out


def test_no_encoder_tokens_may_be_asked_for(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("estimate", "flan-t5-xxl", "--ctx", "1k", "--encoder-tokens", "0", "--json")
    assert json.loads(ran.out)["cache"]["cross_bytes"] == 0


@pytest.mark.parametrize(
    ("model", "options", "dtypes"),
    [
        ("llama-3.1-8b", {}, "(bf16)"),
        ("deepseek-v3", {"kv_cache_dtype": "kivi2"}, "(bf16, kivi2 asked)"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8", "skip_layers": [0]}, "(fp8 and bf16, fp8 asked)"),
        ("deepseek-v3", {"kv_cache_dtype": "fp8", "value_cache_dtype": "bf16"}, "(fp8)"),
        ("mamba-2.8b", {"kv_cache_dtype": "fp8"}, "(recurrent state alone)"),
    ],
)
def test_the_verdict_names_the_dtypes_in_force(model: str, options: dict[str, Any], dtypes: str) -> None:
    assert dtypes in kvplan.estimate(model, ctx="1k", **options).verdict


def test_a_value_dtype_beside_a_latent_is_warned_of() -> None:
    answer = kvplan.estimate("deepseek-v3", ctx="1k", kv_cache_dtype="fp8", value_cache_dtype="bf16")
    assert any("the value dtype bf16 has no effect" in line for line in answer.warnings)
    assert (
        answer.cache.needed_bytes == kvplan.estimate("deepseek-v3", ctx="1k", kv_cache_dtype="fp8").cache.needed_bytes
    )


def test_draft_layers_have_names_and_weights_of_their_own() -> None:
    plain = kvplan.estimate("deepseek-v3", ctx="1k")
    drafting = kvplan.estimate("deepseek-v3", ctx="1k", drafting=True)
    assert [part.name for part in drafting.cache.components] == ["mla: latent", "draft mla: latent"]
    assert drafting.cache.growing_layers == plain.cache.growing_layers + 1
    assert plain.weights is not None and drafting.weights is not None
    assert drafting.weights.bytes > plain.weights.bytes


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "fp8", "skip_layers": [0]}, {"drafting": True}])
def test_no_two_components_share_a_name(options: dict[str, Any]) -> None:
    for model in ("zaya1-8b", "deepseek-v3.2", "gemma-3-27b-it", "whisper-large-v3"):
        names = [part.name for part in kvplan.estimate(model, ctx="1k", **options).cache.components]
        assert len(set(names)) == len(names)


def test_what_bounds_the_longest_context(kvplan_cli: Cli) -> None:
    for model, gpu, bound, words in (
        ("llama-3.1-8b", "h200", "model", "131,072 tokens (the model's limit)"),
        ("llama-3.1-8b", "rtx-4090", "memory", " tokens\n"),
        ("mamba-2.8b", "h200", "none", "no limit"),
    ):
        fit = kvplan.estimate(model, ctx="1k", gpu=gpu).fit
        assert fit is not None and fit.longest_context_bound == bound
        assert words in kvplan_cli("estimate", model, "--ctx", "1k", "--gpu", gpu).out


def test_unknown_weights_leave_the_cache_answered(kvplan_cli: Cli, tmp_path: Path) -> None:
    config = write_config(tmp_path, intermediate_size=None)
    ran = kvplan_cli("estimate", config, "--ctx", "128k", "--gpu", "h100", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["fit"], document["weights"]) == (0, None, None)
    assert document["cache"]["needed_bytes"] == 40 << 30
    assert "whether it fits on H100-SXM5 is unknown" in document["verdict"]
    assert any("whether it fits on H100-SXM5 is unknown" in line for line in document["warnings"])


def test_a_checkpoints_warnings_are_passed_on() -> None:
    spec = resolve_model("llama-3.1-8b").spec
    whole = summarize([TensorInfo("model.norm.weight", "BF16", 4096, 8192)], ("m",), ("part 2 is missing",), True)
    answer = kvplan.estimate(LoadedModel(spec, whole), ctx="1k", gpu="h100")
    assert "part 2 is missing" in answer.warnings
    assert answer.weights is not None and spec.parameters is not None
    assert answer.weights.bytes == 2 * spec.parameters.total  # not the 8,192 bytes that are there


def test_published_weights_beat_fewer_counted_ones() -> None:
    """falcon-7b: 7.22 B published with a head of its own, 6.92 B counted with a tied one."""
    answer = kvplan.estimate("falcon-7b", ctx="1k")
    assert answer.weights is not None and answer.weights.bytes == 2 * int(Fraction("7.22") * 10**9)
    assert any("7.22 B parameters are published" in line and "tower" not in line for line in answer.assumptions)


def test_float32_is_said_once() -> None:
    spec = import_config({**LLAMA_CONFIG, "torch_dtype": "float32"}, name="m")
    for dtype in ("auto", "fp32"):
        said = [line for line in kvplan.estimate(spec, ctx="1k", kv_cache_dtype=dtype).assumptions if "float32" in line]
        assert len(said) == 1


def test_one_is_no_plural(kvplan_cli: Cli, tmp_path: Path) -> None:
    out = kvplan_cli("estimate", write_config(tmp_path, num_hidden_layers=1), "--ctx", "1").out
    assert "1 token " in out and "1 layer x 1 entry x" in out and "1 of 1 layer grows" in out
    assert "1 tokens" not in out and "1 layers" not in out


def test_the_total_stands_in_bytes(kvplan_cli: Cli) -> None:
    assert "42,949,672,960 B = 40.00 GiB (42.95 GB)" in kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "128k").out


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("--ctx", {"ctx": 1024.0}),
        ("--ctx", {"ctx": True}),
        ("--ctx", {"ctx": [1]}),
        ("--batch", {"batch": 2.0}),
        ("--batch", {"batch": "2"}),
        ("--kv-cache-dtype", {"kv_cache_dtype": 8}),
        ("--kv-cache-dtype", {"kv_cache_dtype": None}),
        ("--value-cache-dtype", {"value_cache_dtype": 8}),
        ("--index-dtype", {"index_dtype": None}),
        ("--state-dtype", {"state_dtype": 3}),
        ("--kv-cache-dtype-skip-layers", {"skip_layers": "0,1"}),
        ("--kv-cache-dtype-skip-layers", {"skip_layers": 0}),
        ("--kv-cache-dtype-skip-layers", {"skip_layers": [1.5]}),
        ("--encoder-tokens", {"encoder_tokens": 1.5}),
        ("--encoder-tokens", {"encoder_tokens": -1}),
        ("--drafting", {"drafting": "yes"}),
        ("--gpu", {"gpu": 100}),
        ("--num-gpus", {"num_gpus": 1.0}),
        ("--what-if", {"what_ifs": "cla=2"}),
        ("--generated", {"generated": 1.5}),
    ],
)
def test_a_value_of_the_wrong_type_is_one_sentence(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{field}: found ") as caught:
        kvplan.estimate("llama-3.1-8b", **{"ctx": 1024, **options})
    assert "expected" in str(caught.value)


def test_numpy_integers_are_integers() -> None:
    answer = kvplan.estimate("llama-3.1-8b", ctx=numpy.int64(1024), batch=numpy.int32(2))
    assert type(answer.cache.needed_bytes) is int and type(answer.batch) is int
    assert answer.cache == kvplan.estimate("llama-3.1-8b", ctx=1024, batch=2).cache


def test_an_encoder_decoder_is_no_parallel_hybrid() -> None:
    assert "parallel-hybrid" not in traits(resolve_model("bart-large").spec)
    assert "parallel-hybrid" in traits(resolve_model("falcon-h1-0.5b-base").spec)
