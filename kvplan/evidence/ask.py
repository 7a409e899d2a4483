"""A run of a log as a question to the engine's model: which model, device and settings, and what it answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvplan.engines.base import Device, Engine, EngineAnswer, Parallelism
from kvplan.engines.budgets import engine_device
from kvplan.engines.native import PARALLEL_FLAGS, parallel_from
from kvplan.engines.registry import engine_names, find_engine
from kvplan.errors import InputError, KvplanError
from kvplan.evidence.runs import LogRun
from kvplan.hardware.accelerators import Accelerator
from kvplan.record import record
from kvplan.spec.resolve import LoadedModel, registry

UNBOUNDED = 1 << 60
#: settings that say nothing about the layout of the cache
_NOT_LAYOUT = {"model", "gpu_memory_utilization", "enforce_eager", "quantization", "mem_fraction_static",
               "free_gpu_memory_fraction", "cache_max_entry_count"}  # fmt: skip

_CACHED = re.compile(r".*models--([^/]+?)--([^/]+?)(?:/.*)?$")
#: words at the end of a checkpoint's name that change its weights and not its cache
_VARIANT = re.compile(
    r"[-_.](?:fp[48]|nvfp4|mxfp4|awq|gptq|int[48]|[48]bit|bnb|w4a16|w8a8|w8a16|dynamic|block|quantized|autoround|marlin|"
    r"instruct|chat|it|base|hf|gguf|[0-9]{4})$",
    re.IGNORECASE,
)


@record
class Given:
    """What the log may not say, from the user. Settings override the log's."""

    model: LoadedModel | None = None
    accelerator: Accelerator | None = None
    device: Device | None = None
    engine: str | None = None
    settings: Mapping[str, Any] | None = None
    accelerator_source: str = "--gpu"


@record
class Ask:
    """The question. `why_not` says what is missing for an answer."""

    engine: str
    version: str | None
    model: Engine | None
    loaded: LoadedModel | None
    device: Device
    device_source: str
    accelerator: Accelerator | None
    settings: Mapping[str, Any]
    parallel: Parallelism
    why_not: str | None = None

    def plan(self, available: int, **changes: Any) -> EngineAnswer:
        """The engine model's answer with `available` cache bytes a rank, some settings changed (None takes one away).

        Raises InputError or UnsupportedArchitectureError as the engine does; KeyError without a model.
        """
        if self.model is None or self.loaded is None:
            raise KeyError(self.why_not)
        settings = {name: value for name, value in {**self.settings, **changes}.items() if value is not None}
        parallel = parallel_from(settings) if changes else self.parallel
        own = {name: value for name, value in settings.items() if name not in PARALLEL_FLAGS}
        return self.model.plan(self.loaded.spec, own, parallel, [available], self.device, self.version)

    def try_plan(self, available: int, **changes: Any) -> EngineAnswer | None:
        """`plan`, None where the engine refuses the change or there is nothing to ask."""
        try:
            return self.plan(available, **changes)
        except (KvplanError, KeyError):
            return None


def ask_about(run: LogRun, given: Given) -> Ask:
    """Put `run` as a question, filled in from `given`. Raises InputError for a setting that is no such thing."""
    own, version = run.engine, run.version
    model: Engine | None = None
    if given.engine is not None:
        model, asked = find_engine(given.engine)
        own, version = model.name, asked or version
    elif own in engine_names():
        model, _ = find_engine(own)
    flags = {**run.flags, **{name: value for name, value in (given.settings or {}).items() if value is not None}}
    settings = {name: value for name, value in flags.items() if name not in _NOT_LAYOUT}
    if own == "ollama":
        settings = _as_ollama(settings)
    device, source = _device(run, given)
    why = None
    if given.model is None:
        named = run.flags.get("model")
        why = f"the model {named!r} is not known: give --model" if named else "the log names no model: give --model"
    elif model is None:
        why = f"kvplan has no model of {own}"
    accelerator = given.accelerator
    return Ask(own, version, model, given.model, device, source, accelerator, settings, parallel_from(settings), why)


def _as_ollama(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ollama's own settings out of those its runner prints, which are llama.cpp's."""
    slots = settings.get("num_parallel", settings.get("parallel", 1))
    cells = settings.get("ctx_size")
    found = {"num_parallel": slots, "kv_cache_type": settings.get("cache_type_k", "f16")}
    if isinstance(cells, int) and isinstance(slots, int) and cells >= slots > 0:
        found["num_ctx"] = cells // slots
    if found["kv_cache_type"] != "f16":
        found["flash_attention"] = True
    return found | {name: value for name, value in settings.items() if name in ("num_ctx", "num_batch", "num_gpu")}


def _device(run: LogRun, given: Given) -> tuple[Device, str]:
    if given.device is not None:
        return given.device, "given"
    if given.accelerator is not None:
        return engine_device(given.accelerator), given.accelerator_source
    total = run.number("total")
    if total:
        return Device("the GPU of the log", total), "the total that the log prints"
    return Device("unknown GPU", UNBOUNDED), "nothing: no GPU named and no total printed"


def find_named_model(run: LogRun) -> tuple[LoadedModel | None, str | None]:
    """The model the log names, where it is a known one, and what was assumed to find it.

    A folder stands for its own name, a hub cache's for the model in it; a quantized or tuned checkpoint for the known
    one it was made of, whose cache has the same layout. No file is opened for a name in a log.
    """
    named = run.flags.get("model")
    if not isinstance(named, str) or not named:
        return None, None
    name = _CACHED.sub(r"\1/\2", named.rstrip("/")) if _CACHED.search(named) else named.rstrip("/")
    for spelling in (name, name.rpartition("/")[2]):
        if (found := _known(spelling)) is not None:
            return found, None
    base = name.rpartition("/")[2]
    while (shorter := _VARIANT.sub("", base)) not in ("", base):
        base = shorter
        if (found := _known(base)) is not None:
            return found, f"the log's model is taken as {found.spec.id}, whose cache has the same layout"
    return None, None


def _known(name: str) -> LoadedModel | None:
    try:
        return LoadedModel(registry().find(name))
    except InputError:
        return None


def find_named_gpu(run: LogRun) -> Accelerator | None:
    """The GPU the log names, where it is a known one."""
    from kvplan.hardware.accelerators import find

    figure = run.last("gpu")
    if figure is None:
        return None
    try:
        return find(str(figure.value))
    except InputError:
        return None
