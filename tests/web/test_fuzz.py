"""No question makes the API fail: what it can't answer it refuses, in the shape it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.conftest import Site

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (extra `test`)")

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
FILES = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))[::12]]
BOUNDED = settings(
    max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)  # fmt: skip
MODELS = ("llama-3.1-70b", "deepseek-v3", "gemma-3-27b-it", "gpt-oss-120b", "qwen3-next-80b-a3b-instruct")
ENGINES = ("vllm", "vllm@0.11", "sglang", "tensorrt-llm", "llama.cpp", "ollama", "lmdeploy", "transformers")
WORDS = (
    "auto", "bf16", "fp8", "", "none", "0", "-1", "128k", "nan", "1e400", "snapkv:2048", "h2o:0.1+0.1", "cpu:64GiB",
    "quest:page=0,budget=1", "cla=2", "kv-heads=0", "window=1:0/0", "mla=512+64", "kivi2:group=0", "\ud800", "\x00",
    "../../etc/passwd", "1/2", "0.5:0.5", "kv-cache-dtype=bf16,fp8",
)  # fmt: skip
FLAGS = (
    "block_size", "gpu_memory_utilization", "mem_fraction_static", "page_size", "speculative_config", "hf_overrides",
    "attention_backend", "quant_policy", "parallel", "ctx_size", "max_num_seqs", "tensor_split", "dtype",
)  # fmt: skip

odd: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(WORDS), st.integers(-1, 300), st.sampled_from((10**9, 10**18, 0.5, 1e308, True, None, [], {}))
)


@st.composite
def changed_config(draw: st.DrawFn) -> dict[str, Any]:
    """A real config.json with up to three of its fields replaced or gone."""
    config = dict(draw(st.sampled_from(FILES)))
    for name in draw(st.lists(st.sampled_from(sorted(config)), min_size=0, max_size=3, unique=True)):
        if draw(st.booleans()):
            config[name] = draw(st.one_of(odd, st.lists(odd, max_size=3)))
        else:
            del config[name]
    return config


@st.composite
def question(draw: st.DrawFn) -> dict[str, Any]:
    """A question that is nearly right."""
    found: dict[str, Any] = {"ctx": draw(st.sampled_from(("1", "8k", "128k", 10**12)))}
    if draw(st.booleans()):
        found["model"] = draw(st.sampled_from(MODELS))
    else:
        found |= {"config": draw(changed_config()), "assume_dense": draw(st.booleans())}
    if draw(st.booleans()):
        found |= {"engine": draw(st.sampled_from(ENGINES)), "gpu": draw(st.sampled_from(("h100", "b200", "mi300x")))}
        found |= {"num_gpus": draw(st.sampled_from((1, 2, 3, 8)))}
        found["settings"] = draw(st.dictionaries(st.sampled_from(FLAGS), odd, max_size=2))
    names = ("batch", "kv_cache_dtype", "state_dtype", "evict", "sparse_read", "block_size", "share_prefix", "offload")
    return found | draw(st.dictionaries(st.sampled_from(names), odd, max_size=2))


@pytest.mark.parametrize("name", ["estimate", "explain", "matrix", "command"])
@settings(BOUNDED, max_examples=60)
@given(asked=question())
def test_a_question_that_is_nearly_right(site: Site, name: str, asked: dict[str, Any]) -> None:
    if name == "explain":
        asked = {key: value for key, value in asked.items() if key not in ("engine", "gpu", "num_gpus", "settings")}
    reply = site.ask(name, asked)
    assert reply.status in (200, 422), reply.body
    if reply.status == 422:
        assert reply.json()["detail"]


OPERATIONS = ("estimate", "explain", "compare", "matrix", "audit", "check", "command", "models", "gpus", "engines")


@pytest.fixture(scope="module")
def document(site: Site) -> Any:
    return schemathesis.openapi.from_url(f"{site.url}/api/openapi.json")


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_document_is_kept(document: Any, name: str) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    kept = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
    path = document[f"/api/{name}"]
    operation = path["GET" if name in ("models", "gpus", "engines") else "POST"]

    @BOUNDED
    @given(case=operation.as_strategy())
    def every_case(case: Any) -> None:
        case.call_and_validate(checks=kept)

    every_case()


def test_every_path_is_fuzzed(site: Site) -> None:
    assert sorted(site.send("GET", "/api/openapi.json").json()["paths"]) == sorted(
        f"/api/{name}" for name in OPERATIONS
    )
