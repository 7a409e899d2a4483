"""`kvplan plan`: from a workload to hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, PLOT_OPTION, complete_gpu, print_json

WORK = "Workload"
LIMITS = "Limits"
SPACE = "Search"


def plan(
    what: Annotated[
        str | None, typer.Argument(help="A model, several with commas, or a plan file (.yaml); see docs/schemas.")
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            help='One question: "largest context for 64 users on 2x h100", "most users at 128k on h200", "smallest gpu '
            'for 8 users at 32k".'
        ),
    ] = None,
    users: Annotated[int | None, typer.Option(help="Users of a closed loop.", rich_help_panel=WORK)] = None,
    think: Annotated[
        str | None, typer.Option(help="Mean time between an answer and the next question.", rich_help_panel=WORK)
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, Poisson.", rich_help_panel=WORK)] = None,
    ctx: Annotated[
        str | None, typer.Option("--ctx", "-c", help="Prompt and answer together.", rich_help_panel=WORK)
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Mean prompt tokens.", rich_help_panel=WORK)] = None,
    answer: Annotated[str | None, typer.Option(help="Mean answer tokens. Default: 512.", rich_help_panel=WORK)] = None,
    cv: Annotated[
        float | None, typer.Option(help="Spread of the lengths: deviation over mean.", rich_help_panel=WORK)
    ] = None,
    shared_prefix: Annotated[
        str | None, typer.Option(help="Tokens that all prompts begin with.", rich_help_panel=WORK)
    ] = None,
    ttft: Annotated[str | None, typer.Option(help="Time to first token, at most.", rich_help_panel=LIMITS)] = None,
    tpot: Annotated[str | None, typer.Option(help="Time per output token, at most.", rich_help_panel=LIMITS)] = None,
    e2e: Annotated[str | None, typer.Option(help="Time of a whole answer, at most.", rich_help_panel=LIMITS)] = None,
    quantile: Annotated[
        str | None, typer.Option(help="Of the limits: p50, p90 or p99.", rich_help_panel=LIMITS)
    ] = None,
    max_cost: Annotated[float | None, typer.Option(help="Cost an hour, at most.", rich_help_panel=LIMITS)] = None,
    headroom: Annotated[
        float | None, typer.Option(help="Plan for this much more: 0.2 is a fifth.", rich_help_panel=LIMITS)
    ] = None,
    redundancy: Annotated[
        str | None, typer.Option(help="none, or n-1: a machine may be lost.", rich_help_panel=LIMITS)
    ] = None,
    forbid: Annotated[
        str | None,
        typer.Option(
            help="4-bit, 8-bit-kv, quantized-weights, eviction, prefix-caching, multi-node, ... (commas).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="Devices to consider. Default: all with a price.", autocompletion=complete_gpu, rich_help_panel=SPACE
        ),
    ] = None,
    prices: Annotated[Path | None, typer.Option(help="Your price file.", rich_help_panel=SPACE)] = None,
    max_gpus: Annotated[int | None, typer.Option(help="Devices, at most.", rich_help_panel=SPACE)] = None,
    engine: Annotated[str | None, typer.Option(help="Engines to consider.", rich_help_panel=SPACE)] = None,
    tensor: Annotated[
        str | None, typer.Option("--tensor-parallel-size", "-tp", "--tp", help="Sizes.", rich_help_panel=SPACE)
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline-parallel-size", "-pp", "--pp", help="Sizes.", rich_help_panel=SPACE)
    ] = None,
    decode_context: Annotated[
        str | None,
        typer.Option("--decode-context-parallel-size", "-dcp", "--dcp", help="Sizes.", rich_help_panel=SPACE),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data-parallel-size", "-dp", "--dp", help="Ranks that share experts.", rich_help_panel=SPACE),
    ] = None,
    expert: Annotated[
        bool, typer.Option("--enable-expert-parallel", help="Try whole experts on ranks.", rich_help_panel=SPACE)
    ] = False,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="KV dtypes to try.", rich_help_panel=SPACE)] = None,
    batched: Annotated[
        str | None, typer.Option("--max-num-batched-tokens", help="Budgets to try.", rich_help_panel=SPACE)
    ] = None,
    seqs: Annotated[str | None, typer.Option("--max-num-seqs", help="Sizes to try.", rich_help_panel=SPACE)] = None,
    finalists: Annotated[int | None, typer.Option(help="Kinds of hardware to simulate.", rich_help_panel=SPACE)] = None,
    simulations: Annotated[int | None, typer.Option(help="Runs, at most.", rich_help_panel=SPACE)] = None,
    seed: Annotated[int | None, typer.Option(help="Of the simulations.", rich_help_panel=SPACE)] = None,
    model_dir: MODEL_DIR_OPTION = None,
    plot: PLOT_OPTION = None,
    record: Annotated[Path | None, typer.Option(help="Write a decision record in Markdown.")] = None,
    scenarios: Annotated[
        Path | None, typer.Option(help="Write the finalists' scenarios into this folder, for `kvplan simulate`.")
    ] = None,
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
