"""`kvplan compare`: models and settings side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli import technique_options as options
from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, PLOT_OPTION, complete_model, print_json


def compare(
    models: Annotated[
        list[str], typer.Argument(help="Models by name, config.json, folder or .gguf.", autocompletion=complete_model)
    ],
    ctx: Annotated[str, typer.Option("--ctx", "-c", help="Contexts in stored tokens.")] = "8k,32k,128k",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="An option and the values to try: kv-cache-dtype=bf16,fp8,kivi2 or evict=none,snapkv:2048 "
            "(repeat for more)."
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="stored, read or flops (at the longest context, largest first), model or given.")
    ] = "stored",
    batch: options.BATCH = 1,
    kv_cache_dtype: options.KV_CACHE_DTYPE = "auto",
    value_cache_dtype: options.VALUE_CACHE_DTYPE = None,
    fp8: options.FP8 = False,
    index_dtype: options.INDEX_DTYPE = "auto",
    state_dtype: options.STATE_DTYPE = "auto",
    skip_layers: options.SKIP_LAYERS = None,
    evict: options.EVICT = None,
    sparse_read: options.SPARSE_READ = None,
    block_size: options.BLOCK_SIZE = None,
    share_prefix: options.SHARE_PREFIX = None,
    offload: options.OFFLOAD = None,
    what_if: options.WHAT_IF = None,
    techniques: options.TECHNIQUES = None,
    generated: options.GENERATED = None,
    encoder_tokens: options.ENCODER_TOKENS = None,
    model_dir: MODEL_DIR_OPTION = None,
    plot: PLOT_OPTION = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table into this CSV file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table into this Markdown file.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Models and settings side by side, with the ratio to the first.

    Ratios are over the first model under the first setting at the same context.
    """
    from kvplan.answers.compare import compare as run

    answer = run(
        models,
        ctx.split(","),
        vary=vary or (),
        sort=sort,
        curves=plot is not None,
        model_dir=model_dir,
        options=options.cache_options(
            kv_cache_dtype=kv_cache_dtype,
            fp8=fp8,
            value_cache_dtype=value_cache_dtype,
            index_dtype=index_dtype,
            state_dtype=state_dtype,
            skip_layers=skip_layers,
            batch=batch,
            encoder_tokens=encoder_tokens,
            generated=generated,
            what_if=what_if,
            techniques=options.technique_list(
                techniques,
                evict=evict,
                sparse_read=sparse_read,
                block_size=block_size,
                share_prefix=share_prefix,
                offload=offload,
            ),
        ),
    )
    if plot is not None:
        from kvplan.report.compare_plot import plot_comparison

        plot_comparison(answer, plot)
    if csv is not None:
        from kvplan.report.compare import write_csv

        write_csv(answer, csv)
    if markdown is not None:
        from kvplan.report.compare import write_markdown

        write_markdown(answer, markdown)
    if as_json:
        print_json(answer.to_dict())
        return
    from kvplan.report.compare import print_comparison

    print_comparison(answer)
