"""The command line's options as the plan file they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import InputError, show
from kvplan.planner.documents import check_document
from kvplan.planner.request import PlanRequest
from kvplan.record import record
from kvplan.units import parse_seconds, parse_tokens

ANSWER = 512


@record
class Flags:
    """What was given; None is not given."""

    users: int | None = None
    think: str | None = None
    rate: float | None = None
    ctx: str | None = None
    prompt: str | None = None
    answer: str | None = None
    cv: float | None = None
    shared_prefix: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    e2e: str | None = None
    quantile: str | None = None
    max_cost: float | None = None
    headroom: float | None = None
    redundancy: str | None = None
    forbid: str | None = None
    gpus: str | None = None
    max_gpus: int | None = None
    engine: str | None = None
    tensor: str | None = None
    pipeline: str | None = None
    kv_cache_dtype: str | None = None
    batched: str | None = None
    seqs: str | None = None
    finalists: int | None = None
    simulations: int | None = None
    seed: int | None = None
    decode_context: str | None = None
    data: str | None = None
    expert: bool | None = None


def request_of(flags: Flags, models: str | None, base: Mapping[str, Any] | None, name: str) -> PlanRequest:
    """The request of a plan file (`base`) with the options over it, or of options alone. Raises InputError."""
    document: dict[str, Any] = {} if base is None else dict(base)
    if models is not None:
        document["models"] = models.split(",")
    elif "models" not in document:
        raise InputError("plan: found no model, expected a model or a plan file such as `kvplan plan llama-3.1-8b ...`")
    workload = _workload(flags)
    if workload is not None:
        document["workload"] = workload
    if "workload" not in document:
        raise InputError("plan: found no workload, expected --users or --rate, and --ctx or --prompt")
    _put(document, "slo", ttft=flags.ttft, tpot=flags.tpot, e2e=flags.e2e, quantile=flags.quantile)
    _put(
        document, "search", tensor_parallel=_sizes(flags.tensor, "--tensor-parallel-size"),
        pipeline_parallel=_sizes(flags.pipeline, "--pipeline-parallel-size"),
        data_parallel=_sizes(flags.data, "--data-parallel-size"),
        decode_context_parallel=_sizes(flags.decode_context, "--decode-context-parallel-size"),
        expert_parallel=flags.expert, kv_cache_dtypes=_words(flags.kv_cache_dtype),
        max_num_batched_tokens=_sizes(flags.batched, "--max-num-batched-tokens"),
        max_num_seqs=_sizes(flags.seqs, "--max-num-seqs"),
    )  # fmt: skip
    plain = {
        "max_cost_per_hour": flags.max_cost, "headroom": flags.headroom, "redundancy": flags.redundancy,
        "forbid": _words(flags.forbid), "gpus": _words(flags.gpus), "max_gpus": flags.max_gpus,
        "engines": _words(flags.engine), "finalists": flags.finalists, "simulations": flags.simulations,
        "seed": flags.seed,
    }  # fmt: skip
    document |= {key: value for key, value in plain.items() if value is not None}
    return check_document(document, PlanRequest, name)


def _put(document: dict[str, Any], part: str, **values: Any) -> None:
    given = {key: value for key, value in values.items() if value is not None}
    if given:
        document[part] = {**document.get(part, {}), **given}


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _sizes(text: str | None, field: str) -> list[int] | None:
    words = _words(text)
    if words is None:
        return None
    for word in words:
        if not word.isdecimal() or len(word) > 9:
            raise InputError(f"{field}: found {show(word)}, expected whole numbers with commas such as 1,2,4")
    return [int(word) for word in words]


def _workload(flags: Flags) -> dict[str, Any] | None:
    """The workload of the options; None where none of them was given."""
    shape = (flags.ctx, flags.prompt, flags.answer, flags.cv, flags.shared_prefix, flags.think)
    if flags.users is None and flags.rate is None:
        if any(value is not None for value in shape):
            raise InputError("plan: found lengths without a demand, expected --users or --rate beside them")
        return None
    if flags.users is not None and flags.rate is not None:
        raise InputError("plan: found --users and --rate, expected one of them")
    if flags.rate is not None and flags.think is not None:
        raise InputError("--think: found it beside --rate, expected it with --users")
    arrivals: dict[str, Any] = {"kind": "poisson", "rate": flags.rate}
    if flags.users is not None:
        arrivals = {"kind": "closed", "users": flags.users}
        if flags.think is not None:
            arrivals["think"] = {"kind": "exponential", "mean": parse_seconds(flags.think, "--think")}
    prompt, answer = _lengths(flags)
    workload: dict[str, Any] = {
        "arrivals": arrivals,
        "prompt": _law(prompt, flags.cv, flags.ctx, answer),
        "output": _law(answer, flags.cv, None, 0),
    }
    if flags.shared_prefix is not None:
        shared = parse_tokens(flags.shared_prefix, "--shared-prefix")
        if shared >= prompt:
            raise InputError(f"--shared-prefix: found {shared:,} tokens of a prompt of {prompt:,}, expected fewer")
        workload["shared_prefix"] = {"tokens": shared}
        workload["prompt"] = _law(prompt - shared, flags.cv, flags.ctx, answer + shared)
    return workload


def _lengths(flags: Flags) -> tuple[int, int]:
    answer = ANSWER if flags.answer is None else parse_tokens(flags.answer, "--answer")
    if flags.prompt is not None and flags.ctx is not None and flags.cv is None:
        raise InputError("plan: found --ctx and --prompt without --cv, expected one of them, or a spread between them")
    if flags.prompt is not None:
        return parse_tokens(flags.prompt, "--prompt"), answer
    if flags.ctx is None:
        raise InputError("plan: found no length, expected --ctx (prompt and answer together) or --prompt")
    context = parse_tokens(flags.ctx, "--ctx")
    if context <= answer:
        raise InputError(f"--ctx: found {context:,} tokens, expected more than the answer's {answer:,} (--answer)")
    return context - answer, answer


def _law(mean: int, cv: float | None, most: str | None, less: int) -> Any:
    if cv is None:
        return mean
    law: dict[str, Any] = {"kind": "lognormal", "mean": mean, "cv": cv, "most": 8 * mean}
    if most is not None:
        law["most"] = max(1, parse_tokens(most, "--ctx") - less)
    return law
