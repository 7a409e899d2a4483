"""The figures of one subject, each asked for once: from the engine's plan, the formula, or a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.check.metrics import FITS, Metric
from kvplan.check.subjects import Reader, Subject, context_of
from kvplan.engines.base import EngineAnswer
from kvplan.engines.native import parallel_from
from kvplan.engines.registry import find_engine
from kvplan.errors import InputError, show
from kvplan.hardware.accelerators import find
from kvplan.memory.budget import Budget
from kvplan.serving import Question, plan

if TYPE_CHECKING:
    from kvplan.estimator import Estimate
    from kvplan.spec.resolve import LoadedModel

_DTYPE_FLAGS = ("kv_cache_dtype", "cache_type_k", "kv_cache_type")
# Engines whose pool is made for the length, so that a shorter request changes nothing.
_SLOTTED = ("llama.cpp", "ik_llama.cpp", "ollama", "transformers")


class EngineRefusesError(InputError):
    """The engine would not take the command, so it doesn't start."""


class Figures:
    """Answers about one subject. `settings` replace some of its engine's flags (kvplan's option names)."""

    def __init__(self, subject: Subject, reader: Reader) -> None:
        self.subject, self.reader = subject, reader
        self._plans: dict[tuple[tuple[str, Any], ...], tuple[EngineAnswer, Budget | None]] = {}
        self._estimates: dict[int, Estimate] = {}
        self._simulated: dict[str, Any] | None = None

    @property
    def loaded(self) -> LoadedModel:
        """The model. Raises InputError without one."""
        return self.reader.load(self.subject)

    @property
    def question(self) -> Question:
        """What the engine's model is asked. Raises InputError where no GPU is known."""
        subject = self.subject
        assert subject.engine is not None
        model, version = find_engine(subject.engine)
        memory = subject.placed.asked.available_memory
        parallel = self._parallel()
        return Question(
            self.loaded, model, version, find(self.gpu, "hardware"), parallel, subject.settings,
            () if memory is None else (memory,) * parallel.pipeline,
        )  # fmt: skip

    def _parallel(self) -> Any:
        if self.subject.found is not None:
            return self.subject.found.command.parallelism()
        return parallel_from(self.subject.settings)

    @property
    def gpu(self) -> str:
        """The device. Raises InputError where neither the file nor the command line names it."""
        if self.subject.gpu is None:
            what = f" in {self.subject.file}" if self.subject.found is not None else ""
            raise InputError(f"hardware: found no GPU model{what}, expected hardware: in the expectation, or --gpu")
        return self.subject.gpu

    def plan(self, **changed: Any) -> tuple[EngineAnswer, Budget | None]:
        """The engine's plan, with some of kvplan's options changed.

        Raises EngineRefusesError for flags that the engine would stop at, InputError where something isn't known.
        """
        key = tuple(sorted(changed.items()))
        if key not in self._plans:
            question = self.question
            try:
                self._plans[key] = self._ask(question.changed(**changed) if changed else question)
            except InputError as error:
                if str(error).startswith(("model:", "--gpu", "--engine", "hardware:")):
                    raise
                raise EngineRefusesError(str(error)) from None
        return self._plans[key]

    def _ask(self, question: Question) -> tuple[EngineAnswer, Budget | None]:
        """The plan of a question, worked out once for all expectations that ask it."""
        settings = repr(sorted(question.settings.items(), key=lambda item: item[0]))
        key = (
            *self._model_key, question.engine.name, question.version, question.device.slug, question.parallel, settings,
            question.available_bytes,
        )  # fmt: skip
        if key not in self.reader.plans:
            self.reader.plans[key] = plan(question)
        return self.reader.plans[key]

    @property
    def _model_key(self) -> tuple[Any, ...]:
        return (self.subject.model, self.subject.weights, self.subject.placed.file.parent)

    def estimate(self, length: int | None = None) -> Estimate:
        """The analytic answer for one sequence; with an engine, in the dtype of its cache."""
        from kvplan.estimator import estimate
        from kvplan.served import analytic_dtype

        context = context_of(self.subject, self.loaded, length)
        if context not in self._estimates:
            asked, settings = self.subject.placed.asked.kv_cache_dtype, self.subject.settings
            # An unknown word costs a search for the nearest one, and "auto" is no format's name.
            named = any(flag in settings for flag in _DTYPE_FLAGS)
            dtype = analytic_dtype(settings, asked) if named else asked
            key, known = (*self._model_key, context, dtype), self.reader.estimates
            if key not in known:
                known[key] = estimate(self.loaded, ctx=context, kv_cache_dtype=dtype)
            self._estimates[context] = known[key]
        return self._estimates[context]

    def value(self, metric: Metric, at: int | None = None, **changed: Any) -> float:
        """One figure in its unit, 1 or 0 for `fits`. Raises InputError where it can't be known."""
        if metric.source == "scenario":
            return measured(self.simulated, metric.name)
        if metric.source == "model":
            return self._analytic(metric.name, at, changed)
        if self.subject.engine is None:
            return self._without_engine(metric)
        return self._planned(metric.name, at, changed)

    def _analytic(self, name: str, at: int | None, changed: Mapping[str, Any]) -> float:
        if name == "weights_gib":
            from kvplan.answers.fit import weights_of

            weights, _ = weights_of(self.loaded)
            if weights is None:
                raise InputError(f"model: found no parameter count for {self.loaded.spec.id}, expected one")
            return weights.bytes
        if "kv_cache_dtype" in changed:
            from kvplan.estimator import estimate

            length = context_of(self.subject, self.loaded, at)
            cache = estimate(self.loaded, ctx=length, kv_cache_dtype=changed["kv_cache_dtype"]).cache
        else:
            cache = self.estimate(at).cache
        return cache.bytes_per_token_marginal if name == "kv_bytes_per_token" else cache.needed_bytes_per_sequence

    def _without_engine(self, metric: Metric) -> float:
        if metric.name != FITS:
            raise InputError(
                f"{metric.name}: found no engine in the expectation, expected command:, manifest: or engine: beside it"
            )
        from kvplan.estimator import estimate

        asked = self.subject.placed.asked
        answer = estimate(
            self.loaded, ctx=context_of(self.subject, self.loaded, None), batch=asked.batch, gpu=self.gpu,
            num_gpus=self.subject.gpus or 1, kv_cache_dtype=asked.kv_cache_dtype,
        )  # fmt: skip
        assert answer.fit is not None
        return float(answer.fit.fits)

    def _planned(self, name: str, at: int | None, changed: Mapping[str, Any]) -> float:
        answer, budget = self.plan(**changed)
        if name == FITS:
            return float(answer.refused is None and not self.missing_gpus(changed))
        if name == "max_model_len":
            return answer.max_model_len
        if name == "kv_gib_per_gpu":
            memory = self.subject.placed.asked.available_memory
            return memory if budget is None and memory is not None else budget.poorest.nominal if budget else 0
        if answer.refused is not None or self.missing_gpus(changed):
            return 0.0
        if name == "capacity_tokens":
            return answer.capacity_tokens or 0
        return self._concurrency(answer, budget, at, changed)

    def _concurrency(
        self, answer: EngineAnswer, budget: Budget | None, at: int | None, changed: Mapping[str, Any]
    ) -> float:
        """Requests at once; of another length than the engine's greatest, in the pool that it makes for that one."""
        if at is None or at == answer.max_model_len:
            return answer.max_concurrency or 0.0
        if at > answer.max_model_len:
            return 0.0
        if answer.name in _SLOTTED:
            return answer.max_concurrency or 0.0
        question = self.question.changed(**changed) if changed else self.question
        pool = question.available_bytes or (budget.available_bytes if budget is not None else ())
        shorter = Question(
            question.loaded, question.engine, question.version, question.device, question.parallel,
            question.settings, pool,
        )  # fmt: skip
        other, _ = self._ask(shorter.changed(max_model_len=at))
        return other.max_concurrency or 0.0

    def missing_gpus(self, changed: Mapping[str, Any] | None = None) -> int:
        """How many GPUs the ranks need beyond those there are; 0 where that isn't known, or more ranks are asked."""
        gpus = self.subject.gpus
        if gpus is None or "tensor_parallel_size" in (changed or {}):
            return 0
        return max(0, self.subject.ranks - gpus)

    # --- simulation ----------------------------------------------------------------------------------------------

    def scenario(self, **more: Any) -> dict[str, Any]:
        """The simulated run: the expectation's scenario with the subject's model, device and flags in it."""
        from kvplan.simulator import study

        placed = self.subject.placed
        assert placed.asked.scenario is not None
        path = self.reader.inputs.inside(placed.asked.scenario, placed, "scenario")
        self.reader.inputs.add(path)
        document = study.load_document(path)
        trace = document.get("workload", {}).get("trace")
        for name in ((trace or {}).get("path"), document.get("step_time", {}).get("profile")):
            if isinstance(name, str):
                self.reader.inputs.add(path.parent / name)
        return study.run(study.changed(document, path, [*self._own_settings(), *more.items()]), path)

    def _own_settings(self) -> list[tuple[str, Any]]:
        subject = self.subject
        if subject.engine is None or subject.model is None:
            named = self.reader.given.model or subject.placed.asked.model
            return [] if named is None else [("model", self._local(named))]
        if not subject.engine.startswith("vllm"):
            raise InputError(
                f"scenario: found {subject.engine}, expected a vLLM command: the simulator has its scheduler"
            )
        answer, budget = self.plan()
        have = {setting.name: setting.value for setting in answer.settings}
        settings: list[tuple[str, Any]] = [
            ("model", self._local(subject.model)), ("hardware.gpu", find(self.gpu, "hardware").slug),
            ("hardware.tensor_parallel", self._parallel().tensor), ("engine.max_model_len", answer.max_model_len),
        ]  # fmt: skip
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype"):
            if have.get(name) is not None:
                settings.append((f"engine.{name}", have[name]))
        room = self.question.available_bytes or (budget.available_bytes if budget is not None else ())
        if answer.refused is not None or not room:
            raise EngineRefusesError(answer.refused.text if answer.refused else "nothing is left for the cache")
        return [*settings, ("engine.kv_cache_memory", min(room))]

    def _local(self, name: str) -> str:
        """A model as the scenario's own folder would name it."""
        beside = self.subject.placed.file.parent / name
        return str(beside.absolute()) if Path(name).suffix and beside.exists() else name

    @property
    def simulated(self) -> dict[str, Any]:
        """The run as it is asked for."""
        if self._simulated is None:
            self._simulated = self.scenario()
        return self._simulated


def measured(document: Mapping[str, Any], name: str) -> float:
    """One figure of a simulated run. Raises InputError where nothing was measured."""
    if not document["requests"]["measured"]:
        raise InputError(f"scenario: found no measured request for {show(name)}, expected a workload with some")
    if name == "goodput":
        return float(document["goodput"])
    if name == "output_tokens_per_s":
        return float(document["throughput"]["output_tokens_per_s"])
    latency, _, place = name.rpartition("_")
    return float(document["latency"][f"{latency}_s"][place])
