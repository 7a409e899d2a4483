"""`kvplan estimate`: the analytic answer."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli import technique_options as options
from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, complete_gpu, complete_model, print_json
from kvplan.errors import InputError


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help="A known model (slug, alias or Hugging Face id), a config.json, a folder with one, or a .gguf file.",
            autocompletion=complete_model,
        ),
    ],
    ctx: options.CTX = None,
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
    drafting: Annotated[bool, typer.Option("--drafting", help="Count the model's draft (MTP) layers too.")] = False,
    gpu: Annotated[
        str | None, typer.Option(help="Hold weights and cache against this device.", autocompletion=complete_gpu)
    ] = None,
    num_gpus: Annotated[int, typer.Option(help="How many of them, as tensor-parallel ranks.")] = 1,
    model_dir: MODEL_DIR_OPTION = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Fetch MODEL's config from the Hugging Face hub (HF_ENDPOINT, HF_TOKEN).")
    ] = False,
    assume: Annotated[
        str | None, typer.Option(help="dense: take an unknown architecture as full attention on every layer.")
    ] = None,
    as_json: JSON_OPTION = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show each number's derivation and source.")] = False,
) -> int:
    """How much KV cache a model needs at a context length.

    The size is the one *needed* by the mathematics: whole model, no engine rounding. `128k` is 131,072 tokens here
    (vLLM's own parser reads `128k` as 128,000). Reads files you name; uses the network only with --hub.
    """
    from kvplan.estimator import estimate as run
    from kvplan.spec.resolve import resolve_model
    from kvplan.units import parse_tokens

    if assume not in (None, "dense"):
        raise InputError(f"--assume: found {assume!r}, expected dense")
    answer = run(
        resolve_model(model, model_dir=model_dir, hub=hub, assume_dense=assume == "dense"),
        ctx=ctx,
        batch=batch,
        kv_cache_dtype=options.kv_dtype(kv_cache_dtype, fp8),
        value_cache_dtype=value_cache_dtype,
        index_dtype=index_dtype,
        state_dtype=state_dtype,
        skip_layers=options.skip_entries(skip_layers),
        encoder_tokens=None if encoder_tokens is None else parse_tokens(encoder_tokens, "--encoder-tokens"),
        drafting=drafting,
        gpu=gpu,
        num_gpus=num_gpus,
        techniques=options.technique_list(
            techniques,
            evict=evict,
            sparse_read=sparse_read,
            block_size=block_size,
            share_prefix=share_prefix,
            offload=offload,
        ),
        what_ifs=what_if or (),
        generated=options.token_count(generated, "--generated"),
    )
    if as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.estimate import print_estimate

        print_estimate(answer, explain=explain)
    return answer.exit_code
