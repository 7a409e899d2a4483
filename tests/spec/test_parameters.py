"""Parameter counts against counts measured with the models' own code, and against published figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.spec.importers.config import import_config
from kvplan.spec.layers import FullAttention
from kvplan.spec.model import ModelSpec, Parameters, Provenance
from kvplan.spec.parameters import count_parameters, parameter_assumptions
from kvplan.spec.parameters.rules import RULES_PATH, FamilyRules, family_rules, rules_for

GOLDEN = Path(__file__).parents[1] / "golden"
MEASURED: dict[str, Any] = json.loads((GOLDEN / "parameter_counts.json").read_text())
PARTS = MEASURED["columns"]

# Where the measured class allocates what the checkpoints don't have.
OTHERWISE = {
    # the class gives an up-projection to the experts without weights: 2 layers x 2 of them x 2 x 32 x 64
    "tiny/longcat_flash": 2 * 2 * 2 * 32 * 64,
}


def count(config: dict[str, Any], name: str = "model") -> Parameters:
    found = count_parameters(config, import_config(config, name=name))
    assert found is not None
    return found


def published(stem: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / "configs" / f"{stem}.json").read_text())
    return value


@pytest.mark.parametrize("case", MEASURED["classes"], ids=lambda case: str(case["name"]))
def test_equals_what_the_model_class_allocates(case: dict[str, Any]) -> None:
    found = count(case["config"], case["name"])
    assert found.total + OTHERWISE.get(case["name"], 0) == case["parameters"]


@pytest.mark.parametrize("stem", MEASURED["configs"])
def test_equals_what_the_published_config_allocates(stem: str) -> None:
    found = count(published(stem), stem)
    for part, expected in zip(PARTS, MEASURED["configs"][stem], strict=True):
        if expected is not None:
            assert getattr(found, part) == expected, part


# Published totals in billions, of checkpoints whose code isn't in transformers or whose class has other defaults.
# Source: the model cards and reports of the named models, as rounded there.
@pytest.mark.parametrize(
    ("stem", "billions"),
    [
        ("deepseek-ai--deepseek-v2-chat", 235.7),
        ("deepseek-ai--deepseek-v2-lite", 15.7),
        ("deepseek-ai--deepseek-moe-16b-base", 16.38),
        ("meituan-longcat--longcat-flash-chat", 560.0),
        ("nvidia--llama-3_3-nemotron-super-49b-v1", 49.87),
        ("apple--openelm-1_1b", 1.08),
        ("microsoft--phi-2", 2.78),
        ("internlm--internlm2_5-7b-chat", 7.74),
        ("thudm--chatglm3-6b", 6.24),
        ("baichuan-inc--baichuan2-7b-base", 7.5),
        ("qwen--qwen-1_8b", 1.84),
        ("openai--whisper-large-v3", 1.54),
        ("facebook--bart-large", 0.406),
        ("orionstarai--orion-14b-chat", 14.5),
        ("xai-org--grok-1", 314.0),
    ],
)
def test_published_totals(stem: str, billions: float) -> None:
    assert count(published(stem), stem).total / 1e9 == pytest.approx(billions, rel=0.006)


@pytest.mark.parametrize(
    ("stem", "billions"),
    [
        ("openai--gpt-oss-120b", 5.13),  # gpt-oss model card, table 1: active parameters, embedding left out
        ("openai--gpt-oss-20b", 3.61),
        ("mistralai--mixtral-8x7b-v0.1", 12.9 - 0.131),  # Mixtral paper: 12.9B, embedding counted
        ("meituan-longcat--longcat-flash-chat", 27.0),  # LongCat-Flash report: 27B on average
    ],
)
def test_active_without_the_embedding(stem: str, billions: float) -> None:
    found = count(published(stem), stem)
    assert (found.active - found.embedding) / 1e9 == pytest.approx(billions, rel=0.01)


def test_draft_layers_stand_apart() -> None:
    # Nemotron 3 Super's model card gives 123.6B with its MTP layer, transformers' class 120.67B without.
    found = count(published("nvidia--nvidia-nemotron-3-super-120b-a12b-fp8"))
    assert (found.total + found.draft) / 1e9 == pytest.approx(123.6, abs=0.05)
    # DeepSeek-V3's model card: 671B main model, 14B MTP module of which embedding and head (1.85B) are shared copies.
    deepseek = count(published("deepseek-ai--deepseek-v3"))
    assert (deepseek.draft + deepseek.embedding + deepseek.head) / 1e9 == pytest.approx(14, rel=0.05)


def llama(**changes: Any) -> dict[str, Any]:
    config = {
        "model_type": "llama", "vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64,
    }  # fmt: skip
    return {**config, **changes}


def test_llama_by_hand() -> None:
    found = count(llama())
    assert found == Parameters(
        embedding=800,
        attention=2 * (8 * 8 + 2 * 8 * 4 + 8 * 8),
        dense_mlp=2 * 3 * 8 * 16,
        experts=0,
        shared_experts=0,
        router=0,
        norms=2 * 2 * 8 + 8,
        head=800,
        active=found.total,
    )


def test_config_overrides_the_family() -> None:
    base = count(llama()).total
    assert count(llama(tie_word_embeddings=True)).total == base - 800
    assert count(llama(attention_bias=True)).total == base + 2 * (8 + 4 + 4 + 8)
    assert count(llama(mlp_bias=True)).total == base + 2 * (16 + 16 + 8)


@pytest.mark.parametrize("missing", ["vocab_size", "intermediate_size"])
def test_a_missing_decisive_field_is_unknown(missing: str) -> None:
    config = llama()
    spec = import_config(config, name="m")
    del config[missing]
    assert count_parameters(config, spec) is None


@pytest.mark.parametrize("bad", [True, -3, "16", 1.5, 10**12, [1.5]])
def test_a_field_of_the_wrong_type_is_refused(bad: Any) -> None:
    spec = import_config(llama(), name="m")
    with pytest.raises(InputError, match=r"m: intermediate_size: found .*, expected a whole number"):
        count_parameters(llama(intermediate_size=bad), spec)


@pytest.mark.parametrize("unset", [-1, [16]])
def test_a_field_that_is_unset_or_a_list_is_unknown(unset: Any) -> None:
    spec = import_config(llama(), name="m")
    assert count_parameters(llama(intermediate_size=unset), spec) is None


def test_experts_without_a_number_are_unknown() -> None:
    # dots.llm1's collected file lost n_routed_experts: counted as dense it would be 13.7B of its 142B.
    config = published("rednote-hilab--dots.llm1.base")
    assert count_parameters(config, import_config(config, name="dots")) is None


def test_an_unknown_family_is_counted_as_llama_and_said_so() -> None:
    block = FullAttention(query_heads=2, kv_heads=1, head_dim=4)
    spec = ModelSpec(
        id="x", model_type="nobody-knows", dtype="bfloat16", blocks={"a": block}, layers=("2 x a",),
        provenance=Provenance("by hand", "assumed"),
    )  # fmt: skip
    config = llama(model_type="nobody-knows")
    assert count_parameters(config, spec) == count(llama())
    assert "nobody-knows" in parameter_assumptions(config, spec)[0]
    assert parameter_assumptions(llama(), import_config(llama(), name="m")) == ()


def test_rules_are_valid_and_like_copies() -> None:
    table = family_rules()
    assert table["deepseek_v32"] == table["deepseek_v3"]
    assert rules_for("nothing", None) == FamilyRules(known=False)
    assert RULES_PATH.is_file()


@given(layers=st.integers(1, 40), experts=st.integers(2, 64), extra=st.integers(1, 8), width=st.integers(1, 64))
def test_active_never_exceeds_total_and_grows_with_top_k(layers: int, experts: int, extra: int, width: int) -> None:
    top = min(extra, experts - 1)
    config = llama(
        model_type="qwen3_moe", num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=top,
        moe_intermediate_size=width, decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip
    fewer, more = count(config), count({**config, "num_experts_per_tok": top + 1})
    assert fewer.total == more.total >= more.active
    assert more.active - fewer.active == layers * 3 * 8 * width
