"""Where a GPU's memory went: each term as the log prints it and as the memory budget predicts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import KvplanError
from kvplan.evidence.ask import Ask
from kvplan.evidence.runs import Figure, LogRun
from kvplan.record import record

if TYPE_CHECKING:
    from kvplan.memory.budget import Budget

#: printed terms and the terms of the budget that predict them, in the order of the bar
_PREDICTED_BY = {
    "weights": ("weights", "expert padding"),
    "activation": ("activation peak", "compute buffer"),
    "non-torch": ("process", "communication", "host side"),
    "CUDA graphs": ("CUDA graphs",),
}


@record
class MemoryTerm:
    """One user of a GPU's memory, bytes. `observed` is None where the log has no figure, `predicted` (with `low` and
    `high`) where nothing predicts it; `error` is (predicted - observed) / observed. `line` is 0 for what is worked out
    from other lines, as `says` tells."""

    name: str
    observed: int | None
    half: float
    predicted: int | None
    low: int | None
    high: int | None
    error: float | None
    line: int
    says: str


@record
class Memory:
    """One GPU's memory. `share` is the part of `total_bytes` the engine was given.

    `closes` tells whether share, terms and pool add up to within their rounding, None where a figure is missing;
    `gap_bytes` is what is over, and `solved_share` the share at which nothing would be.
    """

    total_bytes: int | None
    total_source: str
    share: float | None
    terms: tuple[MemoryTerm, ...]
    closes: bool | None
    solved_share: float | None
    gap_bytes: int | None


def memory_of(run: LogRun, ask: Ask) -> tuple[Memory, tuple[str, ...]]:
    """The memory of one GPU as `run` prints it and as it is predicted, and why there is no prediction."""
    total = run.number("total")
    source = "printed" if total else ""
    if total is None and ask.accelerator is not None:
        from kvplan.engines.budgets import total_bytes

        total, source = total_bytes(ask.accelerator), f"what {ask.accelerator.name} shows an engine"
    budget, notes = _budget(run, ask, total if source == "printed" else None)
    observed = _observed(run)
    share = _share(run, ask)
    terms = [_term(name, observed.get(name), budget) for name in _PREDICTED_BY]
    terms.append(_pool_term(run, budget, observed.get("weights")))
    kept = tuple(term for term in terms if term.observed is not None or term.predicted is not None)
    closes, solved, gap = _closes(run, observed, total if source == "printed" else None, share)
    return Memory(total, source, share, kept, closes, solved, gap), notes


def _share(run: LogRun, ask: Ask) -> float | None:
    for name in ("gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction"):
        value = run.flags.get(name, ask.settings.get(name))
        if isinstance(value, int | float) and 0 < value <= 1:
            return float(value)
    return None


def _observed(run: LogRun) -> dict[str, tuple[int, float, int, str]]:
    """Term to (bytes, half, line, words). Of several ranks the largest weights and the last of the rest."""
    found: dict[str, tuple[int, float, int, str]] = {}
    for name, figure in (
        ("weights", _largest(run, "weights")),
        ("activation", run.last("activation")),
        ("non-torch", run.last("non_torch")),
        ("CUDA graphs", run.last("graphs") or run.last("graphs_estimate")),
    ):
        if figure is not None:
            found[name] = (int(figure.value), figure.half, figure.line, "printed")
    peak, weights = run.last("peak"), found.get("weights")
    if "activation" not in found and peak is not None and weights is not None and run.engine == "vllm":
        size = int(peak.value) - weights[0]
        found["activation"] = (size, peak.half + weights[1], peak.line, "peak less weights")
    consumed = run.last("consumed")
    if "non-torch" not in found and consumed is not None and weights is not None:
        size = int(consumed.value) - weights[0]
        found["non-torch"] = (size, consumed.half + weights[1], consumed.line, "consumed less weights")
    before, after = run.first("free"), run.first("free_after_weights")
    if "weights" not in found and before is not None and after is not None:
        found["weights"] = (
            int(before.value) - int(after.value), before.half + after.half, after.line, "free before less free after"
        )  # fmt: skip
    if run.engine in ("llama.cpp", "ollama", "ik_llama.cpp"):
        found |= _per_device(run)
    return found


def _per_device(run: LogRun) -> dict[str, tuple[int, float, int, str]]:
    """llama.cpp prints each device's buffers: those of the GPU that holds most, host buffers left out."""
    found: dict[str, tuple[int, float, int, str]] = {}
    for term, name in (("weights", "weights"), ("activation", "compute")):
        sizes: dict[str, tuple[int, float, int]] = {}
        for figure in run.all(name):
            device = (figure.device or "").removesuffix("_Split")
            if device.startswith("CPU") or device.endswith("Host"):
                continue
            # Ollama prints the same buffers again each time it tries a placement.
            size, half, _ = sizes.get(device, (0, 0.0, 0)) if run.engine != "ollama" else (0, 0.0, 0)
            sizes[device] = (size + int(figure.value), half + figure.half, figure.line)
        if sizes:
            device, (size, half, line) = max(sizes.items(), key=lambda item: item[1][0])
            found[term] = (size, half, line, f"buffers of {device}")
    return found


