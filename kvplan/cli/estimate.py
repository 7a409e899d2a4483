"""`kvplan estimate`: the analytic answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.cli import engine_options as engines
from kvplan.cli import technique_options as options
from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, complete_gpu, complete_model
from kvplan.cli.estimate_run import Output, Source, Where, plain, served
from kvplan.errors import InputError


def estimate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A known model (slug, alias or Hugging Face id), a config.json, a folder with one, or a .gguf file.",
            autocompletion=complete_model,
        ),
    ] = None,
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
    engine: engines.ENGINE = None,
    tensor_parallel_size: engines.TENSOR = None,
    pipeline_parallel_size: engines.PIPELINE = None,
    data_parallel_size: engines.DATA = None,
    decode_context_parallel_size: engines.DECODE_CONTEXT = None,
    enable_expert_parallel: engines.EXPERT = False,
    gpu_memory_utilization: engines.UTILIZATION = None,
    available_memory: engines.AVAILABLE = None,
    max_num_seqs: engines.SEQUENCES = None,
    max_num_batched_tokens: engines.BATCHED = None,
    engine_config: engines.CONFIG = None,
    command: engines.COMMAND = None,
    matrix: engines.MATRIX = None,
    layouts: engines.LAYOUTS = False,
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
    """How much KV cache a model needs at a context length, and with --engine what that engine makes of it.

    Without --engine the size is the one *needed* by the mathematics: whole model, no engine rounding. With --engine the
    blocks, tokens and concurrency are the engine's own; its flags may be given by their own names. `128k` is 131,072
    tokens here (vLLM's own parser reads `128k` as 128,000, and so does --command). Reads files you name; uses the
    network only with --hub.
    """
    from kvplan.units import parse_tokens

    if assume not in (None, "dense"):
        raise InputError(f"--assume: found {assume!r}, expected dense")
    skipped = options.skip_entries(skip_layers)
    asked: dict[str, Any] = {
        "batch": batch,
        "kv_cache_dtype": options.kv_dtype(kv_cache_dtype, fp8),
        "value_cache_dtype": value_cache_dtype,
        "index_dtype": index_dtype,
        "state_dtype": state_dtype,
        "skip_layers": skipped,
        "encoder_tokens": None if encoder_tokens is None else parse_tokens(encoder_tokens, "--encoder-tokens", low=0),
        "drafting": drafting,
        "what_ifs": what_if or (),
        "generated": options.token_count(generated, "--generated"),
    }
    listed = {"evict": evict, "sparse_read": sparse_read, "share_prefix": share_prefix, "offload": offload}
    own = engines.own_flags(
        context.args, [name for param in context.command.params for name in param.opts], engine or command,
        max_model_len=None if ctx is None else parse_tokens(ctx), kv_cache_dtype=asked["kv_cache_dtype"],
        block_size=block_size, tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size, data_parallel_size=data_parallel_size,
        decode_context_parallel_size=decode_context_parallel_size,
        enable_expert_parallel=enable_expert_parallel or None, gpu_memory_utilization=gpu_memory_utilization,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_dtype_skip_layers=",".join(map(str, skipped)) or None,
    )  # fmt: skip
    source = Source(model, model_dir, hub, assume == "dense")
    if engine is None and command is None:
        _without_engine(own, engine_config, available_memory)
    else:
        where = Where(engine, command, engine_config, gpu, num_gpus, available_memory)
        from kvplan.served import refuse_techniques

        refuse_techniques(engine, {**listed, "techniques": techniques, "what_if": what_if, "generated": generated})
        return served(source, where, own, asked, Output(as_json, explain, matrix, layouts))
    asked["techniques"] = options.technique_list(techniques, **listed, block_size=block_size)
    return plain(
        source, {**asked, "ctx": ctx, "gpu": gpu, "num_gpus": num_gpus}, Output(as_json, explain, matrix, layouts)
    )


_SHARED = ("max_model_len", "kv_cache_dtype", "kv_cache_dtype_skip_layers", "block_size")


def _without_engine(own: dict[str, Any], engine_config: object, available_memory: object) -> None:
    """Refuse an engine's flag that would silently change nothing."""
    given = {**own, "engine_config": engine_config, "available_memory": available_memory}
    for name, value in given.items():
        if value is not None and name not in _SHARED:
            raise InputError(
                f"--{name.replace('_', '-')}: found it without --engine, expected the engine that takes it, "
                "such as --engine vllm"
            )
