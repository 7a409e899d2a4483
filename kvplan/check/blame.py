"""Which term of the arithmetic makes a sentence fail, in words."""

from __future__ import annotations

from kvplan.check.figures import Figures
from kvplan.check.metrics import FITS, Condition
from kvplan.engines.base import EngineAnswer
from kvplan.memory.budget import Budget, StageBudget
from kvplan.units import gib, tokens


def blamed(figures: Figures, condition: Condition) -> str:
    """The term to blame for a figure that isn't as expected; "" where there is nothing to tell."""
    metric = condition.metric
    assert metric is not None
    if metric.source == "scenario":
        return _simulation(figures)
    if metric.source == "model":
        return _analytic(figures, metric.name)
    if figures.subject.engine is None:
        return _fit(figures)
    answer, budget = figures.plan()
    if figures.missing_gpus():
        parallel = figures.question.parallel
        sizes = f"TP {parallel.tensor} x PP {parallel.pipeline} x DP {parallel.data}"
        return f"ranks = {sizes} = {figures.subject.ranks}, GPUs = {figures.subject.gpus}"
    if answer.refused is not None:
        return refusal(answer, budget)
    if condition.at is not None and condition.at > answer.max_model_len:
        return f"requests of {tokens(condition.at)} tokens are refused: the greatest length is {answer.max_model_len:,}"
    if metric.name == FITS:
        return ""
    if budget is None:
        return f"{' / '.join(gib(size) for size in figures.question.available_bytes)} given for the cache of one GPU"
    return memory(budget)


def refusal(answer: EngineAnswer, budget: Budget | None) -> str:
    """Why the engine doesn't start: needed, available, how that comes about, the longest that would fit."""
    assert answer.refused is not None
    refused = answer.refused
    available = refused.available_bytes if budget is None else budget.poorest.nominal
    have = gib(available) if available >= 0 else f"-{gib(-available)}"
    longest = refused.estimated_max_model_len
    end = f"; the longest that fits is {tokens(longest)} tokens" if longest else ""
    how = f" ({memory(budget)})" if budget is not None else ""
    return (
        f"to serve at least one request of {tokens(answer.max_model_len)} tokens needs {gib(refused.needed_bytes)} of "
        f"KV cache, {have} available{how}{end}"
    )


def memory(budget: Budget) -> str:
    """The memory of one GPU, term by term, largest first."""
    stage = budget.poorest
    terms = sorted(stage.terms, key=lambda term: -term.nominal)
    taken = " - ".join(f"{term.name} {gib(term.nominal)}" for term in terms)
    left = gib(stage.nominal) if stage.nominal >= 0 else f"-{gib(-stage.nominal)}"
    share = f"share {budget.share:g} of {gib(budget.total_bytes)}" if budget.share is not None else "memory"
    return f"{share}: {gib(_counted(stage))} - {taken} = {left} for the cache"


def _counted(stage: StageBudget) -> int:
    return stage.nominal + sum(term.nominal for term in stage.terms)


def _analytic(figures: Figures, name: str) -> str:
    if name == "weights_gib":
        from kvplan.answers.fit import weights_of

        weights, _ = weights_of(figures.loaded)
        return "" if weights is None else weights.source
    cache = figures.estimate().cache
    largest = max(cache.components, key=lambda part: part.bytes)
    share = largest.bytes / max(1, cache.needed_bytes_per_sequence)
    return f"{largest.name}: {largest.derivation.formula}, {share:.0%} of the cache"


def _fit(figures: Figures) -> str:
    estimate = figures.estimate()
    size = gib(estimate.cache.needed_bytes_per_sequence)
    weights = f"weights {gib(estimate.weights.bytes)} and " if estimate.weights is not None else ""
    return f"{weights}{size} of KV cache for a sequence of {tokens(estimate.context_tokens)} tokens"


def _simulation(figures: Figures) -> str:
    binding = figures.simulated["binding"]
    steady = "" if figures.simulated["steady"] else f", and the load is {figures.simulated['stability']}"
    if binding["resource"] == "none":
        return f"no request waited for room: the steps themselves take that long{steady}"
    return f"requests waited for {binding['resource']} ({binding['shares'][binding['resource']]:.0%} of it){steady}"
