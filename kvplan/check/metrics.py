"""What an expectation can be about, and the sentences that say it: `max_concurrency >= 8 at 32k`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.units import GIB, gib, parse_bytes, parse_seconds, parse_tokens, seconds, tokens

Source = Literal["engine", "model", "scenario"]
Unit = Literal["truth", "number", "tokens", "bytes", "seconds"]

FITS = "fits"
MAX_TOLERANCE = 100.0


@record
class Metric:
    """One figure: its unit, whether more of it is better, what must be known for it, and what it is."""

    name: str
    unit: Unit
    more_is_better: bool
    source: Source
    says: str


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(FITS, "truth", True, "engine", "the engine starts (without an engine: cache and weights fit)"),
        Metric("max_concurrency", "number", True, "engine", "requests at once, as the engine counts them; at LENGTH"),
        Metric("capacity_tokens", "tokens", True, "engine", "tokens of KV cache, as the engine logs them"),
        Metric("max_model_len", "tokens", True, "engine", "the longest request"),
        Metric("kv_gib_per_gpu", "bytes", True, "engine", "what one GPU has for the cache (GiB, or a size)"),
        Metric("kv_bytes_per_token", "bytes", False, "model", "cache bytes of one more token, whole model; at LENGTH"),
        Metric("kv_gib", "bytes", False, "model", "cache of one sequence (GiB, or a size); at LENGTH"),
        Metric("weights_gib", "bytes", False, "model", "the weights of the whole model (GiB, or a size)"),
        *(
            Metric(f"{name}_{place}", "seconds", False, "scenario", f"simulated {name.upper()}, {place}")
            for name in ("ttft", "tpot", "itl", "e2e", "queue")
            for place in ("mean", "p50", "p90", "p99", "max")
        ),
        Metric("goodput", "number", True, "scenario", "simulated share of requests within the scenario's limits"),
        Metric("output_tokens_per_s", "number", True, "scenario", "simulated output tokens a second"),
    )
}
#: Figures that a baseline keeps; those of a simulation where an expectation names a scenario.
KEPT = ("fits", "capacity_tokens", "max_concurrency", "kv_bytes_per_token", "weights_gib", "kv_gib_per_gpu")

_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda got, asked: got >= asked,
    "<=": lambda got, asked: got <= asked,
    "==": lambda got, asked: got == asked,
    ">": lambda got, asked: got > asked,
    "<": lambda got, asked: got < asked,
}
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(>=|<=|==|=|>|<)\s*([^\s].*?)(?:\s+at\s+(\S+))?\s*")
_BASELINE = re.compile(r"\s*no\s+worse\s+than\s+(?:the\s+)?baseline(?:\s+by\s+([0-9.]+)\s*%)?\s*")
_ALONE = re.compile(r"\s*(not\s+)?([A-Za-z_]\w*)\s*")


@record
class Condition:
    """One sentence of an expectation. `metric` is None for a comparison with the baseline, whose `value` is percent."""

    text: str
    metric: Metric | None
    order: str
    value: float
    at: int | None = None

    def holds(self, got: float) -> bool:
        """Whether a figure satisfies it."""
        return _ORDER[self.order](got, self.value)

    @property
    def expected(self) -> str:
        """What was asked for, in words."""
        if self.metric is None:
            return f"no worse by {self.value:g} %"
        if self.metric.unit == "truth":
            return "fits" if self.value else "doesn't fit"
        return f"{self.order} {spelt(self.metric, self.value)}{f' at {tokens(self.at)}' if self.at else ''}"


def parse_condition(text: object, field: str) -> Condition:
    """Read one sentence. Raises InputError, which `field` opens, for an unknown figure or a value of another kind."""
    if not isinstance(text, str) or len(text) > 400:
        raise InputError(f"{field}: found {show(text)}, expected a sentence such as 'max_concurrency >= 8 at 32k'")
    if baseline := _BASELINE.fullmatch(text):
        return Condition(text.strip(), None, "", _percent(baseline[1], field))
    if (alone := _ALONE.fullmatch(text)) and alone[2] == FITS:
        return Condition(text.strip(), METRICS[FITS], "==", 0.0 if alone[1] else 1.0)
    match = _COMPARISON.fullmatch(text)
    name = match[1] if match else text.split()[0] if text.split() else ""
    metric = METRICS.get(name.replace("-", "_").lower())
    if metric is None:
        hint = did_you_mean(name, METRICS)
        raise InputError(f"{field}: found the unknown figure {show(name)}, expected one of `kvplan check --help`{hint}")
    if match is None or metric.unit == "truth":
        example = "fits or not fits" if metric.unit == "truth" else f"a comparison such as '{metric.name} >= 8'"
        raise InputError(f"{field}: found {show(text)}, expected {example}")
    order = "==" if match[2] == "=" else match[2]
    at = None if match[4] is None else parse_tokens(match[4], f"{field}: at")
    if at is not None and metric.name not in ("max_concurrency", "kv_bytes_per_token", "kv_gib"):
        raise InputError(f"{field}: found 'at' beside {metric.name}, which depends on no length, expected none")
    return Condition(text.strip(), metric, order, _value(metric, match[3], field), at)


def _percent(text: str | None, field: str) -> float:
    try:
        percent = 0.0 if text is None else float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent < MAX_TOLERANCE:
        raise InputError(f"{field}: found {show(text)} %, expected a share from 0 to 100 %")
    return percent


def _value(metric: Metric, text: str, field: str) -> float:
    name = f"{field}: {metric.name}"
    if metric.unit == "tokens":
        return parse_tokens(text.removesuffix("tokens").strip(), name)
    if metric.unit == "seconds":
        return parse_seconds(text, name)
    if metric.unit == "bytes" and (metric.name == "kv_bytes_per_token" or text[-1:].isalpha()):
        return parse_bytes(text.replace(" ", ""), name)
    try:
        number = float(text.rstrip("x").replace("_", "").replace(",", ""))
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e18:
        raise InputError(f"{name}: found {show(text)}, expected a number from 0")
    return number * GIB if metric.unit == "bytes" else number


def spelt(metric: Metric, value: float) -> str:
    """A figure in its unit."""
    if metric.unit == "truth":
        return "fits" if value else "doesn't fit"
    if metric.unit == "tokens":
        return f"{tokens(int(value))} tokens"
    if metric.unit == "seconds":
        return seconds(value)
    if metric.name == "kv_bytes_per_token":
        return f"{int(value):,} B"
    if metric.unit == "bytes":
        return gib(int(value)) if value >= 0 else f"-{gib(int(-value))}"
    return f"{value:,.2f}".removesuffix(".00")


def difference(metric: Metric, got: float, asked: float) -> str:
    """How far a figure is from the one asked for: `short by 1,024 tokens (2.1 %)`."""
    gap = abs(got - asked)
    if metric.unit == "seconds":
        gap = round(gap, 9)  # simulated times are whole nanoseconds
    share = f" ({gap / asked:.1%})" if asked else ""
    return f"{'short by' if got < asked else 'over by'} {spelt(metric, gap)}{share}"


def metric_names() -> tuple[str, ...]:
    """Every figure by name."""
    return tuple(METRICS)


def plain(value: Any) -> Any:
    """A figure as JSON has it: whole numbers without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
