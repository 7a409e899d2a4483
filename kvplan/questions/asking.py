"""From a question to what the answering functions take: the model, the cache options, the engine's flags."""

from __future__ import annotations

from typing import Any

from kvplan.answers.composed import CacheOptions
from kvplan.engines.native import native_settings
from kvplan.errors import InputError
from kvplan.questions.models import CacheFields, EstimateQuestion
from kvplan.served import available_memory, refuse_techniques, with_ranks
from kvplan.spec.resolve import LoadedModel, registry
from kvplan.units import parse_tokens

TECHNIQUES = ("evict", "sparse_read", "block_size", "share_prefix", "offload")
PARALLEL_OPTIONS = (
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
)
SIZE_OPTIONS = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")
CONFIG_NAME = "config.json"


def find_model(name: str | None, config: dict[str, Any] | None, assume_dense: bool) -> LoadedModel:
    """The known model of a name, or the one that a config.json describes. No file is opened for either.

    Raises InputError for neither and for an unknown name, UnsupportedArchitectureError for a layout that isn't known.
    """
    if config is not None:
        from kvplan.spec.importers.config import import_config

        return LoadedModel(import_config(config, name=name or CONFIG_NAME, assume_dense=assume_dense))
    if name is None or not name.strip():
        raise InputError("model: found nothing, expected the name of a known model or a config.json in `config`")
    return LoadedModel(registry().find(name))


def techniques(fields: CacheFields) -> tuple[dict[str, Any], ...]:
    """The runtime techniques that are asked for, as a list of single options."""
    given = {name: getattr(fields, name) for name in TECHNIQUES}
    return tuple({name.replace("_", "-"): value} for name, value in given.items() if value is not None)


def cache_options(fields: CacheFields) -> CacheOptions:
    """Everything but the context that decides a cache."""
    return CacheOptions(
        kv_cache_dtype=fields.kv_cache_dtype,
        value_cache_dtype=fields.value_cache_dtype,
        index_dtype=fields.index_dtype,
        state_dtype=fields.state_dtype,
        skip_layers=tuple(fields.skip_layers),
        batch=fields.batch,
        encoder_tokens=_tokens(fields.encoder_tokens, "--encoder-tokens"),
        techniques=techniques(fields),
        what_ifs=tuple(fields.what_if),
        generated=_tokens(fields.generated, "--generated") or 0,
    )


def estimate_arguments(question: EstimateQuestion) -> dict[str, Any]:
    """The arguments of `kvplan.estimate` other than the model, the context and the device."""
    options = cache_options(question)
    found = {name: getattr(options, name) for name in options.__record_fields__}  # type: ignore[attr-defined]
    if question.engine is not None:
        refuse_techniques(
            question.engine,
            {name: getattr(question, name) for name in (*TECHNIQUES, "what_if", "generated") if name != "block_size"},
        )
        found.pop("techniques")
    return {**found, "drafting": question.drafting}


def engine_flags(question: EstimateQuestion) -> dict[str, Any]:
    """The flags of the engine that `question` names: the question's fields, then `settings`, which win."""
    assert question.engine is not None
    own: dict[str, Any] = {
        "max_model_len": _tokens(question.ctx, "--ctx"),
        "kv_cache_dtype": question.kv_cache_dtype,
        **{name: getattr(question, name) for name in PARALLEL_OPTIONS},
        "enable_expert_parallel": question.enable_expert_parallel or None,
        **{name: getattr(question, name) for name in SIZE_OPTIONS},
        "kv_cache_dtype_skip_layers": ",".join(map(str, question.skip_layers)) or None,
    }
    own |= {name.lstrip("-").replace("-", "_"): value for name, value in question.settings.items()}
    return with_ranks(native_settings(question.engine, own), question.num_gpus)


def available(question: EstimateQuestion) -> tuple[int, ...]:
    """Cache bytes of one GPU where they are given, one a pipeline stage."""
    return available_memory(question.available_memory)


def _tokens(value: int | str | None, field: str) -> int | None:
    return None if value is None else parse_tokens(value, field)
