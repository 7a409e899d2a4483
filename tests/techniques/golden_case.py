"""Golden cases by name: which public functions answer which case. A case's own arithmetic (`expr`) is not used."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, TypeAlias

from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from tests.techniques.shapes import dense, spec

Inputs: TypeAlias = dict[str, Any]
Answers: TypeAlias = dict[str, Any]
_ANSWERS: list[tuple[str, Callable[[Inputs], Answers]]] = []


def answer(case_id: str, inputs: Inputs) -> Answers:
    """kvplan's figures for one case."""
    for pattern, function in _ANSWERS:
        if fnmatch(case_id, pattern):
            return function(inputs)
    raise LookupError(case_id)


def case(*patterns: str) -> Callable[[Callable[[Inputs], Answers]], Callable[[Inputs], Answers]]:
    def register(function: Callable[[Inputs], Answers]) -> Callable[[Inputs], Answers]:
        _ANSWERS.extend((pattern, function) for pattern in patterns)
        return function

    return register


def dtype(value_bytes: int) -> Precision:
    return resolve_precision({1: "fp8", 2: "bf16", 4: "fp32"}[value_bytes])


def plan(model: ModelSpec, value_bytes: int = 2, index: str = "auto") -> CachePlan:
    kv = {1: "fp8", 2: "bf16", 4: "fp32"}[value_bytes]
    return plan_cache(model, resolve_precision(kv, index))


def heads(i: Inputs, count: str = "L") -> ModelSpec:
    return dense(i[count], i["Hkv"], i["D"], i.get("Hq"))


def token_bytes(model: ModelSpec, value_bytes: int = 2) -> int:
    return int(plan(model, value_bytes).marginal_bytes(1))


def local_global(i: Inputs, locals_: str = "Ll") -> ModelSpec:
    full = kinds.FullAttention(i["Hkv"], i["Hkv"], i["D"])
    return spec((i["Lg"], full), (i[locals_], kinds.SlidingWindow(i["Hkv"], i["Hkv"], i["D"], i["W"])))
