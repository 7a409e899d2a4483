"""Every collected config (tests/golden/configs, from public copies of the published files) imports, with known layouts.

Layer counts and widths are those of the models' papers, cards and published files, as named beside each case.
"""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from kvplan.spec.importers.config import import_config, load_config
from kvplan.spec.layers import (
    CompressedSparse,
    CrossAttention,
    FullAttention,
    LatentAttention,
    NoCache,
    Parallel,
    SharedCache,
    ShortConv,
    SlidingWindow,
)
from kvplan.spec.model import ModelSpec, branches

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
FILES = sorted(path for path in CONFIGS.glob("*.json") if not path.name.endswith(".hf_quant_config.json"))


def load(stem: str) -> ModelSpec:
    return load_config(CONFIGS / f"{stem}.json")


def count(spec: ModelSpec, kind: type) -> int:
    return sum(isinstance(branch, kind) for name in spec.sequence() for branch in branches(spec.blocks[name]))


def test_the_corpus_is_whole():
    assert len(FILES) == 228


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_imports_into_a_valid_spec(path):
    spec = load_config(path)
    TypeAdapter(ModelSpec).validate_python(TypeAdapter(ModelSpec).dump_python(spec, warnings=False))
    declared = json.loads(path.read_text())
    text = declared.get("text_config") or declared
    layers = text.get("num_hidden_layers") or text.get("n_layer") or text.get("n_layers")
    if layers and spec.model_type != "longcat_flash" and "decoder_layers" not in text:
        assert spec.layer_count == layers
    assert spec.provenance.source == "config.json"


@pytest.mark.parametrize(
    ("stem", "kind", "expected"),
    [
        ("google--gemma-3-27b-it", FullAttention, 10),  # Gemma 3 report: 5 local layers to 1 global, 62 layers
        ("google--gemma-3-27b-it", SlidingWindow, 52),
        ("google--gemma-3n-e4b-it", SharedCache, 15),  # transformers gemma3n: the last 15 of 35 layers share
        ("google--gemma-4-e2b-it", SharedCache, 20),
        ("deepseek-ai--deepseek-v4-pro", CompressedSparse, 61),
        ("microsoft--phi-4-mini-flash-reasoning", SharedCache, 7),  # SambaY: one full layer serves the upper half
        ("meituan-longcat--longcat-flash-chat", LatentAttention, 56),  # two attention blocks in each of 28 layers
        ("nvidia--llama-3_3-nemotron-super-49b-v1", NoCache, 31),  # 49 of 80 layers attend
        ("openai--whisper-large-v3", CrossAttention, 32),
        ("meta-llama--llama-3.2-11b-vision-instruct", CrossAttention, 8),
        ("ai21labs--jamba-v0.1", FullAttention, 4),  # Jamba paper: 1 attention layer in 8
        ("qwen--qwen3-next-80b-a3b-instruct", FullAttention, 12),  # 1 in 4 of 48
        ("google--recurrentgemma-2b", SlidingWindow, 8),  # 26 layers of recurrent, recurrent, attention
        ("nvidia--nvidia-nemotron-nano-9b-v2", FullAttention, 4),  # letters of hybrid_override_pattern
        ("moonshotai--kimi-k3", LatentAttention, 24),  # lists count from 1
        ("zai-org--glm-5.3-flash", LatentAttention, 11),  # lists count from 0
        ("rednote-hilab--dots.llm1.base", FullAttention, 62),
        ("liquidai--lfm2-1.2b", ShortConv, 10),
        ("zyphra--zamba2-2.7b", FullAttention, 9),  # 9 calls of the shared block, each with its own cache
        ("poolside--laguna-xs.2", FullAttention, 40),
        ("eleutherai--gpt-neo-1.3b", SlidingWindow, 12),
    ],
)
def test_layer_counts(stem, kind, expected):
    assert count(load(stem), kind) == expected


