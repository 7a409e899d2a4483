"""vLLM's flags: spellings, versions, defaults, and one sentence for each that can't work."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.registry import find_engine
from kvplan.engines.vllm import VLLM, parallelism
from kvplan.engines.vllm.grouping import least_padding
from kvplan.engines.vllm.resolve import split_layers
from kvplan.engines.vllm.settings import human_integer
from kvplan.errors import InputError, KvplanError
from kvplan.spec.layers import (
    CompressedSparse,
    CrossAttention,
    FullAttention,
    GatedDelta,
    Indexer,
    LatentAttention,
    Lightning,
    Parallel,
    Rwkv,
    SharedCache,
    SlidingWindow,
)
from kvplan.spec.model import ModelSpec, Provenance

GIB = 1 << 30
H200 = Device("NVIDIA H200", 141 * GIB, (9, 0))
L4 = Device("NVIDIA L4", 22 * GIB, (8, 9))
A100 = Device("NVIDIA A100-SXM4-80GB", 80 * GIB, (8, 0))
B200 = Device("NVIDIA B200", 180 * GIB, (10, 0))


def spec(blocks: dict[str, Any], layers: tuple[str, ...], **fields: Any) -> ModelSpec:
    values: dict[str, Any] = {"max_context": 32768, **fields}
    return ModelSpec("m", "m", "bfloat16", blocks, layers, Provenance("test", "verbatim"), **values)


LLAMA_8B = spec({"attention": FullAttention(32, 8, 128)}, ("32 x attention",), max_context=131072)
DEEPSEEK_V3 = spec({"mla": LatentAttention(128, 512, 64)}, ("61 x mla",), max_context=163840)
MISTRAL = spec({"local": SlidingWindow(32, 8, 128, 4096)}, ("32 x local",))
HYBRID = ModelSpec(
    "next", "qwen3_next", "bfloat16",
    {"linear": GatedDelta(16, 128, 32, 128, 4), "attention": FullAttention(16, 2, 256)},
    ("36 x linear", "12 x attention"), Provenance("test", "verbatim"), max_context=262144,
)  # fmt: skip


V4 = spec({"csa": CompressedSparse(8, 512, 64, 128, 4, True)}, ("4 x csa",))
SHARED = spec({"own": FullAttention(8, 8, 64), "borrow": SharedCache("own")}, ("2 x own", "2 x borrow"))


def plan(
    model: ModelSpec, settings: dict[str, Any] | None = None, *, version: str | None = None, device: Device = H200,
    available: int = 40 * GIB, **ranks: int,
) -> EngineAnswer:  # fmt: skip
    return VLLM.plan(model, settings or {}, Parallelism(**ranks), [available], device, version)


def test_flags_in_any_spelling_are_one() -> None:
    spellings: list[dict[str, Any]] = [
        {"max_model_len": 4096, "enable_prefix_caching": False},
        {"--max-model-len": "4096", "--no-enable-prefix-caching": True},
        {"max-model-len": "4096", "enable-prefix-caching": "false"},
    ]
    answers = [plan(LLAMA_8B, flags) for flags in spellings]
    assert all(answer.max_model_len == 4096 for answer in answers)
    assert all(answer.setting("enable_prefix_caching") is False for answer in answers)


@pytest.mark.parametrize(
    ("text", "value"),
    [("128k", 128_000), ("128K", 131_072), ("25.6k", 25_600), ("1M", 1 << 20), ("32768", 32768), ("2g", 2 * 10**9)],
)
def test_integers_with_vllm_suffixes(text: str, value: int) -> None:
    # vllm/engine/arg_utils.py human_readable_int: small letters are decimal, capitals binary.
    assert human_integer(text, "--max-model-len") == value


def test_ranks_from_flags() -> None:
    assert parallelism({"-tp": "8", "pipeline-parallel-size": 2, "enable_expert_parallel": True}) == Parallelism(
        8, 2, 1, True, 1
    )


@pytest.mark.parametrize(
    ("device", "context", "tokens", "seqs"),
    [
        (L4, "server", 2048, 256), (A100, "server", 2048, 256), (H200, "server", 8192, 1024),
        (B200, "server", 16384, 1024), (H200, "offline", 16384, 1024), (L4, "offline", 8192, 256),
    ],
)  # fmt: skip
def test_batch_defaults_by_device_memory(device: Device, context: str, tokens: int, seqs: int) -> None:
    # vllm/engine/arg_utils.py 0.32.0, get_batch_defaults
    answer = plan(LLAMA_8B, {"usage_context": context, "max_model_len": 8192}, device=device)
    assert answer.setting("max_num_batched_tokens") == tokens
    assert answer.setting("max_num_seqs") == seqs


def test_batch_default_of_a_short_model_is_what_its_sequences_hold() -> None:
    answer = plan(LLAMA_8B, {"max_model_len": 16, "max_num_seqs": 8})
    assert answer.setting("max_num_batched_tokens") == 128


@pytest.mark.parametrize(("version", "in_flight"), [("0.25", 8192), ("0.26", 16384), ("0.32", 16384), (None, 16384)])
def test_batches_in_flight_are_reserved_from_026(version: str | None, in_flight: int) -> None:
    # Mistral 7B's window of 4,096: ceil(min(4095 + F, 32768) / 16) + 1
    answer = plan(MISTRAL, version=version)
    assert answer.setting("max_in_flight_tokens") == in_flight
    assert answer.blocks_per_request == -(-min(4095 + in_flight, 32768) // 16) + 1


def test_pipeline_adds_a_batch_with_the_second_runner() -> None:
    stages = Parallelism(pipeline=3)
    new = VLLM.plan(MISTRAL, {}, stages, [40 * GIB], H200, "0.32")
    old = VLLM.plan(MISTRAL, {}, stages, [40 * GIB], H200, "0.28")
    assert new.setting("max_in_flight_tokens") == 4 * 8192
    assert old.setting("max_in_flight_tokens") == 3 * 8192


@pytest.mark.parametrize(("layers", "stages", "counts"), [
    (80, 3, (27, 27, 26)), (61, 2, (31, 30)), (126, 2, (63, 63)), (62, 4, (15, 16, 16, 15)), (5, 5, (1,) * 5),
])  # fmt: skip
def test_pipeline_split(layers: int, stages: int, counts: tuple[int, ...]) -> None:
    # facts: even, one spare layer each to the last stage but one, then backwards (vllm/distributed/utils.py)
    assert split_layers(layers, stages) == counts


def test_pipeline_partition_by_hand() -> None:
    answer = VLLM.plan(LLAMA_8B, {"VLLM_PP_LAYER_PARTITION": "20,12"}, Parallelism(pipeline=2), [40 * GIB], H200, None)
    assert answer.bytes_per_block == (20 * 65536, 12 * 65536)
    assert answer.num_blocks == 40 * GIB // (20 * 65536)


def test_versions() -> None:
    assert find_engine("vllm@0.11")[0] is VLLM
    assert plan(LLAMA_8B, version="0.11").warnings == ()
    newer = plan(LLAMA_8B, version="9.9")
    assert newer.version == "0.32.0" and "9.9" in newer.warnings[0] and "nearest" in newer.warnings[0]
    assert plan(LLAMA_8B, version="0.26").log_lines == (
        "GPU KV cache size: 327,680 tokens", "Maximum concurrency for 131,072 tokens per request: 2.50x",
    )  # fmt: skip
    assert plan(LLAMA_8B, version="0.6.6").log_lines[0] == "# GPU blocks: 20480, # CPU blocks: 2048"


def test_windows_hold_the_whole_length_before_the_hybrid_manager() -> None:
    mixed = spec({"local": SlidingWindow(32, 8, 128, 4096), "global": FullAttention(32, 8, 128)},
                 ("16 x local", "16 x global"))  # fmt: skip
    old, new = plan(mixed, version="0.8.5"), plan(mixed, version="0.32")
    assert old.blocks_per_request == 32768 // 16
    assert [group.layers for group in old.groups] == [32] and [group.layers for group in new.groups] == [16, 16]
    off = plan(mixed, {"disable_hybrid_kv_cache_manager": True})
    assert (off.blocks_per_request, off.bytes_per_block) == (old.blocks_per_request, old.bytes_per_block)


def test_drafting_widens_states_and_adds_a_layer() -> None:
    # facts: Qwen3-Next with two drafted tokens: block 560 instead of 544, 13 full layers, 2 + 2 state blocks
    flags = {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}', "max_model_len": 32768}
    answer = plan(HYBRID, flags)
    assert answer.setting("block_size") == 560
    assert [(group.layers, group.blocks_per_request) for group in answer.groups] == [(12, 4)] * 3 + [(13, 59)]
    assert answer.assumptions == ("one mtp draft layer with the shape of the target's attention",)


@pytest.mark.parametrize(("model", "ranks", "chunk"), [
    (LLAMA_8B, {"tensor": 1}, 2_097_152),
    (LLAMA_8B, {"tensor": 2}, 2 * 1_048_576),
    (DEEPSEEK_V3, {"tensor": 8}, 1_126_400),  # one copy of 61 x 18,432 B, rounded up to 4,096 B
])  # fmt: skip
def test_native_offload_counts_chunks_over_ranks(model: ModelSpec, ranks: dict[str, int], chunk: int) -> None:
    answer = plan(model, {"kv_offloading_size": 16}, **ranks)
    host = answer.pool("host")
    assert (host.bytes_per_slot, host.slots) == (chunk, 16 * GIB // chunk)


def test_fixed_cache_bytes_and_blocks() -> None:
    assert plan(LLAMA_8B, {"kv_cache_memory_bytes": "20G"}).num_blocks == 20 * GIB // 2_097_152
    overridden = plan(LLAMA_8B, {"num_gpu_blocks_override": 100, "max_model_len": 1584})
    assert (overridden.num_blocks, overridden.usable_blocks, overridden.refused) == (100, 99, None)
    # one more block of tokens and the null block is missing
    assert plan(LLAMA_8B, {"num_gpu_blocks_override": 100, "max_model_len": 1585}).refused is not None


def test_fp8_states_scales_and_backends() -> None:
    # facts: V3 fp8 on Hopper takes FLASHMLA and blocks of 64; on Ampere TRITON_MLA and blocks of 16
    assert plan(DEEPSEEK_V3, {"kv_cache_dtype": "fp8"}, tensor=8).setting("attention_backends") == ["FLASHMLA"]
    ampere = plan(DEEPSEEK_V3, {"kv_cache_dtype": "fp8"}, device=A100, tensor=8)
    assert (ampere.setting("attention_backends"), ampere.setting("block_size")) == (["TRITON_MLA"], 16)
    asked = plan(DEEPSEEK_V3, {"kv_cache_dtype": "fp8", "block_size": 16}, tensor=8)
    assert asked.setting("attention_backends") == ["TRITON_MLA"]


def test_unknown_flags_are_named() -> None:
    answer = plan(LLAMA_8B, {"max_modle_len": 5, "gpu_memory_utilization": 0.9})
    assert [warning for warning in answer.warnings if "max_modle_len" in warning]
    assert not [warning for warning in answer.warnings if "gpu_memory_utilization" in warning]


def test_a_length_beyond_the_checkpoint_is_warned_about() -> None:
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in plan(MISTRAL, {"max_model_len": 65536}).warnings[0]


BAD: list[tuple[ModelSpec, dict[str, Any], dict[str, int], str]] = [
    (LLAMA_8B, {}, {"tensor": 3}, "--tensor-parallel-size: found 3, expected a divisor of the 32 query heads"),
    (LLAMA_8B, {}, {"pipeline": 33}, "--pipeline-parallel-size: found 33, expected at most the 32 layers"),
    (LLAMA_8B, {}, {"tensor": 8, "decode_context": 2}, "--decode-context-parallel-size: found 2"),
    (MISTRAL, {}, {"tensor": 2, "decode_context": 2}, "expected 1 for a model with windowed layers"),
    (LLAMA_8B, {"block_size": 24}, {}, "--block-size: found 24, expected a multiple of 16"),
    (V4, {"block_size": 64}, {}, "--block-size: found 64, expected a multiple of 256"),
    (V4, {"kv_cache_dtype": "bfloat16"}, {}, "expected auto or fp8, which DeepSeek V4 is stored in"),
    (HYBRID, {"disable_hybrid_kv_cache_manager": True}, {}, "--disable-hybrid-kv-cache-manager: found layers that"),
    (SHARED, {}, {"pipeline": 2}, "which leaves stage 1 without a layer that has a cache"),
    (LLAMA_8B, {"kv_cache_dtype": "q8_0"}, {}, "--kv-cache-dtype: found 'q8_0', expected one of vLLM's auto"),
    (LLAMA_8B, {"kv_cache_dtype": "fp7"}, {}, "nearest: fp8"),
    (DEEPSEEK_V3, {"kv_cache_dtype": "nvfp4"}, {"tensor": 8}, "--kv-cache-dtype: found nvfp4 on NVIDIA H200"),
    (LLAMA_8B, {"max_model_len": "128kk"}, {}, "--max-model-len: found '128kk', expected a whole number"),
    (LLAMA_8B, {"max_model_len": 0}, {}, "--max-model-len: found 0"),
    (LLAMA_8B, {"max_model_len": True}, {}, "--max-model-len: found true"),
    (LLAMA_8B, {"enable_prefix_caching": "perhaps"}, {}, "--enable-prefix-caching: found 'perhaps', expected true"),
    (LLAMA_8B, {"kv_cache_dtype_skip_layers": ["32"], "kv_cache_dtype": "fp8"}, {}, "found layer 32, expected 0 to 31"),
    (LLAMA_8B, {"kv_cache_dtype_skip_layers": ["x"]}, {}, "expected layer numbers or sliding_window"),
    (LLAMA_8B, {"speculative_config": "{"}, {}, "--speculative-config: found '{', expected a JSON object"),
    (LLAMA_8B, {"speculative_config": {"method": "eagel"}}, {}, "nearest: eagle"),
    (LLAMA_8B, {"attention_backend": "flash"}, {}, "--attention-backend: found 'flash', expected one of FLASH_ATTN"),
    (LLAMA_8B, {"kv_offloading_size": "lots"}, {}, "--kv-offloading-size: found 'lots'"),
    (LLAMA_8B, {"VLLM_PP_LAYER_PARTITION": "30,1"}, {"pipeline": 2}, "expected 2 counts that sum to 32 layers"),
    (HYBRID, {"mamba_cache_mode": "all"}, {}, "--mamba-cache-mode: found all, expected one of none, align"),
    (spec({"a": FullAttention(8, 8, 64)}, ("2 x a",), max_context=None), {}, {}, "--max-model-len: found none"),
    (spec({"a": Rwkv(64, 2, 32)}, ("2 x a",)), {}, {}, "vllm has no rwkv layers"),
    (spec({"a": Lightning(2, 32)}, ("2 x a",)), {}, {}, "has no lightning attention"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "flags", "ranks", "sentence"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_work_is_one_sentence(
    model: ModelSpec, flags: dict[str, Any], ranks: dict[str, int], sentence: str
) -> None:
    with pytest.raises(KvplanError) as caught:
        VLLM.plan(model, flags, Parallelism(**ranks), [40 * GIB], H200, None)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_devices_without_a_backend_are_named() -> None:
    sparse = spec({"mla": LatentAttention(128, 512, 64, indexer=Indexer(128, 2048, 64))}, ("61 x mla",))
    with pytest.raises(InputError, match=r"--gpu: found NVIDIA A100-SXM4-80GB.*sparse MLA") as caught:
        plan(sparse, device=A100, tensor=8)
    assert "FLASHMLA_SPARSE lacks the compute capability" in str(caught.value)


@pytest.mark.parametrize("count", [[GIB, GIB, GIB], []])
def test_bytes_for_each_stage(count: list[int]) -> None:
    with pytest.raises(InputError, match="expected one or 2, one a pipeline stage"):
        VLLM.plan(LLAMA_8B, {}, Parallelism(pipeline=2), count, H200, None)


def test_no_memory_at_all_is_refused_with_figures() -> None:
    answer = plan(LLAMA_8B, available=0)
    assert answer.refused is not None and answer.refused.estimated_max_model_len is None
    assert "not even one token fits" in answer.refused.text
    automatic = plan(LLAMA_8B, {"max_model_len": "auto"}, available=0)
    assert automatic.refused is not None and automatic.num_blocks is None


def test_cross_attention_is_sized_by_the_encoder_budget() -> None:
    # facts: ceil(max_num_encoder_input_tokens / B), not the 1,500 frames
    whisper = spec({"d": Parallel((FullAttention(20, 20, 64), CrossAttention(20, 20, 64, 1500)))}, ("32 x d",),
                   max_context=448)  # fmt: skip
    answer = plan(whisper)
    assert [group.blocks_per_request for group in answer.groups] == [28, 8192 // 16]


def test_chunk_with_the_least_padding() -> None:
    # DeepSeek V4 Flash's 43 windows, 21 ratio-4 states and 20 ratio-128 states pack best by 22
    assert least_padding([43, 21, 20], 21) == 22
    assert least_padding([61, 30, 31], 30) == 31
    assert least_padding([3], 7) == 7
