"""`kvplan plan`: from a workload to hardware."""

from __future__ import annotations

from pathlib import Path

from kvplan.cli import plan_options as options
from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, PLOT_OPTION, print_json


def plan(
    what: options.WHAT = None,
    fit: options.FIT = None,
    users: options.USERS = None,
    think: options.THINK = None,
    rate: options.RATE = None,
    ctx: options.CTX = None,
    prompt: options.PROMPT = None,
    answer: options.ANSWER = None,
    cv: options.CV = None,
    shared_prefix: options.SHARED_PREFIX = None,
    ttft: options.TTFT = None,
    tpot: options.TPOT = None,
    e2e: options.E2E = None,
    quantile: options.QUANTILE = None,
    max_cost: options.MAX_COST = None,
    headroom: options.HEADROOM = None,
    redundancy: options.REDUNDANCY = None,
    forbid: options.FORBID = None,
    gpus: options.GPUS = None,
    prices: options.PRICES = None,
    max_gpus: options.MAX_GPUS = None,
    engine: options.ENGINE = None,
    tensor: options.TENSOR = None,
    pipeline: options.PIPELINE = None,
    decode_context: options.DECODE_CONTEXT = None,
    data: options.DATA = None,
    expert: options.EXPERT = False,
    kv_cache_dtype: options.KV_CACHE_DTYPE = None,
    batched: options.BATCHED = None,
    seqs: options.SEQS = None,
    finalists: options.FINALISTS = None,
    simulations: options.SIMULATIONS = None,
    seed: options.SEED = None,
    model_dir: MODEL_DIR_OPTION = None,
    plot: PLOT_OPTION = None,
    record: options.RECORD = None,
    scenarios: options.SCENARIOS = None,
    as_json: JSON_OPTION = False,
) -> int:
    """Workload and limits in, ranked configurations out: GPUs, cost, capacity, latency, what binds, and why not others.

    Without an answer the exit code is 1 and the nearest configurations are shown.
    """
    if fit is not None:
        return _fit(what, fit, engine, kv_cache_dtype, gpus, model_dir, as_json)
    from kvplan.cli.plan_run import Output, run
    from kvplan.planner.flags import Flags

    flags = Flags(
        users=users, think=think, rate=rate, ctx=ctx, prompt=prompt, answer=answer, cv=cv, shared_prefix=shared_prefix,
        ttft=ttft, tpot=tpot, e2e=e2e, quantile=quantile, max_cost=max_cost, headroom=headroom, redundancy=redundancy,
        forbid=forbid, gpus=gpus, max_gpus=max_gpus, engine=engine, tensor=tensor, pipeline=pipeline,
        kv_cache_dtype=kv_cache_dtype, batched=batched, seqs=seqs, finalists=finalists, simulations=simulations,
        seed=seed, decode_context=decode_context, data=data, expert=expert or None,
    )  # fmt: skip
    return run(what, flags, prices, model_dir, Output(as_json, plot, record, scenarios))


def _fit(
    model: str | None, question: str, engine: str | None, dtype: str | None, gpus: str | None, model_dir: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    from kvplan.errors import InputError
    from kvplan.planner.fit import answer_fit
    from kvplan.spec.resolve import resolve_model

    if model is None:
        raise InputError("MODEL: found nothing beside --fit, expected the model that is to fit")
    answer = answer_fit(
        resolve_model(model, model_dir=model_dir), question, engine=engine, kv_cache_dtype=dtype or "auto",
        gpus=None if gpus is None else tuple(gpus.split(",")),
    )  # fmt: skip
    if as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.plan import print_fit

        print_fit(answer)
    return answer.exit_code
