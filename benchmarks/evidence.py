"""The start-ups whose memory is known, and what kvplan predicts for them from GPU and flags alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.engines.base import Parallelism
from kvplan.engines.budgets import budget_for
from kvplan.hardware.accelerators import find
from kvplan.memory.budget import Budget
from kvplan.spec.model import WeightQuantization
from kvplan.spec.resolve import LoadedModel, resolve_model

EVIDENCE = Path(__file__).parent.parent / "tests" / "evidence"
GIB = 1 << 30
SHARES = ("gpu_memory_utilization", "mem_fraction_static")


@dataclass(frozen=True)
class Case:
    """One logged start-up. Sizes are GiB of one rank; `shared` says that other processes held memory of the card."""

    id: str
    engine: str
    version: str
    source: str
    model: str
    device: str
    engine_args: Mapping[str, Any]
    observed: Mapping[str, float]
    quantization: Mapping[str, Any] | None = None
    published_parameters_b: float | None = None
    visible_gib: float | None = None
    derived: str | None = None
    shared: str | None = None
    inferred: str | None = None
    note: str | None = None

    @property
    def states_share(self) -> bool:
        """Whether the thread gives the memory flag; without it the engine's default is assumed."""
        return any(name in self.engine_args for name in SHARES)

    @property
    def group(self) -> str:
        """Where the case is from: a repository's files are one author's and left out together, threads are apart."""
        return self.source.split()[0] if self.source.count("/") > 1 else self.source

    @property
    def era(self) -> str:
        """Engine and generation, for the tables."""
        if self.engine != "vllm":
            return self.engine
        release = tuple(int(part) for part in self.version.split(".")[:2])
        return "vLLM V0, to 0.7" if release < (0, 8) else "vLLM 0.8 to 0.16" if release < (0, 17) else "vLLM 0.17 on"


def cases() -> list[Case]:
    """Every start-up whose cache memory is known."""
    return [Case(**entry) for entry in _read("budgets.json")]


def threads() -> list[dict[str, str]]:
    """Every vLLM thread collected, with the verdict on its tokens and why its memory is left out."""
    return _read("vllm-logs/threads.json")


def planned() -> set[str]:
    """The threads whose log lines or refusals the tests of the vLLM model reproduce."""
    return {entry["id"] for entry in _read("vllm-logs/cases.json")}


def _read(name: str) -> Any:
    return json.loads((EVIDENCE / name).read_text(encoding="utf-8"))


def predict(case: Case, figures: Mapping[str, Any] | None = None) -> Budget:
    """The budget from GPU and flags; of the observed figures only the card's visible total is used, where printed."""
    spec = resolve_model(case.model).spec
    if case.quantization is not None:
        given = dict(case.quantization)
        for name in ("kept", "block_shape"):
            if name in given:
                given[name] = tuple(given[name])
        spec = replace(spec, quantization=WeightQuantization(**given))
    if case.published_parameters_b is not None:
        spec = replace(spec, published_parameters_b=(case.published_parameters_b, None))
    args = dict(case.engine_args)
    parallel = Parallelism(
        args.get("tensor_parallel_size", 1), args.get("pipeline_parallel_size", 1), args.get("data_parallel_size", 1),
        bool(args.get("enable_expert_parallel", False)), args.get("decode_context_parallel_size", 1),
    )  # fmt: skip
    visible = None if case.visible_gib is None else int(case.visible_gib * GIB)
    return budget_for(
        case.engine,
        case.version,
        LoadedModel(spec),
        find(case.device),
        parallel,
        args,
        visible=visible,
        figures=figures,
    )
