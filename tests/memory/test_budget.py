"""Terms and identities: printed peaks, counts known from engines, and the laws of every budget."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.base import Parallelism
from kvplan.engines.budgets import budget_for, total_bytes
from kvplan.engines.sglang.budget import static_budget
from kvplan.errors import InputError
from kvplan.hardware.accelerators import find
from kvplan.memory.activation import layer_bytes, widths
from kvplan.memory.budget import IDENTITIES, Budget, captured_batches
from kvplan.memory.feasible import feasible_share, overrun
from kvplan.memory.terms import overheads
from kvplan.spec.resolve import resolve_model

GIB, MIB = 2**30, 2**20


def ask(engine: str, model: str, device: str, version: str | None = None, tensor: int = 1, **flags: Any) -> Budget:
    visible = flags.pop("visible", None)
    parallel = Parallelism(tensor, flags.pop("pipeline", 1))
    return budget_for(engine, version, resolve_model(model), find(device), parallel, flags, visible=visible)


def term(found: Budget, name: str, stage: int = 0) -> int:
    return next((term.nominal for term in found.stages[stage].terms if term.name == name), 0)


# Activation peaks that logs print, GiB: the llm-d benchmark of vLLM 0.11 on H100 (8,192 tokens, 1,024 rows),
# vllm-project/vllm pull 10511, issues 10517 (peak less weights), 13882 and 23383.
PEAKS = [
    ("llama-3.1-8b", "h100", "0.11.0", 1, {}, 4.76),
    ("llama-3.3-70b-instruct", "h100", "0.11.0", 2, {}, 4.84),
    ("qwen3-32b", "h100", "0.11.0", 2, {}, 5.64),
    ("gpt-oss-120b", "h100", "0.11.0", 1, {}, 7.38),
    ("llama-3.1-8b", "h100", "0.6.5", 2, {"max_model_len": 8192}, 1.26),
    ("llama-3.1-8b", "rtx-3090", "0.6.4", 1, {"max_model_len": 20000}, 17.06 - 14.99),
    ("llama-3.1-8b", "rtx-3090", "0.6.4", 1, {"max_model_len": 29000}, 17.98 - 14.99),
    ("llama-3.1-8b", "rtx-3090", "0.6.4", 1, {"max_model_len": 35000}, 15.05 - 14.99),
    ("qwen2.5-7b", "rtx-3090", "0.7.3", 1, {"max_model_len": 4096}, 1.42),
    ("qwen3-235b-a22b", "l40s", "0.10.2", 4, {"max_model_len": 32768}, 1.40),
]


@pytest.mark.parametrize(("model", "device", "version", "tensor", "flags", "printed"), PEAKS)
def test_printed_activation_peaks(
    model: str, device: str, version: str, tensor: int, flags: dict[str, Any], printed: float
) -> None:
    found = ask("vllm", model, device, version, tensor, **flags)
    assert term(found, "activation peak") / GIB == pytest.approx(printed, rel=0.02, abs=0.015)


def test_tokens_cost_what_a_small_card_shows() -> None:
    """Qwen2-1.5B on 4 GB, vLLM 0.28: 2,610, 2,672, 2,795 and 3,041 MiB besides the cache at 1k, 2k, 4k and 8k."""
    size = widths(resolve_model("qwen2-1.5b").spec)
    assert size is not None
    values = overheads()["vllm"]["rules"]["layer_values"][0]["value"]
    used = [layer_bytes(size, tokens, Parallelism(), values, 32768) / MIB for tokens in (1024, 2048, 4096, 8192)]
    steps = [later - sooner for sooner, later in pairwise(used)]
    assert steps == pytest.approx([62, 123, 246], rel=0.02)


def test_widths_follow_from_the_counts() -> None:
    """Published: Qwen3-235B-A22B has 128 experts of width 1,536, 8 a token; Llama-3.1-8B an MLP of 14,336."""
    sparse, dense = widths(resolve_model("qwen3-235b-a22b").spec), widths(resolve_model("llama-3.1-8b").spec)
    assert sparse is not None and dense is not None
    assert (round(sparse.expert), round(sparse.routed, 3)) == (1536, 8.0)
    assert dense.intermediate == 14336
    assert widths(replace(resolve_model("llama-3.1-8b").spec, parameters=None)) is None


@pytest.mark.parametrize(
    ("version", "sequences", "count"),
    # V0 captured 35 sizes up to 256; V1 printed 67/67; from 0.12 on 51/51. Ten sequences: 1, 2, 4, 8 and 16.
    [("0.5.5", 256, 35), ("0.11.0", 1024, 67), ("0.12.0", 256, 51), ("0.32.0", 1024, 51), ("0.19.0", 10, 5)],
)
def test_captured_batches(version: str, sequences: int, count: int) -> None:
    from kvplan.engines.versions import rules_at

    rules = rules_at("vllm", overheads()["vllm"], version)
    assert captured_batches(rules["graph_sizes"], sequences) == count


def test_only_the_last_stage_samples_and_only_the_first_embeds() -> None:
    found = ask("vllm", "llama-3.1-70b", "h100", "0.11.0", pipeline=2, max_model_len=8192)
    assert term(found, "activation peak", 0) < term(found, "activation peak", 1)
    assert len(found.available_bytes) == 2


def test_visible_memory_of_devices() -> None:
    """What CUDA showed: H100 79.18 to 79.22 GiB, RTX 3090 23.58, L40S 44.42, A10 21.99, MI300X all 191.98."""
    for device, shown in (("h100", 79.2), ("rtx-3090", 23.58), ("l40s", 44.42), ("a10", 21.99), ("mi300x", 191.98)):
        assert total_bytes(find(device)) / GIB == pytest.approx(shown, abs=0.2)


def test_a_release_changes_default_graphs_and_sampling() -> None:
    old, new = ask("vllm", "qwen3-32b", "h100", "0.19.0", 2), ask("vllm", "qwen3-32b", "h100", "0.32.0", 2)
    assert (old.share, new.share) == (0.9, 0.92)
    assert term(old, "CUDA graphs") == 0 < term(new, "CUDA graphs")
    assert [item.name for item in old.outside] == ["CUDA context", "CUDA graphs"]
    assert term(ask("vllm", "qwen3-32b", "h100", "0.32.0", 2, enforce_eager=True), "CUDA graphs") == 0
    assert term(new, "activation peak") < term(ask("vllm", "qwen3-32b", "h100", "0.11.0", 2), "activation peak")


def test_sglang_is_its_own_identity() -> None:
    found = ask("sglang", "llama-3.1-8b", "h200", "0.4.6", mem_fraction_static=0.8718)
    before = found.total_bytes - term(found, "process")
    after = before - term(found, "weights")
    assert found.available_bytes[0] == static_budget(before, after, 0.8718)
    # sgl-project/sglang issue 6753 prints 139.2 GiB before, 124.23 after loading, and 106.36 of K and V.
    assert before / GIB == pytest.approx(139.2, abs=0.1)
    assert found.available_bytes[0] / GIB == pytest.approx(106.4, abs=0.2)


def test_shares_of_the_rest() -> None:
    """TensorRT-LLM and LMDeploy share what is left: by hand from the terms."""
    for engine, flag in (("tensorrt-llm", "free_gpu_memory_fraction"), ("lmdeploy", "cache_max_entry_count")):
        found = ask(engine, "llama-3.1-8b", "a100", **{flag: 0.5})
        rest = found.total_bytes - sum(item.nominal for item in found.stages[0].terms if item.name != "kept free")
        assert found.available_bytes[0] == int(rest * Fraction(1, 2))
    logits = ask("lmdeploy", "llama-3.1-8b", "a100", max_batch_size=128)
    assert term(logits, "logits") == 2 * 128256 * (8192 + 2 * 128)


def test_llama_cpp_leaves_a_gibibyte_and_its_compute_buffer() -> None:
    """Llama-3.1-8B prints 294.5 MiB of compute buffer at 4,096 tokens and 418.5 at 131,072."""
    for length, printed in ((4096, 294.5), (131072, 418.5)):
        found = ask("llama.cpp", "llama-3.1-8b", "rtx-3090", ctx_size=length)
        assert term(found, "margin") == GIB
        assert term(found, "compute buffer") / MIB == pytest.approx(printed, rel=0.1)
    assert found.share is None


def test_the_feasible_interval() -> None:
    """By hand: 0.9 of 80 GiB leaves x; one needed GiB more takes 1/80 more of the flag."""
    found = ask("vllm", "llama-3.1-8b", "h100", "0.11.0", gpu_memory_utilization=0.9, visible=80 * GIB)
    interval = feasible_share(found, found.available_bytes[0])
    assert interval.least == 0.9
    more = feasible_share(found, found.available_bytes[0] + 4 * GIB)
    assert more.least == pytest.approx(0.95)
    assert interval.most is not None and 0.9 < interval.most < 1
    assert (
        "below it one request doesn't fit, above it there is no room for the CUDA context and CUDA graphs"
        in interval.says
    )
    assert feasible_share(found, 80 * GIB).least is None
    assert "no value works" in feasible_share(found, 80 * GIB).says


def test_what_cannot_be_budgeted_is_said() -> None:
    with pytest.raises(InputError, match="--engine: found transformers, which sets no cache budget"):
        ask("transformers", "llama-3.1-8b", "h100")
    with pytest.raises(InputError, match=r"gpu.memory.utilization: found 1.5"):
        ask("vllm", "llama-3.1-8b", "h100", gpu_memory_utilization=1.5)
    bare = replace(resolve_model("llama-3.1-8b").spec, parameters=None, published_parameters_b=None)
    with pytest.raises(InputError, match=r"found no parameter count for llama-3\.1-8b"):
        budget_for("vllm", None, replace(resolve_model("llama-3.1-8b"), spec=bare), find("h100"), Parallelism(), {})
    strange = ask("vllm", "llama-3.1-8b", "h100", "0.99")
    assert any("not a version kvplan knows" in sentence for sentence in strange.warnings)


@settings(deadline=None, max_examples=60)
@given(
    engine=st.sampled_from(sorted(IDENTITIES)),
    model=st.sampled_from(["llama-3.1-8b", "qwen3-235b-a22b", "deepseek-r1", "qwen3.5-27b", "gpt-oss-120b"]),
    device=st.sampled_from(["rtx-3090", "h100", "b200", "dgx-spark", "mi300x"]),
    tensor=st.sampled_from([1, 2, 8]), shares=st.tuples(st.integers(5, 99), st.integers(5, 99)),
)  # fmt: skip
def test_terms_sum_to_the_start_and_more_share_is_more_cache(
    engine: str, model: str, device: str, tensor: int, shares: tuple[int, int]
) -> None:
    flags = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static", "lmdeploy": "cache_max_entry_count",
             "tensorrt-llm": "free_gpu_memory_fraction"}  # fmt: skip
    flag, found = flags.get(engine), []
    for share in sorted(shares):
        budget = ask(engine, model, device, None, tensor, max_model_len=4096, **({flag: share / 100} if flag else {}))
        for stage in budget.stages:
            assert sum(item.nominal for item in stage.terms) + stage.nominal == stage.start_bytes
            assert sum(item.high for item in stage.terms) + stage.low == stage.start_bytes
            assert stage.low <= stage.nominal <= stage.high <= budget.total_bytes
            assert all(0 <= item.low <= item.nominal <= item.high for item in stage.terms)
        found.append(budget.stages[0].nominal)
    assert found[0] <= found[1]


def test_a_flag_beyond_what_lies_outside_it_is_said() -> None:
    """vLLM compares its share with the free memory, and a context takes some of it: 1.0 never starts."""
    told = overrun(ask("vllm", "llama-3.1-8b", "h100", "0.11.0", gpu_memory_utilization=1.0, visible=80 * GIB))
    assert told is not None and "at 1.00 leaves no room for the CUDA context" in told
    assert overrun(ask("vllm", "llama-3.1-8b", "h100", "0.11.0", gpu_memory_utilization=0.9, visible=80 * GIB)) is None


def test_the_default_of_sglang_lies_in_its_own_interval() -> None:
    found = ask("sglang", "llama-3.1-8b", "h100", "0.5.23")
    interval = feasible_share(found, 4 * GIB)
    assert interval.most is not None and interval.least is not None and found.share is not None
    assert interval.least < found.share <= interval.most < 0.95
    assert overrun(found) is None
    assert overrun(ask("sglang", "llama-3.1-8b", "h100", "0.5.23", mem_fraction_static=1.0)) is not None