def _largest(run: LogRun, name: str) -> Figure | None:
    return max(run.all(name), key=lambda figure: float(figure.value), default=None)


def _budget(run: LogRun, ask: Ask, visible: int | None) -> tuple[Budget | None, tuple[str, ...]]:
    if ask.loaded is None or ask.model is None:
        return None, ()
    if ask.accelerator is None:
        return None, ("weights, activations and overheads are not predicted: give --gpu",)
    from kvplan.engines.budgets import budget_for

    flags = {name: value for name, value in run.flags.items() if name not in ("model", "quantization", "dtype")}
    try:
        budget = budget_for(
            ask.model.name, ask.version, ask.loaded, ask.accelerator, ask.parallel, {**flags, **ask.settings},
            visible=visible,
        )  # fmt: skip
    except KvplanError as error:
        return None, (f"weights, activations and overheads are not predicted: {error}",)
    return budget, tuple(budget.warnings)


def _term(name: str, seen: tuple[int, float, int, str] | None, budget: Budget | None) -> MemoryTerm:
    observed, half, line, says = seen if seen is not None else (None, 0.0, 0, "not in the log")
    predicted = low = high = None
    if budget is not None:
        parts = [term for term in (*budget.poorest.terms, *budget.outside) if term.name in _PREDICTED_BY[name]]
        if parts:
            predicted = sum(term.nominal for term in parts)
            low, high = sum(term.low for term in parts), sum(term.high for term in parts)
    return MemoryTerm(name, observed, half, predicted, low, high, _error(predicted, observed), line, says)


def _pool_term(run: LogRun, budget: Budget | None, weights: tuple[int, float, int, str] | None) -> MemoryTerm:
    """The cache. Its prediction stands on the printed weights where the log has them, so that the other terms are
    judged and not the checkpoint."""
    observed, half, line, says = _printed_pool(run)
    predicted = low = high = None
    if budget is not None:
        stage = budget.poorest
        predicted, low, high = stage.nominal, stage.low, stage.high
        if weights is not None:
            parts = [term for term in stage.terms if term.name in _PREDICTED_BY["weights"]]
            predicted += sum(term.nominal for term in parts) - weights[0]
            low += sum(term.high for term in parts) - weights[0]
            high += sum(term.low for term in parts) - weights[0]
        predicted, low, high = max(0, predicted), max(0, low), max(0, high)
    return MemoryTerm("KV cache", observed, half, predicted, low, high, _error(predicted, observed), line, says)


def _printed_pool(run: LogRun) -> tuple[int | None, float, int, str]:
    """What the log prints of the cache: memory left for it, one size, or its parts."""
    printed = run.least("available") or (run.first("kv") if run.engine in ("sglang", "tensorrt-llm") else None)
    if printed is not None:
        return int(printed.value), printed.half, printed.line, "printed"
    names = ("key", "value") if run.engine == "sglang" else ("kv", "state")
    parts = [run.first(name) for name in names] if run.engine == "sglang" else [*run.all("kv"), *run.all("state")]
    known = [part for part in parts if part is not None]
    if not known:
        return None, 0.0, 0, "not in the log"
    total = sum(int(part.value) for part in known)
    return total, sum(part.half for part in known), known[-1].line, f"sum of {len(known)} printed sizes"


def _error(predicted: int | None, observed: int | None) -> float | None:
    return None if predicted is None or not observed or observed < 0 else (predicted - observed) / observed


def _closes(
    run: LogRun, observed: dict[str, tuple[int, float, int, str]], total: int | None, share: float | None
) -> tuple[bool | None, float | None, int | None]:
    """Whether total x share = weights + activation + non-torch + pool within the rounding of the five."""
    pool = run.last("available")
    parts = [observed.get(name) for name in ("weights", "activation", "non-torch")]
    if run.engine != "vllm" or total is None or share is None or pool is None or None in parts:
        return None, None, None
    if run.last("graphs_estimate") is not None:  # inside the share since the release that estimates them
        return None, None, None
    used = sum(part[0] for part in parts if part) + int(pool.value)
    slack = sum(part[1] for part in parts if part) + pool.half + (run.last("total") or pool).half
    gap = round(total * share) - used
    solved = round(used / total, 3)
    return abs(gap) <= slack + total * 0.0005, solved, gap
