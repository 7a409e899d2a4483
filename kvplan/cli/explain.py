"""`kvplan explain`: where the bytes went, one technique at a time."""

from __future__ import annotations

from kvplan.cli import technique_options as options
from kvplan.cli.common import (
    ASSUME_OPTION,
    HUB_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    MODEL_DIR_OPTION,
    PLOT_OPTION,
    assumes_dense,
    print_json,
)


def explain(
    model: MODEL_ARGUMENT,
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
    model_dir: MODEL_DIR_OPTION = None,
    hub: HUB_OPTION = False,
    assume: ASSUME_OPTION = None,
    plot: PLOT_OPTION = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Where the bytes went: from plain MHA in 16 bits down to what is stored, one technique at a time.

    Stored bytes, bytes read in one decode step and attention FLOPs are three columns: what saves one may leave the
    others alone.
    """
    from kvplan.answers.explain import explain as run
    from kvplan.spec.resolve import resolve_model

    answer = run(
        resolve_model(model, model_dir=model_dir, hub=hub, assume_dense=assumes_dense(assume)),
        ctx=ctx,
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
        from kvplan.report.explain import plot_explanation

        plot_explanation(answer, plot)
    if as_json:
        print_json(answer.to_dict())
        return
    from kvplan.report.explain import print_explanation

    print_explanation(answer)