@pytest.mark.parametrize(
    ("stem", "heads", "head_dim"),
    [
        ("tiiuae--falcon-7b", 1, 64),  # multi_query without new_decoder_architecture; num_kv_heads 71 misleads
        ("tiiuae--falcon-40b", 8, 64),
        ("bigcode--gpt_bigcode-santacoder", 1, 128),
        ("thudm--chatglm3-6b", 2, 128),
        ("databricks--dbrx-instruct", 8, 128),
        ("mosaicml--mpt-7b", 32, 128),
        ("microsoft--phi-1_5", 32, 64),
        ("qwen--qwen3-0.6b", 8, 128),  # 1024 / 16 is 64, the file says 128
        ("jetmoe--jetmoe-8b", 16, 128),
        ("nvidia--nvidia-nemotron-3-nano-30b-a3b-bf16", 2, 128),  # 2688 / 32 is 84, the file says 128
        ("nvidia--nemotron-h-56b-base-8k", 8, 128),
    ],
)
def test_kv_heads_and_widths(stem, heads, head_dim):
    spec = load(stem)
    (layer,) = [block for block in spec.blocks.values() if isinstance(block, FullAttention)]
    assert (layer.kv_heads, layer.head_dim) == (heads, head_dim)


def test_per_layer_heads_of_openelm():
    spec = load("apple--openelm-270m")
    heads = [spec.blocks[name].kv_heads for name in spec.sequence()]
    assert heads == json.loads((CONFIGS / "apple--openelm-270m.json").read_text())["num_kv_heads"]


def test_two_geometries():
    gemma = load("google--gemma-4-26b-a4b").blocks
    assert (gemma["global"].kv_heads, gemma["global"].head_dim) == (2, 512)
    assert (gemma["local"].kv_heads, gemma["local"].head_dim) == (8, 256)
    mimo = load("xiaomimimo--mimo-v2.5").blocks
    assert (mimo["global"].kv_heads, mimo["local"].kv_heads) == (4, 8)
    assert (mimo["local"].head_dim, mimo["local"].v_head_dim, mimo["local"].window) == (192, 128, 128)


def test_deepseek_v4_ratios():
    """V4-Pro: 31 layers of ratio 128 and 30 of ratio 4; the list's extra entry is the MTP layer's."""
    spec = load("deepseek-ai--deepseek-v4-pro")
    assert spec.counts == {"csa128": 31, "csa4": 30}
    ratio4, ratio128 = spec.blocks["csa4"], spec.blocks["csa128"]
    assert ratio4.overlap and ratio4.indexer.key_dim == 128 and ratio4.indexer.top_k == 1024
    assert not ratio128.overlap and ratio128.indexer is None
    assert [spec.blocks[name].ratio for name in spec.draft_counts] == [None]


def test_v3_2_pins_its_index_keys_to_fp8_and_nothing_else_does():
    assert load("deepseek-ai--deepseek-v3.2").blocks["mla"].indexer.key_format == "fp8"
    formats = {
        branch.indexer.key_format
        for path in FILES
        for spec in [load_config(path)]
        for block in spec.blocks.values()
        for branch in branches(block)
        if spec.model_type != "deepseek_v32" and getattr(branch, "indexer", None)
    }
    assert formats == {None}


def test_shared_indexers():
    """Hy4: the file's indexer_types gives 10 full and 24 shared of 34."""
    spec = load("tencent--hy4-preview")
    assert spec.counts == {"mla_indexed": 10, "mla_reusing": 24}
    assert not spec.blocks["mla_reusing"].indexer.owns_keys


def test_minimax_m3_selects_blocks_by_one_index_key():
    spec = load("minimaxai--minimax-m3")
    assert spec.counts == {"attention": 3, "attention_indexed": 57}
    indexer = spec.blocks["attention_indexed"].indexer
    assert (indexer.key_dim, indexer.top_k, indexer.pool) == (128, 16 * 128, 1)


