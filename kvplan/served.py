"""`kvplan estimate --engine`: the analytic answer together with an engine's plan on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.engines.native import PARALLEL_FLAGS, parallel_from
from kvplan.engines.registry import canonical_engine
from kvplan.errors import InputError, show
from kvplan.estimator import Estimate, estimate
from kvplan.files import read_yaml
from kvplan.hardware.accelerators import find
from kvplan.memory.budget import Budget
from kvplan.memory.feasible import Feasible
from kvplan.record import record
from kvplan.serving import Change, EngineSection, Serving, serve, verdict
from kvplan.spec.resolve import LoadedModel
from kvplan.units import parse_bytes


@record
class ServedEstimate(Estimate):
    """An estimate with the engine's plan: `memory` is one GPU's budget, None where the bytes were given.

    `exit_code` is 1 when the engine would refuse to start.
    """

    engine: EngineSection
    memory: Budget | None
    feasible: Feasible | None
    changes: tuple[Change, ...]
    engine_command: str
    needed_bytes_per_gpu: int

    @property
    def exit_code(self) -> int:
        return 1 if self.engine.refused is not None else 0


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document of `kvplan estimate --engine`."""
    from kvplan.answers.schema import document_schema

    return document_schema(ServedEstimate, "kvplan estimate --engine")


def with_ranks(settings: Mapping[str, Any], num_gpus: int) -> dict[str, Any]:
    """The engine's flags, with `num_gpus` tensor-parallel ranks where they name no ranks themselves."""
    if num_gpus > 1 and not PARALLEL_FLAGS & set(settings):
        return {**settings, "tensor_parallel_size": num_gpus}
    return dict(settings)


def analytic_dtype(settings: Mapping[str, Any], asked: str) -> str:
    """The KV dtype that the analytic part is asked for: the engine's flag where the formula knows it by that name."""
    from kvplan.cache.formats import find_format

    name = next(
        (settings[flag] for flag in ("kv_cache_dtype", "cache_type_k", "kv_cache_type") if flag in settings), asked
    )
    try:
        return find_format(str(name)).name
    except InputError:
        return "auto"


_TECHNIQUES = {"evict": "eviction", "sparse_read": "quest", "share_prefix": "prefix", "offload": "offload"}


def refuse_techniques(engine: str | None, given: Mapping[str, Any]) -> None:
    """Runtime techniques are composed analytically; an engine has its own flags for what it can do.

    `engine` is None where only a launch command names it. Raises InputError for a technique that is given: with the
    engines that have it where `engine` has not.
    """
    from kvplan.engines.support import engines_with, supports

    name = None if engine is None else canonical_engine(engine.partition("@")[0])
    for option, value in given.items():
        if not value:
            continue
        flag, technique = f"--{option.replace('_', '-')}", _TECHNIQUES.get(option)
        found = supports(name, technique) if name is not None and technique is not None else None
        if technique is not None and found is not None and not found:
            have = ", ".join(engines_with(technique)) or "none of the engines kvplan knows"
            why = f" ({found.note})" if found.note else ""
            raise InputError(
                f"{flag}: {name} has no such technique{why}, expected an engine that has it: {have}; "
                "without --engine it is composed analytically"
            )
        raise InputError(
            f"{flag}: found it beside --engine, expected the own flags of {name or 'the engine'} there "
            "(without --engine techniques are composed analytically)"
        )


def read_engine_config(path: Path) -> dict[str, Any]:
    """A file of engine arguments: a mapping of long flag names, with _ or -, to values. Raises InputError."""
    document = read_yaml(path)
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InputError(f"{path}: found {show(document)}, expected a mapping of engine flags to values")
    return document


def available_memory(text: str | None) -> tuple[int, ...]:
    """Cache bytes of one worker, one size or one a pipeline stage, separated by commas."""
    if text is None:
        return ()
    return tuple(parse_bytes(part, "--available-memory") for part in text.split(","))


def estimate_served(
    loaded: LoadedModel,
    *,
    engine: str,
    gpu: str | None,
    settings: Mapping[str, Any],
    available_bytes: Sequence[int] = (),
    notes: Sequence[str] = (),
    **asked: Any,
) -> ServedEstimate:
    """Estimate one model as `engine` would serve it on `gpu`.

    `settings` are the engine's own flags, `asked` the arguments of `kvplan.estimate` other than the device, `notes`
    warnings of whoever read the flags. The context is the length that the engine plans for. Raises InputError as the
    engine would.
    """
    if gpu is None:
        raise InputError("--gpu: found nothing beside --engine, expected the device to serve on, such as --gpu h100")
    parallel = parallel_from(settings)
    serving = serve(loaded, engine, find(gpu), settings, parallel=parallel, available_bytes=available_bytes)
    base = estimate(loaded, **{**asked, "ctx": serving.engine.max_model_len})
    per_gpu = _needed_per_gpu(loaded, base, parallel.tensor, asked)
    return _joined(base, serving, per_gpu, notes)


def _needed_per_gpu(loaded: LoadedModel, base: Estimate, ranks: int, asked: Mapping[str, Any]) -> int:
    precision = resolve_precision(
        base.dtypes.kv_key, base.dtypes.index, base.dtypes.state, model_dtype=loaded.spec.dtype
    )
    plan = plan_cache(loaded.spec, precision, encoder_tokens=asked.get("encoder_tokens"), ranks=ranks)
    return int(plan.needed_bytes(base.context_tokens))


def _joined(base: Estimate, serving: Serving, per_gpu: int, notes: Sequence[str]) -> ServedEstimate:
    kept = {item.name: getattr(base, item.name) for item in fields(base)}
    kept |= {
        "verdict": verdict(serving, base.model.id),
        "context_source": f"the length {serving.engine.name} plans for",
        "assumptions": tuple(dict.fromkeys((*base.assumptions, *serving.assumptions))),
        "warnings": (*base.warnings, *serving.warnings, *notes),
    }
    return ServedEstimate(
        **kept,
        engine=serving.engine,
        memory=serving.budget,
        feasible=serving.feasible,
        changes=serving.changes,
        engine_command=serving.command,
        needed_bytes_per_gpu=per_gpu,
    )
