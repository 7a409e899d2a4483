"""GGUF metadata against what llama.cpp allocates for it (tests/evidence/llama_cpp_gguf.json names the build)."""

import json
from pathlib import Path

import pytest

from kvplan.errors import InputError, UnsupportedArchitectureError
from kvplan.spec.importers.gguf import spec_from_metadata
from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    FullAttention,
    GatedDelta,
    Kda,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    NoCache,
    Parallel,
    Rwkv,
    ShortConv,
    SlidingWindow,
)
from kvplan.spec.model import ModelSpec, branches

EVIDENCE = json.loads((Path(__file__).parents[1] / "evidence" / "llama_cpp_gguf.json").read_text())["models"]
MIB = 1 << 20
TOLERANCE = 0.006  # the engine prints MiB with two decimals


def spec_of(arch: str, metadata: dict, **options) -> ModelSpec:
    keys = {f"{arch}.{key}": value for key, value in metadata.items()}
    return spec_from_metadata({"general.architecture": arch, **keys}, label="m.gguf", name="m", **options)


def mixers(spec: ModelSpec, kind: type) -> list:
    return [mixer for name in spec.sequence() for mixer in branches(spec.blocks[name]) if isinstance(mixer, kind)]


def kv_mib(layers: list, cells: int) -> tuple[float, float]:
    """f16 K and V of a cache with `cells` rows a layer; an MLA or V4 cache stores K only."""
    k = v = 0
    for layer in layers:
        if isinstance(layer, LatentAttention):
            k += cells * (layer.latent_dim + layer.rope_dim) * 2
        elif isinstance(layer, CompressedSparse):
            k += cells * layer.head_dim * 2
        else:
            k += cells * layer.kv_heads * layer.head_dim * 2
            v += cells * layer.kv_heads * (layer.v_head_dim or layer.head_dim) * 2
    return k / MIB, v / MIB


def state_mib(layer) -> tuple[float, float]:
    """The engine's R and S of one recurrent layer, all f32."""
    if isinstance(layer, ShortConv):
        r, s = (layer.conv_kernel - 1) * layer.channels, 0
    else:
        inner = layer.heads * layer.head_dim
        r, s = (layer.conv_kernel - 1) * (inner + 2 * layer.groups * layer.state), inner * layer.state
    return 4 * r / MIB, 4 * s / MIB


@pytest.mark.parametrize("case", EVIDENCE, ids=[case["model"] for case in EVIDENCE])
def test_the_layout_explains_every_cache_the_engine_allocates(case: dict) -> None:
    spec = spec_of(case["arch"], case["metadata"])
    assert spec.layer_count == case["metadata"]["block_count"]
    if case["arch"] == "deepseek4":
        layers = mixers(spec, CompressedSparse)
        ratio4 = [layer for layer in layers if layer.ratio == 4]
        ratio128 = [layer for layer in layers if layer.ratio == 128]
        groups = [[], layers, ratio4, ratio128]
        index = case["kv"][4]
        assert index["layers"] == len(ratio4)
        assert (
            abs(sum(index["cells"] * layer.indexer.key_dim * 2 for layer in ratio4) / MIB - index["k_mib"]) < TOLERANCE
        )
        for state, owners in zip(case["dsv4"], (ratio4, ratio128, ratio4), strict=True):
            assert state["layers"] == len(owners)
            # overlapping blocks double both the rows and the width of the compressor state
            assert state["state_rows"] == state["ratio"] * (2 if owners[0].overlap else 1)
    else:
        groups = [mixers(spec, FullAttention) + mixers(spec, LatentAttention), mixers(spec, SlidingWindow)]
    caches = case["kv"][: len(groups)]
    assert sum(bool(group) for group in groups) == sum(bool(cache["layers"]) for cache in caches)
    for group, cache in zip(groups, caches, strict=False):
        assert cache["layers"] == len(group)
        k, v = kv_mib(group, cache["cells"])
        assert abs(k - cache["k_mib"]) < TOLERANCE
        assert abs(v - cache["v_mib"]) < TOLERANCE
    recurrent = mixers(spec, Mamba2) + mixers(spec, ShortConv)
    assert bool(recurrent) == bool(case["rs"])
    for cache in case["rs"]:
        r, s = (sum(part) for part in zip(*(state_mib(layer) for layer in recurrent), strict=True))
        assert abs(r - cache["r_mib"]) < TOLERANCE
        assert abs(s - cache["s_mib"]) < TOLERANCE


