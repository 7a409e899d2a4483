"""The constants of kvplan/memory/overheads.yaml that are fitted: how each follows from the cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.evidence import GIB, Case
from kvplan.engines.versions import rules_at
from kvplan.memory.activation import widths
from kvplan.memory.budget import Budget
from kvplan.memory.terms import Term, overheads
from kvplan.spec.resolve import resolve_model
from kvplan.units import MIB

Budgets = Mapping[str, Budget]


@dataclass(frozen=True)
class Figure:
    """One fitted constant: the rule it stands in, and what one case says of it (None where it says nothing)."""

    engine: str
    rule: str
    says: str
    shown_by: str
    of_case: Callable[[Case, Budget], float | None]
    version: str | None = None

    def in_use(self) -> float:
        """The nominal value of overheads.yaml."""
        return float(rules_at(self.engine, overheads()[self.engine], self.version)[self.rule]["nominal"])


def _term(found: Budget, name: str) -> Term | None:
    return next((term for term in found.stages[0].terms if term.name == name), None)


def _left(case: Case, found: Budget, name: str) -> float | None:
    """MiB that the identity leaves for one term when all others are as predicted; None for a case without it."""
    term = _term(found, name)
    if term is None or case.engine != "vllm":
        return None
    return (found.stages[0].nominal + term.nominal - case.observed["available_gib"] * GIB) / MIB


def _sampling(case: Case, found: Budget) -> float | None:
    """Bytes a logit from a printed activation peak, less the hidden states; only where sampling is the peak."""
    printed, term = case.observed.get("activation_gib"), _term(found, "activation peak")
    size = widths(resolve_model(case.model).spec)
    if printed is None or term is None or size is None or "logits" not in term.says:
        return None
    rows, tokens = (int(text.replace(",", "")) for text in (term.says.split()[0], term.says.split()[-2]))
    return (printed * GIB - 2 * tokens * size.hidden) / (rows * size.vocabulary)


def _process(case: Case, found: Budget) -> float | None:
    printed = case.observed.get("non_torch_gib")
    return None if printed is None or _term(found, "communication") is not None else printed * GIB / MIB


def _communication(case: Case, found: Budget) -> float | None:
    left = _left(case, found, "communication")
    return None if left is None else max(0.0, left)


def _host_side(case: Case, found: Budget) -> float | None:
    left = _left(case, found, "host side")
    return None if left is None else max(0.0, left)


def _before_loading(case: Case, found: Budget) -> float | None:
    """MiB gone before loading, of one rank's SGLang log."""
    free = case.observed.get("free_before_gib")
    alone = _term(found, "communication") is None
    return (found.total_bytes - free * GIB) / MIB if free is not None and alone else None


FITTED = {
    "sampler_bytes": Figure(
        "vllm", "sampler_bytes", "bytes a logit while sampling, sorted (to 0.16)", "activation peaks that logs print",
        _sampling, "0.11.0",
    ),
    "process_mib": Figure(
        "vllm", "process_mib", "MiB of one process outside the allocator", "non-torch memory that logs print, one rank",
        _process,
    ),
    "communication_mib": Figure(
        "vllm", "communication_mib", "MiB more with two or more ranks", "what the identity leaves, two or more ranks",
        _communication,
    ),
    "unified_mib": Figure(
        "vllm", "unified_mib", "MiB of the host side where memory is shared", "what the identity leaves, memory shared",
        _host_side,
    ),
    "sglang_process_mib": Figure(
        "sglang", "process_mib", "MiB gone before SGLang loads, one rank", "free memory that logs print",
        _before_loading,
    ),
}  # fmt: skip


def fit(held: list[Case], budgets: Budgets) -> dict[str, float]:
    """Each constant as the median of what the cases say of it; the one in use where none says anything."""
    values = {}
    for name, figure in FITTED.items():
        said = [value for case in held if (value := figure.of_case(case, budgets[case.id])) is not None]
        values[name] = median(said) if said else figure.in_use()
    return values


def figures_for(case: Case, values: Mapping[str, float]) -> dict[str, Any]:
    """The rules of a case's release with the fitted constants as nominal values."""
    rules = rules_at(case.engine, overheads()[case.engine], case.version)
    changed = {}
    for name, figure in FITTED.items():
        if figure.engine != case.engine:
            continue
        if figure.version is not None and rules[figure.rule] != rules_at(
            figure.engine, overheads()[figure.engine], figure.version
        )[figure.rule]:  # fmt: skip
            continue
        changed[figure.rule] = {**rules[figure.rule], "nominal": values[name]}
    return changed
