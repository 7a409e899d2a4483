"""The smallest change with which a failed sentence would hold, found by asking the engine's plan again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.check.figures import Figures
from kvplan.check.metrics import FITS, Condition, spelt
from kvplan.engines.native import EIGHT_BIT, native_flags
from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator, all_accelerators
from kvplan.memory.feasible import feasible_share
from kvplan.record import record
from kvplan.serving import Question, plan
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

    tries = _tries(figures, condition, holds)
    lines = figures.subject.lines
    written = [attempt for attempt in tries if _native(figures, attempt[0])[0] in lines]
    others = [attempt for attempt in tries if attempt not in written]
    return next((remedy for _, attempt in (*written, *others) if (remedy := attempt()) is not None), None)


def what_would_start(figures: Figures) -> str:
    """Where weights leave no room: the smallest larger GPU of the kind and the checkpoint that would do, in words."""
    answer, budget = figures.plan()
    if budget is None or answer.refused is None:
        return ""
    found: list[str] = []
    device, needed = figures.question.device, answer.refused.needed_bytes
    for candidate in sorted(all_accelerators(), key=lambda one: one.memory_bytes):
        same = candidate.vendor_class.split()[0] == device.vendor_class.split()[0]
        same = same and "unified" not in candidate.memory_type
        if same and candidate.memory_bytes > device.memory_bytes and _starts_on(figures, candidate):
            found.append(f"on {candidate.name}")
            break
    weights = next((term.nominal for term in budget.poorest.terms if term.name == "weights"), 0)
    for name, share in (("an 8-bit", 2), ("a 4-bit", 4)):
        if figures.loaded.spec.quantization is None and budget.poorest.nominal + weights - weights // share >= needed:
            found.append(f"with {name} checkpoint")
            break
    return f"it would also start {' or '.join(found)}" if found else ""


def _starts_on(figures: Figures, device: Accelerator) -> bool:
    asked = figures.question
    other = Question(
        asked.loaded, asked.engine, asked.version, device, asked.parallel, asked.settings, asked.available_bytes
    )
    try:
        answer, _ = plan(other)
    except InputError:
        return False
    return answer.refused is None


def _native(figures: Figures, option: str) -> tuple[str, ...]:
    assert figures.subject.engine is not None
    return native_flags(figures.subject.engine.partition("@")[0], option)


def _tries(
    figures: Figures, condition: Condition, holds: Callable[..., bool]
) -> list[tuple[str, Callable[[], Remedy | None]]]:
    """What may be changed, in the order of what it costs: kvplan's option, and an attempt that gives None in vain."""
    answer, _ = figures.plan()
    engine = answer.name

    def share() -> Remedy | None:
        found = _share(figures, holds)
        return None if found is None else _flagged(figures, "gpu_memory_utilization", f"{found:.2f}")

    def batched() -> Remedy | None:
        have = next((item.value for item in answer.settings if item.name == "max_num_batched_tokens"), None)
        works = isinstance(have, int) and have > 2048 and holds(max_num_batched_tokens=2048)
        return _flagged(figures, "max_num_batched_tokens", "2048") if works else None

    def dtype() -> Remedy | None:
        asked = str(figures.subject.settings.get(_native(figures, "kv_cache_dtype")[0], "auto")).lower()
        narrow = EIGHT_BIT.get(engine, "fp8")
        works = asked in _SIXTEEN_BIT and holds(kv_cache_dtype=narrow)
        return _flagged(figures, "kv_cache_dtype", narrow) if works else None

    def length() -> Remedy | None:
        found = _length(figures, condition, holds)
        return None if found is None else _flagged(figures, "max_model_len", str(found), f" ({tokens(found)} tokens)")

    def ranks() -> Remedy | None:
        size = figures.question.parallel.tensor
        fold = next((fold for fold in (2, 4, 8) if holds(tensor_parallel_size=fold * size)), None)
        words = f", {fold}x the GPUs"
        return None if fold is None else _flagged(figures, "tensor_parallel_size", str(fold * size), words)

    tries = [("max_num_batched_tokens", batched), ("kv_cache_dtype", dtype), ("max_model_len", length)]
    if figures.subject.placed.asked.available_memory is not None:
        return tries
    more = [] if engine in _WITHOUT_RANKS else [("tensor_parallel_size", ranks)]
    return [("gpu_memory_utilization", share), *tries, *more]


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
