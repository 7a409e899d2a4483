"""The question `how much cache does this model need?`, answered: what `kvplan estimate` and `kvplan.estimate` share.

The result classes are the JSON document (schema_version 1): each field is a key of the same name, bytes are integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvplan.answers.composed import Asked, Composed, RankCache, assume, compose, composed, settle
from kvplan.answers.records import Cache, Component, Derivation, Dtypes, Fit, Input, Model, Weights
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import CachePlan, Group, plan_cache
from kvplan.errors import InputError, show
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel, resolve_model
from kvplan.units import MAX_TOKENS, both, parse_tokens, tokens

if TYPE_CHECKING:
    from kvplan.hardware.accelerators import Accelerator

SCHEMA_VERSION = 1
USABLE_SHARE_PERCENT = 90
MAX_BATCH = 10**9

_CONFIDENCE_WORDS = {
    "reconstructed": "was put together from published values, not copied from the checkpoint's own file",
    "class defaults": "comes from class defaults documented for this checkpoint, not from its own file",
    "unverified": "is unverified: no copy of the checkpoint's own file was at hand",
    "assumed": "is assumed: the architecture is unknown and every layer is taken as full attention",
}


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
    model: str | ModelSpec | LoadedModel,
    *,
    ctx: int | str | None = None,
    batch: int = 1,
    kv_cache_dtype: str = "auto",
    value_cache_dtype: str | None = None,
    index_dtype: str = "auto",
    state_dtype: str = "auto",
    skip_layers: Iterable[str | int] = (),
    encoder_tokens: int | None = None,
    drafting: bool = False,
    gpu: str | None = None,
    num_gpus: int = 1,
    techniques: Asked = (),
    what_ifs: Iterable[str] = (),
    generated: int = 0,
    model_dir: Path | None = None,
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
    _check_count(batch, "--batch", MAX_BATCH)
    if techniques or what_ifs or generated:
        if drafting:
            raise InputError(
                "--drafting: found it beside techniques, which leave draft layers out, expected one of both"
            )
        spec, asked = assume(spec, what_ifs), settle(techniques, kv_cache_dtype, skip_layers, batch)
        kv_cache_dtype, skip_layers, batch = asked.kv_cache_dtype, asked.skip_layers, asked.batch
    context, context_source = resolve_context(spec, ctx)
    precision = resolve_precision(
        kv_cache_dtype, index_dtype, state_dtype,
        model_dtype=spec.dtype, value_dtype=value_cache_dtype, skip=tuple(skip_layers),
    )  # fmt: skip
    composition = None if asked is None else compose(spec, precision, asked, context, generated, encoder_tokens)
    if composition is None:
        plan = plan_cache(spec, precision, encoder_tokens=encoder_tokens, drafting=drafting)
    else:
        plan = composition.plan
    weights, weight_notes = weights_of(loaded)
    if what_ifs and weights is not None:
        weight_notes.append("the weights are those of the checkpoint as it is, without the what-if")
    fit: Fit | None = None
    fit_notes: list[str] = []
    if gpu is not None:
        _check_count(num_gpus, "--num-gpus", 100_000)
        rank_plan = plan_cache(spec, precision, encoder_tokens=encoder_tokens, drafting=drafting, ranks=num_gpus)
        held = None if composition is None else RankCache(composition, num_gpus)
        fit, fit_notes = _fit(spec, rank_plan, weights, context, batch, gpu, num_gpus, held)
    cache = _cache(plan, context, batch)
    assumptions = [*_spec_words(spec), *_cache_words(spec, plan, encoder_tokens, drafting), *weight_notes, *fit_notes]
    beyond = spec.max_context is not None and context > spec.max_context
    summary = None if composition is None else composed(composition)
    return Estimate(
        schema_version=SCHEMA_VERSION,
        command="estimate",
        verdict=_verdict(spec, context, batch, precision, cache, fit, summary),
        model=model_record(spec),
        context_tokens=context,
        context_source=context_source,
        beyond_model_limit=beyond,
        batch=batch,
        dtypes=dtypes_record(precision),
        cache=cache,
        weights=weights,
        fit=fit,
        composition=summary,
        assumptions=tuple(assumptions),
        warnings=(*warnings_for(spec, context, plan), *(composition.warnings if composition else ())),
    )


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
    model: str | ModelSpec | LoadedModel,
    contexts: Any,
    *,
    kv_cache_dtype: str = "auto",
    index_dtype: str = "auto",
    state_dtype: str = "auto",
    encoder_tokens: int | None = None,
    model_dir: Path | None = None,
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


def loaded_model(model: str | ModelSpec | LoadedModel, model_dir: Path | None) -> LoadedModel:
    """The model of a name, a file, a spec, or one already loaded."""
    if isinstance(model, LoadedModel):
        return model
    return LoadedModel(model) if isinstance(model, ModelSpec) else resolve_model(model, model_dir=model_dir)


def _check_count(value: int, field: str, high: int) -> None:
    if isinstance(value, bool) or not 1 <= value <= high:
        raise InputError(f"{field}: found {show(value)}, expected a whole number from 1 to {high:,}")


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
        components=tuple(_component(plan.spec, group, context) for group in plan.groups),
    )


def _component(spec: ModelSpec, group: Group, context: int) -> Component:
    part = group.part
    return Component(
        name=f"{group.block}: {part.name}",
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


def weights_of(loaded: LoadedModel) -> tuple[Weights | None, list[str]]:
    """The weights of a model, None where their size is unknown, and what was assumed."""
    from kvplan.memory.weights import weight_bytes

    found = weight_bytes(loaded.spec, tensors=loaded.tensors)
    if found is None:
        return None, ["the size of the weights is unknown: the spec carries no parameter counts"]
    return Weights(found.total_bytes, found.exact, found.source), list(found.assumptions)


def _fit(
    spec: ModelSpec,
    plan: CachePlan,
    weights: Weights | None,
    context: int,
    batch: int,
    gpu: str,
    count: int,
    held: RankCache | None = None,
) -> tuple[Fit, list[str]]:
    from kvplan.hardware.accelerators import find

    device: Accelerator = find(gpu)
    if weights is None:
        raise InputError(
            f"--gpu: found {show(gpu)}, but the weights of {spec.id} are unknown, expected a spec with parameter counts"
        )
    usable = device.memory_bytes * USABLE_SHARE_PERCENT // 100
    per_gpu_weights = -(-weights.bytes // count)
    left = usable - per_gpu_weights
    limit = spec.max_context or MAX_TOKENS
    if held is None:
        per_sequence = plan.needed_bytes(context)
        total = batch * per_sequence
        sequences = max(0, left // per_sequence) if per_sequence else MAX_BATCH
        longest = plan.longest_context(left, limit) if left > 0 else 0
    else:
        per_sequence, total = held.sequence_bytes(context), held.batch_bytes(batch)
        sequences = held.most_sequences(left, MAX_BATCH)
        longest = held.longest_context(left, limit)
    notes = [
        f"{USABLE_SHARE_PERCENT} % of each GPU's memory is taken for weights and KV cache; activations, CUDA graphs "
        "and the engine's own buffers must fit in the rest",
    ]
    if count > 1:
        notes.append(
            f"weights are split evenly over {count} GPUs; KV heads are split, and copied where there are too few; "
            "latents are copied"
        )
    fit = Fit(
        gpu=device.name,
        count=count,
        memory_bytes_per_gpu=device.memory_bytes,
        memory_source=device.memory_source,
        usable_bytes_per_gpu=usable,
        weights_bytes_per_gpu=per_gpu_weights,
        kv_bytes_per_sequence_per_gpu=per_sequence,
        max_full_length_sequences=sequences,
        longest_context_tokens=longest,
        fits=total <= left,
    )
    return fit, notes


def _verdict(
    spec: ModelSpec,
    context: int,
    batch: int,
    precision: Precision,
    cache: Cache,
    fit: Fit | None,
    composition: Composed | None,
) -> str:
    who = "one sequence" if batch == 1 else f"{batch:,} sequences"
    size, length = both(composition.stored_bytes if composition else cache.needed_bytes), tokens(context)
    need = f"{spec.id} needs {size} of KV cache for {who} of {length} tokens ({precision.name})"
    if composition is not None and composition.applied:
        need += f" after {', '.join(composition.applied)}"
    if fit is None:
        return need + "."
    devices = fit.gpu if fit.count == 1 else f"{fit.count} x {fit.gpu}"
    if fit.fits:
        return f"{need}; it fits on {devices} beside the weights."
    return f"{need}; it does NOT fit on {devices} beside the weights."


def _spec_words(spec: ModelSpec) -> list[str]:
    words = _CONFIDENCE_WORDS.get(spec.provenance.confidence)
    found = [f"the spec of {spec.id} {words}"] if words else []
    return found + list(spec.assumptions)


def _cache_words(spec: ModelSpec, plan: CachePlan, encoder_tokens: int | None, drafting: bool) -> list[str]:
    found = ["size is *needed*: whole model, no page rounding, no tokens in flight; an engine reserves more"]
    if spec.dtype == "float32" and plan.precision.key.name == "bf16":
        found.append("the checkpoint is float32; engines serve it, and its cache, in 16 bits")
    if spec.draft_layers and not drafting:
        found.append(f"{sum(spec.draft_counts.values())} draft (MTP) layer(s) are left out: drafting is off")
    if any(group.part.role == "cross" for group in plan.groups) and plan.cross_bytes == 0:
        found.append("cross attention holds no encoder tokens: give --encoder-tokens to count them")
    return found


def warnings_for(spec: ModelSpec, context: int, plan: CachePlan) -> list[str]:
    """What must be known about this context and these dtypes."""
    found = []
    if spec.max_context is not None and context > spec.max_context:
        found.append(
            f"{tokens(context)} tokens are beyond the {tokens(spec.max_context or 0)} that {spec.id} declares: "
            "arithmetic only"
        )
    return found + plan.kept_reasons()