def test_glm_5_3_pools_its_index_keys_four_to_one():
    spec = load("zai-org--glm-5.3-flash")
    layer = spec.blocks["mla"]
    assert (layer.latent_dim, layer.rope_dim, layer.indexer.pool) == (512, 0, 4)


def test_sambay_reads_layer_17():
    spec = load("microsoft--phi-4-mini-flash-reasoning")
    assert spec.sequence()[16:19] == ["mamba", "global", "gated_memory"]
    assert spec.blocks["shared_global"].owner_layer == 17


def test_inkling_convolves_k_v_and_two_streams():
    """Inkling's published state: 3 x (2 x KV heads x head_dim + 2 x hidden) on each of 66 layers, 6.06 MiB in bf16."""
    spec = load("thinkingmachines--inkling")
    elements = sum(3 * spec.blocks[name].branches[1].channels for name in spec.sequence())
    assert round(2 * elements / 2**20, 2) == 6.06


def test_zaya_keeps_two_convolved_columns_and_a_delayed_half_value():
    layer = load("zyphra--zaya1-8b").blocks["hybrid"]
    assert isinstance(layer, Parallel)
    assert layer.branches[1:] == (ShortConv((8 + 2) * 128, 3), ShortConv(2 * 128 // 2, 2))


@pytest.mark.parametrize(
    ("stem", "context"),
    [
        ("coherelabs--c4ai-command-r-v01", 131072),  # model_max_length beside 8,192 positions
        ("meta-llama--llama-3.2-1b", 131072),  # factor 32 x 8,192 is already in the field
        ("qwen--qwen2.5-7b", 32768),
        ("tiiuae--falcon-7b", None),
        ("rwkv--rwkv-5-world-3b", None),
        ("openai--whisper-large-v3", 448),
    ],
)
def test_max_context(stem, context):
    assert load(stem).max_context == context


def test_yarn_extends_qwen_where_its_block_is_there():
    config = json.loads((CONFIGS / "qwen--qwen2.5-7b.json").read_text()) | {
        "model_type": "qwen2",
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    }
    assert import_config(config, name="q").max_context == 131072


def test_kv_cache_wish_and_weight_formats():
    nvfp4 = load("nvidia--deepseek-v3.1-nvfp4")
    assert (nvfp4.kv_quantization.algorithm, nvfp4.quantization.method, nvfp4.quantization.bits) == ("FP8", "nvfp4", 4)
    assert nvfp4.quantization.group_size == 16
    assert load("nvidia--deepseek-v4-pro-nvfp4").kv_quantization is None
    v3 = load("deepseek-ai--deepseek-v3").quantization
    assert (v3.method, v3.bits, v3.block_shape) == ("fp8", 8, (128, 128))
    assert load("deepseek-ai--deepseek-v4-pro").quantization.experts_bits == 4
    assert load("openai--gpt-oss-20b").quantization.bits == 4
    assert load("qwen--qwen3-32b-fp8-static-pertensor").kv_quantization.algorithm == "FP8"
    assert load("meta-llama--meta-llama-3.1-8b").quantization is None


def test_draft_layers_repeat_the_models_own_attention():
    v3 = load("deepseek-ai--deepseek-v3.2")
    assert v3.draft_layers == ("mla",) and v3.layer_count == 61
    assert load("moonshotai--kimi-k2-instruct").draft_layers == ()
    assert load("minimaxai--minimax-m2.5").draft_layers == ("3 x attention",)


def test_dtype_assumptions_are_said():
    assert load("allenai--olmo-2-0325-32b").dtype == "float32"
    assert any("16 bits" in sentence for sentence in load("allenai--olmo-2-0325-32b").assumptions)
    assert any(sentence.startswith("dtype is absent") for sentence in load("openai--gpt-oss-20b").assumptions)


def test_a_file_without_architecture_is_plain_attention_and_marked():
    spec = load("qwen--qwen3-14b")
    assert spec.counts == {"attention": 40}
    assert spec.provenance.confidence == "unverified"
