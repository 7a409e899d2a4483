"""Where the bytes went: from plain MHA in 16 bits, one technique at a time, to what is stored."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from kvplan.answers.composed import CacheOptions, Composed, composed
from kvplan.answers.records import Dtypes, Model
from kvplan.answers.schema import document_schema
from kvplan.answers.words import warnings_for
from kvplan.cache.techniques.waterfall import Step, waterfall
from kvplan.estimator import dtypes_record, loaded_model, model_record, resolve_context
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel
from kvplan.units import both, tokens


@record
class Stage:
    """The cache of the whole batch after one step.

    `technique` is null for the baseline; `decided_by` says whether the checkpoint, a what-if or a flag brings it.
    The factors are this step's bytes over those of the step before, stored and read apart. `moved_bytes` have left the
    device and are stored still.
    """

    technique: str | None
    title: str
    decided_by: Literal["baseline", "checkpoint", "what-if", "flag"]
    stored_bytes: int
    read_bytes_per_step: int
    attention_flops_per_step: int
    stored_factor: float
    read_factor: float
    moved_bytes: int


@record
class Explanation:
    """The waterfall of one model at one context: `steps` from the baseline to `composition`."""

    schema_version: int
    command: Literal["explain"]
    verdict: str
    model: Model
    context_tokens: int
    context_source: str
    beyond_model_limit: bool
    batch: int
    dtypes: Dtypes
    steps: tuple[Stage, ...]
    composition: Composed
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Explanation.to_dict` returns."""
    return document_schema(Explanation, "kvplan explain")


def explain(
    model: str | ModelSpec | LoadedModel,
    *,
    ctx: int | str | None = None,
    options: CacheOptions | None = None,
    model_dir: Path | None = None,
) -> Explanation:
    """Step from plain MHA in 16 bits down to the cache of `model` at `ctx` tokens under `options`.

    Raises InputError (bad value, unknown name, a combination without meaning) or UnsupportedArchitectureError.
    """
    under = (options or CacheOptions()).on(loaded_model(model, model_dir).spec)
    spec = under.spec
    context, source = resolve_context(spec, ctx)
    composition = under.at(context)
    steps = tuple(_stage(step) for step in waterfall(composition))
    return Explanation(
        schema_version=1,
        command="explain",
        verdict=_verdict(spec, context, composition.batch, steps),
        model=model_record(spec),
        context_tokens=context,
        context_source=source,
        beyond_model_limit=spec.max_context is not None and context > spec.max_context,
        batch=composition.batch,
        dtypes=dtypes_record(composition.precision),
        steps=steps,
        composition=composed(composition),
        assumptions=(
            "the baseline is the same model with one KV head for each query head, a cache in each layer that has one, "
            "no window, no latent, no compression, and 16 bits a value",
            *spec.assumptions,
        ),
        warnings=(*warnings_for(spec, context, composition.plan), *composition.warnings),
    )


def _stage(step: Step) -> Stage:
    return Stage(
        step.technique, step.title, step.kind, step.stored_bytes, step.read_bytes, step.attention_flops,
        float(step.factor), float(step.read_factor), step.moved_bytes,
    )  # fmt: skip


def _verdict(spec: ModelSpec, context: int, batch: int, steps: tuple[Stage, ...]) -> str:
    first, last = steps[0], steps[-1]
    who = f"{tokens(context)} tokens" if batch == 1 else f"{batch:,} x {tokens(context)} tokens"
    text = f"{spec.id} stores {both(last.stored_bytes)} for {who}"
    if last.stored_bytes and first.stored_bytes != last.stored_bytes:
        text += f", {_times(first.stored_bytes, last.stored_bytes)} times less than plain MHA in 16 bits"
    text += f"; a decode step reads {both(last.read_bytes_per_step)}"
    if last.read_bytes_per_step and first.read_bytes_per_step != last.read_bytes_per_step:
        text += f", {_times(first.read_bytes_per_step, last.read_bytes_per_step)} times less"
    return text + "."


def _times(before: int, after: int) -> str:
    ratio = before / after
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
