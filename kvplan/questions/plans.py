"""The question `which hardware?`, for who may wait for it: its simulations take seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.planner.request import PlanRequest
from kvplan.questions.answers import Question
from kvplan.spec.resolve import registry

if TYPE_CHECKING:
    from kvplan.planner.answer import Plan


def answer_plan(request: PlanRequest) -> Plan:
    """Ranked configurations for a workload of known models; traces, which are files, are refused."""
    from kvplan.planner.plan import plan

    if request.workload.trace is not None:
        raise InputError("workload.trace: found a file, expected prompt and output lengths (kvplan plan reads traces)")
    known = tuple(registry().find(name).id for name in request.models)
    return plan(request.model_copy(update={"models": known}))


def _plan_classes() -> tuple[type, ...]:
    from kvplan.planner.answer import Plan

    return (Plan,)


PLAN = Question(
    "plan", "Which GPUs, engine and settings carry a workload within its limits, cheapest first (takes seconds).",
    PlanRequest, _plan_classes, answer_plan,
)  # fmt: skip
