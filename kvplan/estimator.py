"""The question `how much cache does this model need?`, answered: what `kvplan estimate` and `kvplan.estimate` share.

The result classes are the JSON document (schema_version 1): each field is a key of the same name, bytes are integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from kvplan.answers.composed import Asked, Composed, RankCache, assume, compose, composed, settle, split_what_ifs
from kvplan.answers.fit import MAX_BATCH, fit_on, weights_of
from kvplan.answers.records import Cache, Component, Derivation, Dtypes, Fit, Input, Model, Weights
from kvplan.answers.words import (
    Options,
    cache_words,
    component_names,
    float32_once,
    spec_words,
    verdict,
    warnings_for,
    without_effect,
)
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import CachePlan, Group, plan_cache
from kvplan.errors import InputError, show
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel, resolve_model
from kvplan.units import MAX_TOKENS, parse_tokens, tokens, whole

if TYPE_CHECKING:
    from kvplan.cache.techniques.compose import Composition

SCHEMA_VERSION = 1
MAX_GPUS = 100_000


@record
class Estimate:
    """The whole answer. `exit_code` is 0 when it fits or no GPU was asked about, 1 when it does not fit.

    `composition` is the cache after the techniques asked for, None without any; `cache` then has their entries.
    """

    schema_version: int
    command: Literal["estimate"]
    verdict: str
    model: Model
    context_tokens: int
    context_source: str
    beyond_model_limit: bool
    batch: int
    dtypes: Dtypes
    cache: Cache
    weights: Weights | None
    fit: Fit | None
    composition: Composed | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.fit is not None and not self.fit.fits else 0

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Estimate.to_dict` returns."""
    from kvplan.answers.schema import document_schema

    return document_schema(Estimate, "kvplan estimate")


