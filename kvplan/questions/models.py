"""The questions, validated. Every field is bounded, and none of them names a file or an address."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Ranks = Annotated[int, Field(ge=1, le=4096)]
Tokens = Annotated[int, Field(ge=1, le=10**12)] | Annotated[str, Field(max_length=40)]
Flag = bool | int | float | Annotated[str, Field(max_length=2000)]


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelQuestion(_Question):
    """Which model: the name of a known one, or the contents of its config.json."""

    model: Text | None = Field(None, description="A slug, alias or Hugging Face id of a known model.")
    config: dict[str, Any] | None = Field(None, description="A config.json, instead of `model` or beside its name.")
    assume_dense: bool = Field(False, description="Take an unknown architecture in `config` as full attention.")


class CacheFields(_Question):
    """What decides the bytes of a cache besides the model and the context, as options of `kvplan estimate`."""

    batch: Count = Field(1, description="Sequences of that length.")
    kv_cache_dtype: Text = Field("auto", description="auto (16 bits), bf16, fp8, int8, nvfp4, q8_0, kivi2, ...")
    value_cache_dtype: Text | None = Field(None, description="A dtype of V's own. Default: K's.")
    index_dtype: Text = Field("auto", description="Sparse indexer keys: auto, bf16, fp8 or fp4.")
    state_dtype: Text = Field("auto", description="Recurrent state: auto, float32 or bfloat16.")
    skip_layers: list[Annotated[int, Field(ge=0, le=10**6)] | Text] = Field(
        [], max_length=64, description="Layers that stay in 16 bits: numbers, or a kind such as sliding_window."
    )
    encoder_tokens: Tokens | None = Field(None, description="Tokens that cross attention holds.")
    evict: Text | None = Field(None, description="Keep a budget of tokens: snapkv:2048, streamingllm:4+2044, ...")
    sparse_read: Text | None = Field(None, description="Read a budget of tokens a step: quest:page=16,budget=2048.")
    block_size: Tokens | None = Field(None, description="Round each sequence up to blocks of so many tokens.")
    share_prefix: Tokens | None = Field(None, description="Tokens of a prefix that the whole batch shares.")
    offload: Text | None = Field(None, description="Move bytes to another tier: cpu:64GiB, nvme:1TB,bw=7GB/s, ...")
    what_if: list[Text] = Field([], max_length=8, description="As if trained with it: cla=2, kv-heads=64, ...")
    generated: Tokens | None = Field(None, description="How many of the stored tokens were generated.")


class ExplainQuestion(ModelQuestion, CacheFields):
    """Where the bytes of one model's cache went."""

    ctx: Tokens | None = Field(None, description="Stored tokens: 131072, 128k or 1M. Default: the model's limit.")


class EstimateQuestion(ExplainQuestion):
    """How much cache one model needs, and what a device and an engine make of it."""

    drafting: bool = Field(False, description="Count the model's draft (MTP) layers too.")
    gpu: Text | None = Field(None, description="The device that weights and cache are held against.")
    num_gpus: Ranks = Field(1, description="How many of them, as tensor-parallel ranks.")
    engine: Text | None = Field(None, description="Plan as this engine does: vllm, vllm@0.11, sglang, llama.cpp, ...")
    tensor_parallel_size: Ranks | None = Field(None, description="Tensor-parallel ranks. Default: num_gpus.")
    pipeline_parallel_size: Ranks | None = Field(None, description="Pipeline stages.")
    data_parallel_size: Ranks | None = Field(None, description="Data-parallel ranks.")
    decode_context_parallel_size: Ranks | None = Field(None, description="Decode context-parallel ranks.")
    enable_expert_parallel: bool = Field(False, description="Whole experts on ranks.")
    gpu_memory_utilization: float | Text | None = Field(None, description="The engine's memory share, in (0, 1].")
    max_num_seqs: Count | None = Field(None, description="Sequences that run at once.")
    max_num_batched_tokens: Count | None = Field(None, description="Tokens of one scheduled step.")
    available_memory: Text | None = Field(None, description="Cache bytes of one GPU, such as 20GiB; skips the budget.")
    settings: dict[Text, Flag] = Field({}, max_length=64, description="More flags of the engine, by its own names.")


class MatrixQuestion(EstimateQuestion):
    """Sizes of one model over contexts and batches; `ctx` and `batch` are not used."""

    contexts: list[Tokens] = Field(["8k", "32k", "128k"], min_length=1, max_length=16)
    batches: list[Count] = Field([1, 8, 64], min_length=1, max_length=16)


class CompareQuestion(CacheFields):
    """Models and settings side by side."""

    models: list[Text] = Field([], max_length=8, description="Names of known models.")
    config: dict[str, Any] | None = Field(None, description="A config.json, compared after `models`.")
    assume_dense: bool = Field(False, description="Take an unknown architecture in `config` as full attention.")
    contexts: list[Tokens] = Field(["8k", "32k", "128k"], min_length=1, max_length=12)
    vary: list[Text] = Field([], max_length=4, description="Options and values: kv-cache-dtype=bf16,fp8.")
    sort: Text = Field("stored", description="stored, read, flops, model or given.")
    curves: bool = Field(False, description="Also the curves over contexts.")


class AuditQuestion(ModelQuestion):
    """A start-up log of an engine, and what it may not say."""

    log: str = Field(description="What the engine printed while it started.", max_length=2_000_000)
    gpu: Text | None = Field(None, description="The GPU, where the log doesn't name it.")
    engine: Text | None = Field(None, description="The engine and release, such as vllm@0.11.0.")
    settings: dict[Text, Flag] = Field({}, max_length=64, description="Settings that the log lacks.")
    run: Annotated[int, Field(ge=1, le=10**6)] | None = Field(None, description="Which start in the log, from 1.")


class Command(BaseModel):
    """The same question for a terminal."""

    cli: str