BASE = {"block_count": 8, "embedding_length": 1024, "context_length": 65536, "attention.head_count": 8}


def test_the_engines_window_cells_follow_the_published_window() -> None:
    # pad256(window + n_ubatch) cells: the window itself is what the spec must carry
    windows = {"gemma-3-27b": 1024, "gpt-oss-20b": 128, "olmo-3-7b": 4096, "gemma4-synthetic-share": 512}
    for case in EVIDENCE:
        if case["model"] in windows:
            window = windows[case["model"]]
            assert {layer.window for layer in mixers(spec_of(case["arch"], case["metadata"]), SlidingWindow)} == {
                window
            }
            assert case["kv"][1]["cells"] == -(-(window + 512) // 256) * 256


def test_mla_keys_missing_means_expanded_heads() -> None:
    # 24,576 + 16,384 values a layer for DeepSeek V3 files from before the MLA keys (llama.cpp's cache row widths)
    spec = spec_of(
        "deepseek2",
        BASE
        | {
            "attention.head_count": 128,
            "attention.head_count_kv": 128,
            "attention.key_length": 192,
            "attention.value_length": 128,
            "attention.kv_lora_rank": 512,
        },
    )
    layer = spec.blocks["attention"]
    assert (layer.kv_heads * layer.head_dim, layer.kv_heads * layer.v_head_dim) == (24_576, 16_384)
    assert "key_length_mla" in spec.assumptions[-1]


def test_sparse_latent_files_own_index_keys_on_every_layer_or_on_those_listed() -> None:
    mla = BASE | {
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.kv_lora_rank": 512,
        "attention.indexer.head_count": 64,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 2048,
    }
    every = mixers(spec_of("deepseek32", mla), LatentAttention)
    assert [layer.indexer.owns_keys for layer in every] == [True] * 8
    assert {(layer.indexer.key_dim, layer.indexer.top_k, layer.rope_dim) for layer in every} == {(128, 2048, 64)}
    types = [1, 1, 1, 0, 0, 0, 1, 0]
    listed = mixers(spec_of("glm-dsa", mla | {"attention.indexer.types": types}), LatentAttention)
    assert [layer.indexer.owns_keys for layer in listed] == [bool(flag) for flag in types]
    # without the list, files of 1,048,576 tokens follow GLM 5.2's pattern, earlier ones own an indexer everywhere
    late = mixers(spec_of("glm-dsa", mla | {"context_length": 1 << 20}), LatentAttention)
    assert [layer.indexer.owns_keys for layer in late] == [True, True, True, False, False, False, True, False]


def test_gated_delta_layers_follow_the_interval_and_drafts_stand_apart() -> None:
    spec = spec_of(
        "qwen3next",
        BASE
        | {
            "block_count": 9,
            "nextn_predict_layers": 1,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 4096,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 32,
        },
    )
    assert [isinstance(spec.blocks[name], FullAttention) for name in spec.sequence()] == [False, False, False, True] * 2
    assert mixers(spec, GatedDelta)[0] == GatedDelta(16, 128, 32, 128, 4)
    assert sum(spec.draft_counts.values()) == 1


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("mamba", {"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 16}, Mamba1(2048, 16, 4)),
        ("rwkv7", {"wkv.head_size": 64}, Rwkv(1024, 16, 64, 2)),
        ("arwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, Rwkv(1024, 16, 64, 1)),
        ("phi3", {"attention.head_count_kv": 8, "attention.sliding_window": 2047}, SlidingWindow(8, 8, 128, 2047)),
        ("phi3", {"attention.head_count_kv": 8, "attention.sliding_window": 0}, FullAttention(8, 8, 128)),
    ],
)
def test_models_of_one_layer_kind(arch: str, keys: dict, expected) -> None:
    spec = spec_of(arch, BASE | keys)
    assert list(spec.blocks.values()) == [expected]
    assert spec.layer_count == 8


def test_chunked_lightning_and_kda_layers() -> None:
    llama4 = spec_of("llama4", BASE | {"attention.head_count_kv": 2})
    assert [isinstance(llama4.blocks[name], ChunkedAttention) for name in llama4.sequence()] == [
        True,
        True,
        True,
        False,
    ] * 2
    assert mixers(llama4, ChunkedAttention)[0].chunk == 8192
    minimax = spec_of("minimax-01", BASE | {"attention.head_count_kv": 2, "attention.key_length": 128})
    assert (len(mixers(minimax, Lightning)), len(mixers(minimax, FullAttention))) == (7, 1)
    kimi = spec_of(
        "kimi-linear",
        BASE
        | {
            "attention.head_count_kv": [0, 0, 0, 8] * 2,
            "attention.kv_lora_rank": 512,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "kda.head_dim": 128,
            "ssm.conv_kernel": 4,
        },
    )
    assert (len(mixers(kimi, Kda)), len(mixers(kimi, LatentAttention))) == (6, 2)
    assert mixers(kimi, Kda)[0] == Kda(8, 128, 4)


def test_layers_without_kv_heads_cache_nothing() -> None:
    spec = spec_of("deci", BASE | {"attention.head_count": [8] * 7 + [0], "attention.head_count_kv": [2] * 6 + [0, 0]})
    assert [type(spec.blocks[name]) for name in spec.sequence()[-2:]] == [NoCache, NoCache]
    assert spec.counts["attention"] == 6


@pytest.mark.parametrize(
    ("arch", "keys", "part"),
    [
        ("llama", {"attention.sliding_window": 4096}, "which layers it applies to"),
        ("llama", {"attention.head_count_kv": [8, 8]}, "has 2 entries, expected one for each of 8 layers"),
        ("llama", {"attention.head_count": 7}, "embedding_length 1024 / head_count 7 is no whole number"),
        ("llama", {"attention.head_count_kv": 3}, "8 query heads and 3 KV heads"),
        ("gemma4", {"attention.sliding_window": 512}, "which layers it applies to"),
        ("gemma4", {"attention.sliding_window": 512, "attention.sliding_window_pattern": [True]}, "has 1 entries"),
        ("falcon-h1", {"attention.head_count_kv": 2}, "ssm.inner_size is missing"),
        ("brandnew", {}, "doesn't know"),
    ],
)
def test_a_layout_that_would_be_a_guess_is_refused_naming_the_keys_seen(arch: str, keys: dict, part: str) -> None:
    with pytest.raises(UnsupportedArchitectureError) as caught:
        spec_of(arch, BASE | keys)
    assert part in str(caught.value)
    assert "keys seen: " in str(caught.value)
    assert "block_count" in str(caught.value)


def test_assume_dense_overrides_and_marks() -> None:
    spec = spec_of("brandnew", BASE | {"attention.head_count_kv": 2}, assume_dense=True)
    assert spec.counts == {"attention": 8}
    assert spec.blocks["attention"] == FullAttention(8, 2, 128)
    assert spec.provenance.confidence == "assumed"
    assert "--assume dense" in spec.assumptions[-1]


@pytest.mark.parametrize(
    "keys",
    [
        {"block_count": 0},
        {"block_count": 10**12},
        {"attention.head_count": -8},
        {"attention.head_count": 8.0},
        {"attention.head_count_kv": [8] * 7 + ["8"]},
        {"attention.key_length": True},
        {"context_length": "long"},
    ],
)
def test_values_of_the_wrong_kind_are_bad_input(keys: dict) -> None:
    with pytest.raises(InputError, match=rf"m\.gguf: llama\.{next(iter(keys))}"):
        spec_of("llama", BASE | keys)


def test_parallel_layers_keep_both_caches() -> None:
    case = next(case for case in EVIDENCE if case["arch"] == "falcon-h1")
    spec = spec_of("falcon-h1", case["metadata"])
    assert all(isinstance(layer, Parallel) for layer in spec.blocks.values())
