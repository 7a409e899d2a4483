"""Step times against measured kernel tables and published anchors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.errors import InputError
from kvplan.hardware.accelerators import all_accelerators, find
from kvplan.performance.factors import all_factors, find_factors
from kvplan.performance.reads import TICKS, reads_of
from kvplan.performance.step import ModelStep, model_step
from kvplan.simulator.pace import span, steps_until
from kvplan.spec.resolve import resolve_model


def step(gpu: str = "h100", kind: str = "calibrated", dtype: str = "auto", model: str = "llama-3.1-8b") -> ModelStep:
    spec, device = resolve_model(model).spec, find(gpu)
    plan = plan_cache(spec, resolve_precision(dtype, model_dtype=spec.dtype))
    return model_step(plan, device, find_factors(device.slug, kind))


def attention_us(model: ModelStep, batch: int, context: int) -> float:
    """Decode attention of one of 32 layers."""
    reads = max(model.least(batch), batch * model.reads.ticks(context))
    return (model.decode_start + reads) / TICKS / 32 * 1e6


# aiconfigurator-core 0.12.0 kernel tables (vLLM 0.24.0): 64 sequences of 4k, us a layer, bf16 and fp8 KV.
@pytest.mark.parametrize(
    ("gpu", "bf16", "fp8"), [("h100", 353.6, 210.4), ("h200", 270.9, 193.0), ("b200", 158.7, 86.7)]
)
def test_decode_attention_is_near_the_measured_kernels(gpu: str, bf16: float, fp8: float) -> None:
    plain, halved = attention_us(step(gpu), 64, 4096), attention_us(step(gpu, dtype="fp8"), 64, 4096)
    assert plain == pytest.approx(bf16, rel=0.15)
    assert halved == pytest.approx(fp8, rel=0.15)
    assert 1.3 < plain / halved < 2.1


def test_fp8_halves_the_bytes_and_not_the_time() -> None:
    for gpu in ("h100", "h200"):
        gain = attention_us(step(gpu), 64, 4096) / attention_us(step(gpu, dtype="fp8"), 64, 4096)
        assert gain < 1.9


def test_many_short_sequences_hit_the_floor() -> None:
    """2,048 sequences of one token take 443 us on H100, not the 15 us that bytes alone say."""
    assert attention_us(step(), 2048, 1) == pytest.approx(443, rel=0.05)


def decode_ms(model: ModelStep, batch: int, context: int) -> float:
    reads = max(model.least(batch), batch * model.reads.ticks(context))
    return (model.fixed(batch, batch, batch) + reads) / TICKS * 1e3


def test_one_sequence_takes_the_weights_over_the_bandwidth() -> None:
    """16.06 GB less the embedding over 3.35 TB/s: 4.48 ms on a roofline; 6.19 ms is tabled for the kernels."""
    assert decode_ms(step(kind="roofline"), 1, 1) == pytest.approx((16.06 - 1.05) / 3350 * 1e3, rel=0.01)
    calibrated = decode_ms(step(), 1, 1) - find_factors("h100-sxm-80gb").host * 1e3
    assert calibrated == pytest.approx(6.19, rel=0.10)


def test_the_roofline_is_about_1_7_times_too_fast() -> None:
    ratio = decode_ms(step(), 50, 1024) / decode_ms(step(kind="roofline"), 50, 1024)
    assert 1.4 < ratio < 1.9


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "qwen3-next-80b-a3b"])
def test_reads_follow_the_cache_plan(model: str) -> None:
    """A second a byte and free arithmetic: the line gives the plan's own read bytes (state written back too)."""
    spec = resolve_model(model).spec
    plan = plan_cache(spec, resolve_precision(model_dtype=spec.dtype))
    line = reads_of(plan, 1.0, 0.0)
    for n in (1, 100, 1024, 4096, 5000, 131072):
        assert line.ticks(n) == (plan.read_bytes(n) + plan.state_bytes) * TICKS


@given(
    st.integers(1, 10**6), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(0, 500), st.integers(1, 400),
    st.integers(1, 10**9),
)  # fmt: skip
def test_span_is_the_sum_of_its_steps(base, least, reads, slope, count, ticks) -> None:
    steps = [base + max(least, reads + k * slope) for k in range(count)]
    assert span(base, least, reads, slope, count) == sum(steps)
    few = steps_until(base, least, reads, slope, ticks)
    assert span(base, least, reads, slope, few) >= ticks
    assert few == 1 or span(base, least, reads, slope, few - 1) < ticks


def test_experts_load_more_weights_with_more_tokens() -> None:
    model = step("h200", model="gpt-oss-20b")
    assert model.fixed(64, 64, 64) > 2 * model.fixed(1, 1, 1)


def test_every_set_of_factors_is_sound_and_sourced() -> None:
    known = {device.slug for device in all_accelerators()}
    for devices, factors in all_factors().values():
        assert all(device in known for device in devices if device != "any")
        assert 0 < factors.gemm_mbu <= 1
        assert all(0 < share <= 1 for _, share in (*factors.gemm_mfu, *factors.prefill_mfu))
        assert factors.source


def test_unknown_step_model_is_refused() -> None:
    with pytest.raises(InputError, match="expected calibrated or roofline"):
        find_factors("h100-sxm-80gb", "exact")