def estimate(
    model: str | PathLike[str] | ModelSpec | LoadedModel,
    *,
    ctx: int | str | None = None,
    batch: int = 1,
    kv_cache_dtype: str = "auto",
    value_cache_dtype: str | None = None,
    index_dtype: str = "auto",
    state_dtype: str = "auto",
    skip_layers: Iterable[str | int] = (),
    encoder_tokens: int | str | None = None,
    drafting: bool = False,
    gpu: str | None = None,
    num_gpus: int = 1,
    techniques: Asked = (),
    what_ifs: Iterable[str] = (),
    generated: int = 0,
    model_dir: str | PathLike[str] | None = None,
) -> Estimate:
    """Estimate the KV cache of `batch` sequences of `ctx` stored tokens each.

    `ctx` takes 131072 or "128k" (131,072); None means the model's own limit. Sizes are exact integers of bytes. With
    `gpu`, weights and cache are held against that device's memory. `techniques` are runtime techniques, such as
    `[{"evict": "snapkv:2048"}]`, `what_ifs` architectural ones, such as `["cla=2"]`; the last `generated` tokens of
    the context were generated. Raises InputError (bad value, unknown name, a combination without meaning) or
    UnsupportedArchitectureError.
    """
    loaded = loaded_model(model, model_dir)
    spec, asked = loaded.spec, None
    batch, num_gpus = whole(batch, "--batch", 1, MAX_BATCH), whole(num_gpus, "--num-gpus", 1, MAX_GPUS)
    generated = whole(generated, "--generated", 0, MAX_TOKENS)
    skip, what_ifs = _listed(skip_layers, "--kv-cache-dtype-skip-layers"), _listed(what_ifs, "--what-if")
    techniques, what_ifs = split_what_ifs(techniques, what_ifs)
    encoder = None if encoder_tokens is None else parse_tokens(encoder_tokens, "--encoder-tokens", low=0)
    if not isinstance(drafting, bool):
        raise InputError(f"--drafting: found {show(drafting)}, expected true or false")
    if techniques or what_ifs or generated:
        if drafting:
            raise InputError(
                "--drafting: found it beside techniques, which leave draft layers out, expected one of both"
            )
        spec, asked = assume(spec, what_ifs), settle(techniques, kv_cache_dtype, skip, batch)
        kv_cache_dtype, skip, batch = asked.kv_cache_dtype, asked.skip_layers, asked.batch
    context, context_source = resolve_context(spec, ctx)
    precision = resolve_precision(
        kv_cache_dtype, index_dtype, state_dtype, model_dtype=spec.dtype, value_dtype=value_cache_dtype, skip=skip
    )
    composition = None if asked is None else compose(spec, precision, asked, context, generated, encoder)
    if composition is None:
        plan = plan_cache(spec, precision, encoder_tokens=encoder, drafting=drafting)
    else:
        plan = composition.plan
    weights, weight_notes = weights_of(loaded, drafting)
    if what_ifs and weights is not None:
        weight_notes.append("the weights are those of the checkpoint as it is, without the what-if")
    fit, device, fit_notes = _fit(
        spec, precision, weights, context, batch, gpu, num_gpus, encoder, drafting, composition
    )
    cache = _cache(plan, context, batch)
    given = Options(index_dtype, state_dtype, value_cache_dtype, skip, encoder, drafting, gpu, num_gpus)
    assumptions = [
        *spec_words(spec), *cache_words(spec, plan, drafting), *weight_notes, *fit_notes, *loaded.notes,
        *without_effect(spec, plan, given),
    ]  # fmt: skip
    warnings = [*warnings_for(spec, context, plan), *(composition.warnings if composition else ())]
    warnings += loaded.tensors.warnings if loaded.tensors is not None else ()
    if device is not None and fit is None:
        warnings.append(f"whether it fits on {device} is unknown, since the size of the weights is")
    summary = None if composition is None else composed(composition)
    return Estimate(
        schema_version=SCHEMA_VERSION,
        command="estimate",
        verdict=verdict(plan, context, batch, cache, summary, fit, device if fit is None else None),
        model=model_record(spec),
        context_tokens=context,
        context_source=context_source,
        beyond_model_limit=spec.max_context is not None and context > spec.max_context,
        batch=batch,
        dtypes=dtypes_record(precision),
        cache=cache,
        weights=weights,
        fit=fit,
        composition=summary,
        assumptions=tuple(float32_once(spec, assumptions)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _listed(value: Any, field: str) -> tuple[Any, ...]:
    """A list, tuple or set of entries; a lone string is one entry that someone forgot the list around."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{field}: found {show(value)}, expected a list")
    return tuple(value)


def _fit(
    spec: ModelSpec, precision: Precision, weights: Weights | None, context: int, batch: int, gpu: str | None,
    count: int, encoder: int | None, drafting: bool, composition: Composition | None,
) -> tuple[Fit | None, str | None, list[str]]:  # fmt: skip
    """The fit, the name of the device, and what was assumed. The fit is None without a device or without weights."""
    if gpu is None:
        return None, None, []
    from kvplan.hardware.accelerators import find

    if not isinstance(gpu, str):
        raise InputError(f"--gpu: found {show(gpu)}, expected a name of `kvplan gpus list`")
    device = find(gpu)
    if weights is None:
        return None, device.name, []
    plan = plan_cache(spec, precision, encoder_tokens=encoder, drafting=drafting, ranks=count)
    held = None if composition is None else RankCache(composition, count)
    fit, notes = fit_on(device, count, plan, weights, context, batch, held)
    return fit, device.name, notes


def model_record(spec: ModelSpec) -> Model:
    """What an answer says about the model it is for."""
    return Model(
        spec.id, spec.hf_ids, spec.architecture, spec.model_type, spec.dtype, spec.max_context,
        spec.provenance.confidence, spec.provenance.source,
    )  # fmt: skip


def dtypes_record(precision: Precision) -> Dtypes:
    """What an answer says about the dtypes in force."""
    return Dtypes(precision.key.name, precision.value.name, precision.index, precision.state)


def curve(
    model: str | PathLike[str] | ModelSpec | LoadedModel,
    contexts: Any,
    *,
    kv_cache_dtype: str = "auto",
    index_dtype: str = "auto",
    state_dtype: str = "auto",
    encoder_tokens: int | None = None,
    model_dir: str | PathLike[str] | None = None,
) -> Any:
    """Needed bytes of one sequence at each of `contexts`, a numpy array of integers; returns one of the same shape.

    Raises InputError for a context below 1 or past 10^12 tokens.
    """
    import numpy

    spec = loaded_model(model, model_dir).spec
    lengths = numpy.asarray(contexts)
    if lengths.dtype.kind not in "iu" or (
        lengths.size and not 1 <= int(lengths.min()) <= int(lengths.max()) <= MAX_TOKENS
    ):
        raise InputError("contexts: found something else than whole numbers from 1 to 10^12, expected token counts")
    precision = resolve_precision(kv_cache_dtype, index_dtype, state_dtype, model_dtype=spec.dtype)
    return plan_cache(spec, precision, encoder_tokens=encoder_tokens).needed_bytes(lengths.astype(numpy.int64))


def loaded_model(
    model: str | PathLike[str] | ModelSpec | LoadedModel, model_dir: str | PathLike[str] | None
) -> LoadedModel:
    """The model of a name, a file, a spec, or one already loaded."""
    if isinstance(model, LoadedModel):
        return model
    return LoadedModel(model) if isinstance(model, ModelSpec) else resolve_model(model, model_dir=model_dir)


def resolve_context(spec: ModelSpec, ctx: int | str | None) -> tuple[int, str]:
    """The context in tokens and where it comes from. Raises InputError without any."""
    if ctx is not None:
        return parse_tokens(ctx), "--ctx"
    if spec.max_context is None:
        raise InputError(f"--ctx: found nothing and {spec.id} declares no limit, expected a context such as --ctx 32k")
    return spec.max_context, "the model's limit, no --ctx given"


def _cache(plan: CachePlan, context: int, batch: int) -> Cache:
    sequence = plan.needed_bytes(context)
    return Cache(
        size="needed",
        needed_bytes=batch * sequence,
        needed_bytes_per_sequence=sequence,
        growing_bytes=batch * plan.growing_bytes(context),
        state_bytes=batch * plan.state_bytes,
        cross_bytes=batch * plan.cross_bytes,
        bytes_per_token_marginal=int(plan.marginal_bytes(context)),
        read_bytes_per_step=batch * plan.read_bytes(context),
        growing_layers=plan.growing_layers(context),
        total_layers=plan.total_layers,
        components=tuple(
            _component(plan.spec, group, name, context)
            for group, name in zip(plan.groups, component_names(plan), strict=True)
        ),
    )


def _component(spec: ModelSpec, group: Group, name: str, context: int) -> Component:
    part = group.part
    return Component(
        name=name,
        kind=group.kind,
        part=part.role,
        dtype=part.dtype,
        layers=group.owners,
        reading_layers=group.readers,
        entries=part.stored.count(context) if group.owners else 0,
        entries_read=part.read.count(context),
        bytes_per_token=part.entry_bytes if part.role != "state" else 0,
        bytes=group.stored_bytes(context),
        read_bytes=group.read_bytes(context),
        derivation=Derivation(group.formula(context), _inputs(spec, group, context)),
    )


def _inputs(spec: ModelSpec, group: Group, context: int) -> tuple[Input, ...]:
    """Where the numbers of one component's formula come from."""
    origin = f"model spec {spec.id} ({spec.provenance.confidence}): {spec.provenance.source}"
    part = group.part
    found = [Input("layers", str(group.owners), f"{origin}; blocks.{group.block}")]
    if part.role == "growing":
        found.append(Input("tokens", tokens(context), "context asked for"))
    found.append(Input("geometry", part.entry_formula, f"{origin}; blocks.{group.block}"))
    found.append(Input("dtype", part.dtype, part.kept or part.dtype_source))
    return tuple(found)
