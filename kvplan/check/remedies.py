"""The smallest change with which a failed sentence would hold, found by asking the engine's plan again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvplan.check.figures import Figures
from kvplan.check.metrics import FITS, Condition, spelt
from kvplan.engines.native import EIGHT_BIT, native_flags
from kvplan.errors import InputError
from kvplan.memory.feasible import feasible_share
from kvplan.record import record
from kvplan.units import tokens

STEP = 16
MOST_SHARE = 0.95
_SIXTEEN_BIT = ("auto", "none", "bfloat16", "float16", "bf16", "f16", "fp16", "0")
_WITHOUT_RANKS = ("llama.cpp", "ik_llama.cpp", "ollama", "transformers")


@record
class Remedy:
    """One change that makes the sentence hold: the engine's flag, and what to write, in words."""

    flag: str
    text: str


def smallest_change(figures: Figures, condition: Condition) -> Remedy | None:
    """The first change, cheapest first, that alone makes `condition` hold; None where none does or none is known.

    Flags that the launch command sets are tried before others: a value that someone wrote is the likeliest cause.
    """
    metric = condition.metric
    assert metric is not None
    if metric.source == "scenario":
        return _more_replicas(figures, condition)
    if metric.source == "model":
        return _smaller_cache(figures, condition)
    if figures.subject.engine is None or (metric.unit == "truth" and not condition.value):
        return None
    if missing := figures.missing_gpus():
        ranks, gpus = figures.subject.ranks, figures.subject.gpus
        flag = _native(figures, "tensor_parallel_size")[0]
        return Remedy(
            flag, f"give it {missing} more GPUs, or set the parallel sizes to {gpus} ranks instead of {ranks}"
        )

    def holds(**changed: Any) -> bool:
        try:
            return condition.holds(figures.value(metric, condition.at, **changed))
        except InputError:  # the engine or the checkpoint doesn't take this change
            return False

    candidates = [*_candidates(figures, condition, holds)]
    lines = figures.subject.lines
    written = [remedy for remedy in candidates if remedy.flag in lines]
    return next(iter([*written, *candidates]), None)


def _native(figures: Figures, option: str) -> tuple[str, ...]:
    assert figures.subject.engine is not None
    return native_flags(figures.subject.engine.partition("@")[0], option)


def _candidates(figures: Figures, condition: Condition, holds: Callable[..., bool]) -> Iterator[Remedy]:
    """Changes that work, in the order of what they cost."""
    engine = figures.question.engine.name
    predicted = figures.subject.placed.asked.available_memory is None
    if predicted and (share := _share(figures, holds)) is not None:
        yield _flagged(figures, "gpu_memory_utilization", f"{share:.2f}")
    answer, _ = figures.plan()
    batched = next((item.value for item in answer.settings if item.name == "max_num_batched_tokens"), None)
    if isinstance(batched, int) and batched > 2048 and holds(max_num_batched_tokens=2048):
        yield _flagged(figures, "max_num_batched_tokens", "2048")
    asked = str(figures.subject.settings.get(_native(figures, "kv_cache_dtype")[0], "auto")).lower()
    dtype = EIGHT_BIT.get(engine, "fp8")
    if asked in _SIXTEEN_BIT and holds(kv_cache_dtype=dtype):
        yield _flagged(figures, "kv_cache_dtype", dtype)
    if (length := _length(figures, condition, holds)) is not None:
        yield _flagged(figures, "max_model_len", str(length), f" ({tokens(length)} tokens)")
    if predicted and engine not in _WITHOUT_RANKS:
        size = figures.question.parallel.tensor
        for ranks in (2 * size, 4 * size, 8 * size):
            if holds(tensor_parallel_size=ranks):
                yield _flagged(figures, "tensor_parallel_size", str(ranks), f", {ranks // size}x the GPUs")
                break


def _flagged(figures: Figures, option: str, value: str, more: str = "") -> Remedy:
    names = _native(figures, option)
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name in names)
    return Remedy(names[0], f"{words}{more}")


def _share(figures: Figures, holds: Callable[..., bool]) -> float | None:
    """The least memory share above the present one with which the sentence holds."""
    answer, budget = figures.plan()
    if budget is None or budget.share is None:
        return None
    most = feasible_share(budget, answer.needed_bytes_one_request).most or MOST_SHARE
    low, high = round(100 * budget.share), round(100 * min(most, MOST_SHARE))
    if high <= low or not holds(gpu_memory_utilization=high / 100):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(gpu_memory_utilization=middle / 100) else (middle, high)
    return high / 100


def _length(figures: Figures, condition: Condition, holds: Callable[..., bool]) -> int | None:
    """The greatest length below the present one with which the sentence holds, a multiple of 16 tokens."""
    metric = condition.metric
    if metric is None or metric.name not in (FITS, "max_concurrency", "capacity_tokens") or condition.at is not None:
        return None
    answer, _ = figures.plan()
    if metric.name == FITS and answer.refused is not None and not answer.refused.estimated_max_model_len:
        return None
    low, high = 16, -(-answer.max_model_len // STEP)
    if high <= low or not holds(max_model_len=low * STEP):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(max_model_len=middle * STEP) else (low, middle)
    return low * STEP


def _smaller_cache(figures: Figures, condition: Condition) -> Remedy | None:
    metric = condition.metric
    assert metric is not None
    if metric.name == "weights_gib":
        weights = figures.value(metric)
        for name, bits in (("an 8-bit", 8), ("a 4-bit", 4)):
            if condition.holds(weights * bits / 16):
                return Remedy("model", f"{name} checkpoint, about {spelt(metric, weights * bits // 16)}")
        return None
    for dtype in ("fp8", "int4"):
        try:
            if figures.subject.engine is not None and figures.subject.gpu is not None:
                figures.plan(kv_cache_dtype=dtype)  # raises where the engine has no such cache
            if condition.holds(figures.value(metric, condition.at, kv_cache_dtype=dtype)):
                flag = "kv_cache_dtype" if figures.subject.engine is None else _native(figures, "kv_cache_dtype")[0]
                return Remedy(flag, f"a KV cache in {dtype} (--{flag.replace('_', '-')})")
        except InputError:
            continue
    return None


def _more_replicas(figures: Figures, condition: Condition) -> Remedy | None:
    from kvplan.check.figures import measured

    metric = condition.metric
    assert metric is not None
    for replicas in (2, 4):
        try:
            found = measured(figures.scenario(replicas=replicas), metric.name)
        except InputError:
            return None
        if condition.holds(found):
            return Remedy("replicas", f"{replicas} replicas, with which it is {spelt(metric, found)}")
    return None
