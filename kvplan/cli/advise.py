"""`kvplan advise`: which lever to pull, and what goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli import technique_options as options
from kvplan.cli.common import HUB_OPTION, JSON_OPTION, MODEL_ARGUMENT, MODEL_DIR_OPTION, complete_gpu, print_json


def advise(
    model: MODEL_ARGUMENT,
    gpu: Annotated[str, typer.Option(help="The device it runs on.", autocompletion=complete_gpu)],
    goal: Annotated[str, typer.Option(help="capacity, latency, idle-sessions or context.")] = "capacity",
    ctx: options.CTX = None,
    batch: options.BATCH = 1,
    engine: Annotated[
        str, typer.Option(help="vllm, sglang, tensorrt-llm, llama.cpp, ollama, lmdeploy or transformers.")
    ] = "vllm",
    num_gpus: Annotated[int, typer.Option(help="How many devices, as tensor-parallel ranks.")] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="The KV dtype in use now.")] = "auto",
    share_prefix: Annotated[str | None, typer.Option(help="Tokens that all requests have in common.")] = None,
    offload: Annotated[
        str | None,
        typer.Option(help="A tier for idle sessions: cpu:256GiB, nvme:1TB,bw=7GB/s. Default: 64 GiB of host."),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="KV bytes of one GPU, as the engine's log has them. Default: the engine's budget."),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens of one block of the engine's pool.")] = 16,
    record: Annotated[Path | None, typer.Option(help="Write a decision record in Markdown into this file.")] = None,
    model_dir: MODEL_DIR_OPTION = None,
    hub: HUB_OPTION = False,
    as_json: JSON_OPTION = False,
) -> int:
    """Which lever to pull: the constraint now, then what this checkpoint and this engine really have, best gain first.

    Each lever comes with its gain in tokens, milliseconds (a roofline) or sessions, what to test before it ships, and
    how to take it back.
    """
    from kvplan.answers.advise import advise as run
    from kvplan.spec.resolve import resolve_model

    answer = run(
        resolve_model(model, model_dir=model_dir, hub=hub),
        gpu=gpu,
        goal=goal,
        ctx=ctx,
        batch=batch,
        engine=engine,
        num_gpus=num_gpus,
        kv_cache_dtype=kv_cache_dtype,
        share_prefix=share_prefix,
        offload=offload,
        pool=pool,
        block_size=block_size,
    )
    if record is not None:
        from kvplan.report.advise import write_record

        write_record(answer, record)
    if as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.advise import print_advice

        print_advice(answer)
    return answer.exit_code
