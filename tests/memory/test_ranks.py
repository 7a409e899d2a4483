"""Weights of a rank: what engines print, arithmetic by hand, and the laws of sharding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.memory.mixers import mixers_of
from kvplan.memory.ranks import RankWeights, rank_weights
from kvplan.spec.layers import FullAttention, LatentAttention
from kvplan.spec.model import ModelSpec, Parameters, Provenance, WeightQuantization
from kvplan.spec.resolve import resolve_model

GIB = 2**30
FP8 = WeightQuantization("fp8", bits=8, block_shape=(128, 128))
INT8 = WeightQuantization("compressed-tensors", bits=8, kept=("lm_head",))


@dataclass(frozen=True)
class Ranks:
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False


def weights(spec: ModelSpec, ranks: Ranks, **options: Any) -> RankWeights:
    found = rank_weights(spec, ranks, **options)
    assert found is not None
    return found


def parts(found: RankWeights, stage: int = 0) -> dict[str, int]:
    return {part.name: part.bytes for part in found.stages[stage]}


def toy(tensor_heads: int = 8, kv_heads: int = 2, **changes: Any) -> ModelSpec:
    """Hidden 64, head_dim 16: attention of a layer = 64 x 16 x (2 x query heads + 2 x KV heads) parameters."""
    attention = 4 * 64 * 16 * 2 * (tensor_heads + kv_heads)
    spec = ModelSpec(
        id="toy", model_type="llama", dtype="bfloat16", layers=("4 x a",), provenance=Provenance("by hand", "assumed"),
        blocks={"a": FullAttention(query_heads=tensor_heads, kv_heads=kv_heads, head_dim=16)}, hidden_size=64,
        vocab_size=1000, tied_embeddings=False,
        parameters=Parameters(
            embedding=64000, attention=attention, dense_mlp=4 * 3 * 64 * 256, experts=0, shared_experts=0, router=0,
            norms=9 * 64, head=64000, active=0,
        ),
    )  # fmt: skip
    return replace(spec, **changes)


# "model weights take" of start-up logs, GiB a rank: vllm-project/vllm 10517 (14.9888), pull 10511 (7.48), the llm-d
# benchmark of vLLM 0.11 on H100, vllm-project/vllm 23383 and 15280, other threads of tests/evidence/budgets.json.
PRINTED = [
    ("llama-3.1-8b", None, Ranks(), 14.9888, 0.0001),
    ("llama-3.1-8b", None, Ranks(tensor=2), 7.48, 0.005),
    ("llama-3.3-70b-instruct", INT8, Ranks(tensor=2), 33.88, 0.001),
    ("qwen3-32b", None, Ranks(tensor=2), 30.59, 0.003),
    ("minimax-m2.5", None, Ranks(tensor=4), 53.75, 0.002),
    ("deepseek-r1", None, Ranks(tensor=8), 79.41, 0.002),
    ("qwen3-235b-a22b", FP8, Ranks(tensor=4, data=2, expert=True), 27.72, 0.04),
    ("llama-3.2-11b-vision", None, Ranks(), 19.86, 0.003),
]


@pytest.mark.parametrize(("model", "quantization", "ranks", "printed", "within"), PRINTED)
def test_printed_weights(model: str, quantization: Any, ranks: Ranks, printed: float, within: float) -> None:
    spec = resolve_model(model).spec
    if quantization is not None:
        spec = replace(spec, quantization=quantization)
    assert weights(spec, ranks).stage_bytes[0] / GIB == pytest.approx(printed, rel=within)


def test_kv_heads_are_copied_once_ranks_exceed_heads() -> None:
    four, eight = parts(weights(toy(), Ranks(tensor=4))), parts(weights(toy(), Ranks(tensor=8)))
    # By hand, 4 layers, 2 B: queries and output 8 heads over the ranks, one whole KV head of 64 x 16 x 2 on each.
    assert four["attention"] == 2 * 4 * 64 * 16 * (2 * 8 // 4 + 2)
    assert eight["attention"] == 2 * 4 * 64 * 16 * (2 * 8 // 8 + 2)
    assert four["dense_mlp"] == 2 * 4 * 3 * 64 * 256 // 4


def test_vocabulary_is_padded_to_64_and_to_the_ranks() -> None:
    # 1,000 rows make 1,024; over 128 ranks that is 8 rows each, 64 values of 2 bytes.
    assert parts(weights(toy(), Ranks(tensor=2)))["embedding"] == 512 * 64 * 2
    assert parts(weights(toy(), Ranks(tensor=128)))["head"] == 8 * 64 * 2


def test_stages_hold_the_ends_they_run() -> None:
    first, last = weights(toy(), Ranks(pipeline=2)).stages
    assert {"embedding"} == {part.name for part in first} - {part.name for part in last}
    assert {"head"} == {part.name for part in last} - {part.name for part in first}
    tied = replace(toy(), tied_embeddings=True, parameters=replace(toy().parameters or Parameters(*[0] * 9), head=0))
    assert "embedding" in parts(weights(tied, Ranks(pipeline=2)), stage=1)


def test_uneven_stages_and_a_partition_that_is_not_the_layers() -> None:
    found = weights(toy(), Ranks(pipeline=2), partition=(1, 3))
    assert found.layers == (1, 3)
    assert parts(found, 1)["attention"] == 3 * parts(found, 0)["attention"]
    with pytest.raises(InputError, match="pipeline partition: found \\(1, 2\\), expected 2 counts that sum to the 4"):
        weights(toy(), Ranks(pipeline=2), partition=(1, 2))


def test_latent_down_projections_stay_whole() -> None:
    """DeepSeek-V3: q_lora_rank 1,536 follows from the count (deepseek-ai/DeepSeek-V3 config.json)."""
    mixer = mixers_of(resolve_model("deepseek-r1").spec)
    latent = next(mixer[name] for name in mixer)
    norms = 1536 + 512
    assert latent.replicated == pytest.approx(7168 * (1536 + 512 + 64), rel=1e-3)
    assert latent.total == pytest.approx(187_107_328 - norms, rel=1e-3)


def test_expert_parallel_and_sliced_experts_weigh_the_same() -> None:
    spec = resolve_model("qwen3-235b-a22b").spec
    whole, sliced = Ranks(tensor=4, data=2, expert=True), Ranks(tensor=4, data=2)
    assert parts(weights(spec, whole))["experts"] == parts(weights(spec, sliced))["experts"]
    assert parts(weights(spec, whole))["router"] == spec.parameters.router * 2  # type: ignore[union-attr]


def test_a_tower_is_what_was_published_beyond_the_count_and_its_rounding() -> None:
    assert "vision" not in parts(weights(resolve_model("qwen3-0.6b").spec, Ranks()))
    seen = weights(resolve_model("llama-3.2-11b-vision").spec, Ranks())
    assert parts(seen)["vision"] == (10_670_000_000 - 9_775_157_248) * 2
    assert any("vision or audio tower" in sentence for sentence in seen.assumptions)
    assert "vision" not in parts(weights(resolve_model("llama-3.2-11b-vision").spec, Ranks(), text_only=True))


def test_unknown_weights_are_none() -> None:
    assert rank_weights(toy(parameters=None, published_parameters_b=None), Ranks()) is None


@given(
    heads=st.integers(1, 12), kv=st.integers(1, 4), tensor=st.integers(1, 16), stages=st.integers(1, 4),
    data=st.integers(1, 4), latent=st.booleans(),
)  # fmt: skip
def test_all_ranks_together_hold_at_least_the_model(
    heads: int, kv: int, tensor: int, stages: int, data: int, latent: bool
) -> None:
    spec = toy(heads * kv, kv)
    if latent:
        block = LatentAttention(heads, 32, 8, nope_head_dim=16, v_head_dim=16)
        spec = replace(spec, blocks={"a": block})
    found = weights(spec, Ranks(tensor, stages, data))
    assert sum(found.layers) == 4
    total = 2 * spec.parameters.total  # type: ignore[union-attr]
    assert sum(found.stage_bytes) * tensor >= total
    alone = weights(spec, Ranks()).stage_bytes[0]
    assert all(size <= alone + 2 * 64 * 64 for size in found.stage_bytes)
