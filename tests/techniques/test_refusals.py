"""Combinations without a meaning are refused with the reason and what would work."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cache.techniques import apply, parse_techniques, techniques_from_list
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from tests.techniques.shapes import dense, spec

DENSE = dense(4, 8, 128, 32)
MAMBA = spec((4, kinds.Mamba2(8, 64, 128, 1, 4)))
MLA = spec((4, kinds.LatentAttention(128, 512, 64)))
DSA = spec((4, kinds.LatentAttention(128, 512, 64, indexer=kinds.Indexer(128, 2048, 64))))
CSA = spec((4, kinds.CompressedSparse(128, 512, 64, 128, 128)))
WINDOWS = spec((4, kinds.SlidingWindow(8, 8, 128, 1024)))
MIXED = spec((2, kinds.FullAttention(8, 8, 64)), (2, kinds.CompressedSparse(128, 512, 64, 128, 128)))
RATIOS = spec(*((2, kinds.CompressedSparse(128, 512, 64, 128, ratio)) for ratio in (4, 128)))
SHARED = ModelSpec(
    "shared", "shared", "bfloat16",
    {"own": kinds.FullAttention(8, 8, 64), "borrow": kinds.SharedCache("own")}, ("2 x own", "2 x borrow"),
    DENSE.provenance,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "options", "reason", "instead"),
    [
        (MAMBA, {"evict": "h2o:0.1+0.1"}, "state holds no single tokens", "no eviction"),
        (DSA, {"evict": "snapkv:2048"}, "indexer", "--kv-cache-dtype"),
        (CSA, {"evict": "tova:64"}, "indexer", "--offload"),
        (MIXED, {"evict": "tova:64"}, "indexer", "--offload"),
        (MLA, {"evict": "adakv:1024"}, "adakv gives each KV head a budget", "tova:1024"),
        (MLA, {"evict": "snapkv:1024,per-query-head"}, "per-query-head copies K and V heads", "snapkv:2048"),
        (SHARED, {"evict": "pyramidkv:1024"}, "another layer's cache", "snapkv:2048"),
        (DENSE, {"evict": "snapkv:1024", "share_prefix": 1024, "batch": 4}, "no longer the prefix", "one of the two"),
        (MLA, {"sparse_read": "quest"}, "no keys of its own", "dsa=2048"),
        (DSA, {"sparse_read": "quest"}, "already", "no second selection"),
        (MAMBA, {"sparse_read": "quest"}, "has none", "no sparse reads"),
        (WINDOWS, {"sparse_read": "quest"}, "has none", "no sparse reads"),
        (DENSE, {"sparse_read": "quest:page=12", "block_size": 16}, "divides the block", "nearest: 16"),
        (CSA, {"block_size": 16}, "128 tokens", "nearest: --block-size 128"),
        # The longest entry decides, so that one correction is enough.
        (RATIOS, {"block_size": 2}, "128 tokens", "nearest: --block-size 128"),
        (CSA, {"share_prefix": 256, "batch": 2}, "128 tokens", "nearest: --block-size 128"),
        (DENSE, {"kv_cache_dtype": "kivi2", "block_size": 16}, "16-bit tail", "turboquant"),
        (DENSE, {"kv_cache_dtype": "kivi2", "share_prefix": 16}, "16-bit tail", "fp8"),
        (DENSE, {"kv_cache_dtype": "kivi4", "sparse_read": "quest"}, "single pages", "fp8"),
        (DENSE, {"share_prefix": 9000}, "9,000", "at most the 8,192"),
    ],
)
def test_refused(model: ModelSpec, options: dict[str, Any], reason: str, instead: str) -> None:
    with pytest.raises(InputError) as caught:
        apply(model, None, parse_techniques(**options), 8192)
    message = str(caught.value)
    assert reason in message
    assert instead in message
    assert "expected" in message


@pytest.mark.parametrize(
    ("options", "found", "nearest"),
    [
        ({"evict": "snapvk:2048"}, "snapvk", "snapkv"),
        ({"evict": "snapkv"}, "snapkv", "snapkv:2048"),
        ({"evict": "snapkv:16"}, "16", "nearest: 33"),
        ({"evict": "snapkv:2048,windw=8"}, "windw", "nearest: window"),
        ({"evict": "h2o:0.1"}, "0.1", "two parts"),
        ({"evict": "h2o:1.5+0.1"}, "1.5", "0 to 1"),
        ({"evict": "h2o:0+0"}, "0 tokens", "at least 1"),
        ({"evict": "tova:0"}, "0 tokens", "at least 1"),
        ({"evict": "tova:-5"}, "-5", "a budget such as"),
        ({"evict": "streamingllm:0.5+10"}, "0.5", "whole number"),
        ({"evict": "dms:8"}, "dms", "needs training"),
        ({"evict": "adakv:1024,floor=2"}, "2", "0 to 1"),
        ({"evict": "adakv:1024,compression=0.5"}, "adakv:1024", "a budget"),
        ({"evict": "cla:2"}, "cla", "snapkv"),
        ({"evict": "x" * 300}, "xxx", "snapkv"),
        ({"sparse_read": "dsa"}, "dsa", "needs training"),
        ({"sparse_read": "quast"}, "quast", "nearest: quest"),
        ({"sparse_read": "quest:page=16,budget=8"}, "budget=8", "at least one page"),
        ({"sparse_read": "quest:page=0"}, "0", "from 1"),
        ({"sparse_read": "quest:metadata=fp8"}, "fp8", "bf16 or fp32"),
        ({"sparse_read": "quest:per-query-head=1"}, "per-query-head", "bare word"),
        ({"offload": "cpu"}, "cpu", "64GiB"),
        ({"offload": "gpu:64GiB"}, "gpu", "nearest: cpu"),
        ({"offload": "cpu:lots"}, "lots", "64GiB"),
        ({"offload": "network:1TB"}, "network:1TB", "bw=25GB/s"),
        ({"block_size": "0"}, "0", "from 1"),
        ({"block_size": "1e9"}, "1e9", "whole number"),
        ({"batch": "-1"}, "-1", "from 1"),
        ({"share_prefix": "2q"}, "2q", "128k"),
        ({"kv_cache_dtype": "kivi2:group=33"}, "residual=128", "nearest: 99"),
        ({"skip_layers": ","}, "''", "layer numbers"),
    ],
)
def test_a_bad_option_names_what_it_found_and_what_fits(options: dict[str, Any], found: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_techniques(**options).precision(DENSE)
    assert found in str(caught.value)
    assert nearest in str(caught.value)


def test_an_architectural_technique_is_no_runtime_flag() -> None:
    with pytest.raises(InputError, match=r"trained into a checkpoint.*--what-if cla=2"):
        techniques_from_list([{"cla": 2}])


@pytest.mark.parametrize("items", [{"evict": "tova:8"}, ["tova:8"], [{"evict": "tova:8", "batch": 2}], [3], None])
def test_the_list_holds_single_options(items: Any) -> None:
    with pytest.raises(InputError, match="a list of single options"):
        techniques_from_list(items)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([{"evit": "tova:8"}], "found 'evit', expected one of .*nearest: evict"),
        ([{"evict": "tova:8"}, {"evict": "tova:9"}], "found evict twice, expected it at most once$"),
    ],
)
def test_an_unknown_or_repeated_option_is_named(items: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        techniques_from_list(items)


@pytest.mark.parametrize("value", [2048, ["snapkv:2048"], {"snapkv": 2048}, True])
def test_a_value_of_the_wrong_type_is_named(value: Any) -> None:
    with pytest.raises(InputError, match="--evict: found"):
        techniques_from_list([{"evict": value}])


def test_the_list_means_what_the_options_mean() -> None:
    items = [
        {"evict": "snapkv:2k,window=16"},
        {"kv_cache_dtype": "kivi2:group=64"},
        {"kv-cache-dtype-skip-layers": [0, "sliding_window"]},
        {"--batch": 64},
        {"offload": "nvme:1TB"},
    ]
    assert techniques_from_list(items) == parse_techniques(
        evict="snapkv:2048,window=16", kv_cache_dtype="kivi2:group=64", skip_layers="0,sliding_window", batch=64,
        offload="nvme:1TB,bw=7GB/s",
    )  # fmt: skip


@pytest.mark.parametrize("generated", [-1, 100, 101])
def test_more_generated_than_stored_is_refused(generated: int) -> None:
    with pytest.raises(InputError, match=f"^generated: found {generated}, expected 0 to 99,"):
        apply(DENSE, None, parse_techniques(), 100, generated=generated)


def test_the_whole_context_may_be_shared_and_sixteen_bits_need_no_warning() -> None:
    found = apply(DENSE, None, parse_techniques(share_prefix=8192, batch=2, block_size=16), 8192)
    # Both sequences hold the same 512 blocks: 4 layers of 2 x 8 heads x 128 x 2 B, once.
    assert found.stored_bytes == 8192 * 4 * 4096
    assert found.warnings == ()
