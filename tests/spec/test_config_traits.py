"""Trait by trait: hand-made configs whose layout follows from the named rule alone."""

import pytest

from kvplan.spec.importers.config import import_config, load_config
from kvplan.spec.layers import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Kda,
    LatentAttention,
    Lightning,
    Mamba1,
    Mamba2,
    Mlstm,
    RgLru,
    Rwkv,
    SharedCache,
    ShortConv,
    SlidingWindow,
)
from kvplan.spec.model import ModelSpec, branches

PLAIN = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
GEMMA3_27B = {
    "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "max_position_embeddings": 131072,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip


def spec_of(base: dict | None = None, **fields) -> ModelSpec:
    return import_config({**(base or PLAIN), **fields}, name="m")


def layers_of(spec: ModelSpec) -> list:
    return [spec.blocks[name] for name in spec.sequence()]


def kinds_of(spec: ModelSpec) -> list[type]:
    return [type(layer) for layer in layers_of(spec)]


@pytest.mark.parametrize(
    "spelling",
    [
        {"sliding_window_pattern": 6},
        {"_sliding_window_pattern": 6},
        {"layer_types": [("full_attention" if i % 6 == 5 else "sliding_attention") for i in range(62)]},
        {},
    ],
    ids=["pattern", "private pattern", "list", "absent"],
)
def test_the_three_spellings_of_gemma_3(spelling):
    """27B: 10 full and 52 window layers of 1,024, whichever way the file says it (62 // 6 = 10)."""
    spec = spec_of(GEMMA3_27B, **spelling)
    assert spec.counts == {"local": 52, "global": 10}
    assert spec.sequence()[5] == "global" and spec.sequence()[61] == "local"
    assert spec.blocks["local"].window == 1024
    assert any("pattern" in sentence for sentence in spec.assumptions) == (spelling == {})


def test_a_list_beats_a_period_beats_the_class():
    both = spec_of(GEMMA3_27B, num_hidden_layers=4, sliding_window_pattern=2, layer_types=["full_attention"] * 4)
    assert kinds_of(both) == [FullAttention] * 4
    period = spec_of(GEMMA3_27B, num_hidden_layers=4, sliding_window_pattern=2)
    assert kinds_of(period) == [SlidingWindow, FullAttention] * 2


def test_released_gemma_3_4b_leans_on_class_defaults():
    """The released text block has width, layers and window only; heads 8, KV heads 4, width 256 are the class's."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    spec = spec_of({"model_type": "gemma3", "text_config": text, "vision_config": {"num_key_value_heads": 99}})
    layer = spec.blocks["global"]
    assert (layer.query_heads, layer.kv_heads, layer.head_dim) == (8, 4, 256)
    assert any("num_attention_heads 8, num_key_value_heads 4" in sentence for sentence in spec.assumptions)


def test_vision_blocks_never_lend_their_fields():
    vision = {"head_dim": 72, "num_key_value_heads": 3, "sliding_window": 7, "layer_types": ["sliding_attention"]}
    spec = spec_of({"model_type": "wrapper", "text_config": PLAIN, "vision_config": vision, "head_dim": 5})
    assert layers_of(spec) == [FullAttention(8, 8, 128)] * 4


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_text_blocks_of_wrappers(key):
    assert spec_of({"model_type": "wrapper", key: PLAIN}).layer_count == 4


def test_thinker_holds_a_text_config():
    wrapper = {"model_type": "omni", "thinker_config": {"text_config": PLAIN}, "talker_config": {"text_config": {}}}
    assert spec_of(wrapper).layer_count == 4


def test_a_known_class_stands_in_for_an_unknown_model_type():
    assert spec_of(PLAIN, model_type="mine", architectures=["LlamaForCausalLM"]).layer_count == 4


def test_head_dim_and_kv_heads():
    assert layers_of(spec_of(num_key_value_heads=2))[0] == FullAttention(8, 2, 128)
    assert layers_of(spec_of(num_key_value_heads=2, head_dim=64))[0] == FullAttention(8, 2, 64)
    null = spec_of(num_key_value_heads=None)
    assert layers_of(null)[0] == FullAttention(8, 8, 128)
    assert any("absent or null" in sentence for sentence in null.assumptions)


def test_falcon_and_bigcode_flags():
    falcon = {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 1, "num_attention_heads": 128}
    assert layers_of(spec_of(falcon, num_kv_heads=71, multi_query=True))[0].kv_heads == 1
    assert layers_of(spec_of(falcon, multi_query=False))[0].kv_heads == 128
    new = spec_of(falcon, num_kv_heads=8, multi_query=True, new_decoder_architecture=True)
    assert layers_of(new)[0].kv_heads == 8
    bigcode = {"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 1}
    assert layers_of(spec_of(bigcode, multi_query=True))[0] == FullAttention(48, 1, 128)
    assert layers_of(spec_of(bigcode, multi_query=False))[0] == FullAttention(48, 48, 128)


def test_falcon_before_transformers_had_it():
    """The first config.json of tiiuae/falcon-40b (128 heads, 8 of K and V) and of falcon-7b (71 heads, 1)."""
    big = {"model_type": "RefinedWeb", "architectures": ["RWForCausalLM"], "hidden_size": 8192, "n_layer": 60,
           "n_head": 128, "n_head_kv": 8, "vocab_size": 65024}  # fmt: skip
    assert layers_of(spec_of(big)) == [FullAttention(128, 8, 64)] * 60
    small = {"model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"], "hidden_size": 4544, "n_layer": 32,
             "n_head": 71, "multi_query": True, "vocab_size": 65024}  # fmt: skip
    assert layers_of(spec_of(small))[0] == FullAttention(71, 1, 64)
    assert layers_of(spec_of(small, multi_query=False))[0] == FullAttention(71, 71, 64)


def test_plamo_shares_heads():
    """pfnet/plamo-13b: 40 heads, 8 to a K and V, so 5 (mlx-lm v0.32.2 mlx_lm/models/plamo.py stores those)."""
    plamo = {"model_type": "plamo", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40}
    for spec in (spec_of(plamo, n_shared_head=8), spec_of(plamo)):
        assert layers_of(spec) == [FullAttention(40, 5, 128)] * 40
        assert any("repeats them" in sentence for sentence in spec.assumptions)


@pytest.mark.parametrize(
    ("name", "model_id"),
    [("My Model", "My-Model"), ("a\nb\x1b[31m", "a-b-[31m"), ("\udce9t\u00e9", "t\u00e9"), ("x" * 100_000, "x" * 128),
     (" ", "config")],
)  # fmt: skip
def test_a_name_becomes_a_printable_id(name, model_id):
    assert import_config(PLAIN, name=name).id == model_id


def test_per_layer_kv_heads():
    spec = spec_of(num_key_value_heads_per_layer=[8, 4, 2, 8])
    assert [layer.kv_heads for layer in layers_of(spec)] == [8, 4, 2, 8]


def test_searched_blocks_replace_null_kv_heads():
    attend = {"attention": {"n_heads_in_group": 4}}
    spec = spec_of(
        PLAIN, model_type="nemotron-nas", num_key_value_heads=None,
        block_configs=[
            attend, {"attention": {"no_op": True}}, {"attention": {"replace_with_linear": True}},
            {"attention": {"n_heads_in_group": 8, "window_length": 256}},
        ],
    )  # fmt: skip
    assert spec.sequence() == ["global", "removed", "replaced", "local"]
    assert spec.blocks["global"] == FullAttention(8, 2, 128)
    assert spec.blocks["local"] == SlidingWindow(8, 1, 128, 256)


def test_step_3_5_padded_list_and_second_geometry():
    """layer_types carries the draft layers at its end; window layers have heads of their own."""
    spec = spec_of(
        model_type="step3p5", head_dim=128, num_attention_groups=2, sliding_window=512, num_nextn_predict_layers=2,
        layer_types=["full_attention", *["sliding_attention"] * 3, "sliding_attention", "full_attention"],
        attention_other_setting={"num_attention_heads": 12, "num_attention_groups": 4, "head_dim": 64},
    )  # fmt: skip
    assert spec.blocks["global"] == FullAttention(8, 2, 128)
    assert spec.blocks["local"] == SlidingWindow(12, 4, 64, 512)
    assert spec.counts == {"global": 1, "local": 3} and spec.draft_counts == {"local": 1, "global": 1}


def test_k_and_v_of_different_width_and_two_geometries():
    spec = spec_of(
        model_type="mimo_v2_flash", num_key_value_heads=2, head_dim=192, v_head_dim=128,
        hybrid_layer_pattern=[0, 1, 1, 0], sliding_window_size=128, swa_num_key_value_heads=4, swa_head_dim=96,
        swa_v_head_dim=64,
    )  # fmt: skip
    assert spec.blocks["global"] == FullAttention(8, 2, 192, 128)
    assert spec.blocks["local"] == SlidingWindow(8, 4, 96, 128, 64)


def test_gemma_4_full_layers_and_sharing():
    spec = spec_of(
        model_type="gemma4_text", num_hidden_layers=6, num_key_value_heads=2, head_dim=256, global_head_dim=512,
        num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=512, num_kv_shared_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    assert spec.blocks["local"] == SlidingWindow(8, 2, 256, 512)
    assert spec.blocks["global"] == FullAttention(8, 1, 512)
    assert layers_of(spec)[3:] == [SharedCache("local", 1), SharedCache("local", 1), SharedCache("global", 2)]


def test_windows_switched_by_qwen_fields():
    """transformers 5.24.0, Qwen2: with the switch on, layers from max_window_layers are windowed."""
    qwen = {**PLAIN, "model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 256, "max_window_layers": 3}
    assert kinds_of(spec_of(qwen, use_sliding_window=False)) == [FullAttention] * 4
    assert kinds_of(spec_of(qwen)) == [FullAttention] * 4
    assert kinds_of(spec_of(qwen, use_sliding_window=True)) == [FullAttention] * 3 + [SlidingWindow]


def test_windows_on_every_layer_by_class():
    mistral = {**PLAIN, "model_type": "mistral", "num_key_value_heads": 2}
    assert kinds_of(spec_of(mistral, sliding_window=4096)) == [SlidingWindow] * 4
    assert kinds_of(spec_of(mistral, sliding_window=None)) == [FullAttention] * 4


def test_list_valued_windows():
    spec = spec_of(sliding_window=[None, 512, 256, 0])
    assert [getattr(layer, "window", None) for layer in layers_of(spec)] == [None, 512, 256, None]


def test_exaone_letters():
    exaone = {**PLAIN, "model_type": "exaone4", "num_key_value_heads": 2, "sliding_window": 4096}
    tiled = kinds_of(spec_of(exaone, sliding_window_pattern="LLG"))
    assert tiled == [SlidingWindow, SlidingWindow, FullAttention, SlidingWindow]
    assert kinds_of(spec_of(exaone, sliding_window_pattern="LLG", sliding_window=None)) == [FullAttention] * 4


def test_llama_4_chunks():
    llama4 = {**PLAIN, "model_type": "llama4_text", "num_key_value_heads": 2, "head_dim": 128}
    chunked = spec_of(llama4, attention_chunk_size=8192)
    assert kinds_of(chunked) == [ChunkedAttention] * 3 + [FullAttention]
    flagged = spec_of(llama4, attention_chunk_size=8192, no_rope_layers=[0, 1, 1, 1])
    assert kinds_of(flagged) == [FullAttention] + [ChunkedAttention] * 3
    assert kinds_of(spec_of(llama4, attention_chunk_size=None)) == [FullAttention] * 4


def test_mla_ignores_kv_heads_and_head_dim():
    spec = spec_of(MLA, head_dim=72, num_nextn_predict_layers=1)
    assert layers_of(spec) == [LatentAttention(8, 512, 64, 128, 128)] * 4
    assert spec.draft_layers == ("mla",)


def test_an_mla_family_with_the_switch_off_keeps_heads():
    """DeepSeek-VL2-tiny: use_mla false, ranks null, MLA widths zero."""
    text = {**PLAIN, "model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None, "num_key_value_heads": 8}
    text |= {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0}
    assert layers_of(spec_of(text))[0] == FullAttention(8, 8, 128)


def test_two_attention_blocks_a_layer():
    longcat = {**MLA, "model_type": "longcat_flash", "num_layers": 3}
    del longcat["num_hidden_layers"]
    assert spec_of(longcat).layer_count == 6


def test_index_frequency_and_offset():
    """transformers 5.24.0, GLM-MoE-DSA: layer i is full where max(i - offset + 1, 0) % freq == 0."""
    glm = {**MLA, "model_type": "glm_moe_dsa", "num_hidden_layers": 8, "index_topk": 2048, "index_head_dim": 128}
    owners = lambda **f: [layer.indexer.owns_keys for layer in layers_of(spec_of(glm, **f))]  # noqa: E731
    assert owners(index_topk_freq=4, index_skip_topk_offset=3) == [True, True, True, False, False, False, True, False]
    assert owners() == [True] * 8
    assert owners(index_topk_pattern="FSSSFSSS") == [True, False, False, False] * 2
    assert owners(indexer_types=["full", "shared"] * 4) == [True, False] * 4


def test_windowed_latents_with_a_layer_config_of_their_own():
    spec = spec_of(
        MLA, model_type="dots3_note_text", sliding_window=512, index_topk=2048, index_head_dim=128,
        layer_types=["indexed_attention", "sliding_attention"] * 2,
        per_layer_config={"01": {"kv_lora_rank": 1024, "num_attention_heads": 4}},
    )  # fmt: skip
    assert [layer.latent_dim for layer in layers_of(spec)] == [512, 1024, 512, 512]
    assert [layer.window for layer in layers_of(spec)] == [None, 512, None, 512]
    assert [layer.indexer is not None for layer in layers_of(spec)] == [True, False, True, False]


def test_deepseek_v4_1_sources():
    """V4.1: kv_source_layer_ids own entries and index keys, index_source_layer_ids scan, extra entries are MTP's."""
    spec = spec_of(
        model_type="deepseek_v41", num_hidden_layers=6, head_dim=512, qk_rope_head_dim=64, sliding_window=128,
        compress_ratios=[0, 4, 4, 4, 1, 1, 0], kv_source_layer_ids=[1, 4], index_source_layer_ids=[1, 2, 4],
        index_head_dim=128, index_topk=512, num_nextn_predict_layers=1,
    )  # fmt: skip
    layers = layers_of(spec)
    assert [layer.ratio for layer in layers] == [None, 4, 4, 4, 1, 1]
    assert [layer.owns_compressed for layer in layers[1:]] == [True, False, False, True, False]
    assert [layer.indexer and (layer.indexer.owns_keys, layer.indexer.scans_keys) for layer in layers] == [
        None, (True, False), (False, True), None, (True, False), None,
    ]  # fmt: skip
    assert not any(layer.overlap for layer in layers)
    assert spec.blocks[spec.draft_layers[0]].ratio is None


def test_qwen_4_indexes_only_where_the_fields_are_set():
    qwen = {
        **PLAIN, "model_type": "qwen4_exp_text", "num_key_value_heads": 2, "head_dim": 256,
        "full_attention_interval": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    assert layers_of(spec_of(qwen))[3] == FullAttention(8, 2, 256)
    indexed = spec_of(qwen, indexer_n_heads=4, indexer_head_dim=64, indexer_budget=2048, indexer_compress_ratio=4)
    indexer = layers_of(indexed)[3].indexer
    assert (indexer.key_dim, indexer.top_k, indexer.pool) == (64, 2048, 4)


def test_cross_layer_attention_only_with_the_flag():
    """Hunyuan-Large, 64 layers, factor 2: every second layer reads the one before."""
    hunyuan = {**PLAIN, "model_type": "hunyuan", "num_key_value_heads": 2, "cla_share_factor": 2}
    assert spec_of(hunyuan, use_cla=True).sequence() == ["attention", "shared_attention"] * 2
    assert spec_of(hunyuan, use_cla=False).sequence() == ["attention"] * 4


def test_sources_of_a_shared_latent():
    spec = spec_of(MLA, model_type="mistral_large4_text", kv_source_layers=[0, 0, 2, 2])
    assert spec.sequence() == ["mla", "shared_mla"] * 2


def test_hymba():
    """nvidia/Hymba-1.5B-Base: three global layers, K and V reused in groups, 128 meta tokens, V twice as wide as K."""
    spec = spec_of(
        model_type="hymba", hidden_size=1600, num_hidden_layers=6, num_attention_heads=25, num_key_value_heads=5,
        sliding_window=1024, global_attn_idx=[0, 5], kv_reuse_group=[[1, 2], [3, 4]], kv_reuse_every_i_layer=-1,
        num_memory_tokens=128, kq_head_dim=-1, v_head_dim=128, mamba_expand=2, mamba_d_state=16, mamba_d_conv=4,
    )  # fmt: skip
    mamba = Mamba1(3200, 16, 4)
    assert spec.meta_tokens == 128
    assert branches(layers_of(spec)[0]) == (FullAttention(25, 5, 64, 128), mamba)
    assert branches(layers_of(spec)[1]) == (SlidingWindow(25, 5, 64, 1024, 128), mamba)
    assert branches(layers_of(spec)[2]) == (SharedCache("local_hybrid"), mamba)


def test_baichuan_m1_convolves_k_and_v():
    spec = spec_of(
        model_type="baichuan_m1", hidden_size=5120, num_attention_heads=20, num_key_value_heads=2,
        num_swa_attention_heads=40, num_swa_key_value_heads=8, sliding_window=8192, sliding_window_layers=[1, 3],
        conv_window=2,
    )  # fmt: skip
    assert branches(layers_of(spec)[0]) == (FullAttention(20, 2, 256), ShortConv(2 * 2 * 256, 2))
    assert branches(layers_of(spec)[1]) == (SlidingWindow(40, 8, 128, 8192), ShortConv(2 * 8 * 128, 2))


def test_lightning_layers_from_a_flag_list():
    spec = spec_of(model_type="minimax_text_01", num_key_value_heads=2, head_dim=128, attn_type_list=[0, 0, 0, 1])
    assert layers_of(spec) == [Lightning(8, 128)] * 3 + [FullAttention(8, 2, 128)]


def test_ling_layers_behind_the_last_group_attend_too():
    """ml-explore/mlx-lm bailing_moe_linear: layer i attends where (i + 1) % 4 == 0 or i is behind the last group."""
    ling = {**PLAIN, "model_type": "bailing_moe_linear", "num_hidden_layers": 6, "layer_group_size": 4}
    assert [type(layer) is FullAttention for layer in layers_of(spec_of(ling))] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("base", [0, 1])
def test_layer_lists_count_from_zero_or_one(base):
    lists = {"full_attn_layers": [3 + base], "kda_layers": [base, 1 + base, 2 + base]}
    shape = {"num_heads": 8, "head_dim": 128, "short_conv_kernel_size": 4}
    spec = spec_of(MLA, model_type="kimi_linear", linear_attn_config={**lists, **shape})
    assert kinds_of(spec) == [Kda] * 3 + [LatentAttention]
    assert spec.blocks["kda"] == Kda(8, 128, 4)


def test_jamba_period_and_offset():
    jamba = {
        **PLAIN, "model_type": "jamba", "num_key_value_heads": 2, "attn_layer_period": 4, "attn_layer_offset": 1,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "intermediate_size": 99,
    }  # fmt: skip
    assert [type(layer) is FullAttention for layer in layers_of(spec_of(jamba))] == [0, 1, 0, 0]
    assert spec_of(jamba).blocks["mamba"] == Mamba1(2048, 16, 4)


def test_falcon_mamba_trusts_its_inner_width():
    spec = spec_of(model_type="falcon_mamba", intermediate_size=2048, expand=16, state_size=16, conv_kernel=4)
    assert layers_of(spec) == [Mamba1(2048, 16, 4)] * 4
    assert spec.max_context is None


def test_pattern_strings_and_state_dtype():
    spec = spec_of(
        {"model_type": "nemotron_h", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
         "head_dim": 128, "hybrid_override_pattern": "M-M*E", "mamba_num_heads": 16, "mamba_head_dim": 64,
         "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32",
         "num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]},
    )  # fmt: skip
    assert spec.sequence() == ["mamba", "mlp", "mamba", "attention", "experts"]
    assert spec.blocks["mamba"] == Mamba2(16, 64, 128, 8, 4, "float32")
    assert spec.draft_counts == {"attention": 1, "experts": 1}


def test_a_block_list_can_replace_the_layer_count():
    spec = spec_of(
        {"model_type": "granitemoehybrid", "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
         "layer_types": ["mamba", "attention"], "mamba_n_heads": 32, "mamba_d_head": "auto", "mamba_d_state": 128,
         "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2},
    )  # fmt: skip
    assert layers_of(spec) == [Mamba2(32, 64, 128, 1, 4), FullAttention(8, 2, 128)]


def test_falcon_h1_inner_width_beats_expansion():
    spec = spec_of(
        model_type="falcon_h1", num_key_value_heads=2, head_dim=64, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64,
        mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
    )  # fmt: skip
    assert branches(layers_of(spec)[0]) == (FullAttention(8, 2, 64), Mamba2(24, 64, 128, 1, 4))


def test_other_recurrent_kinds():
    griffin = spec_of(
        model_type="recurrent_gemma", num_key_value_heads=1, lru_width=2560, conv1d_width=4, attention_window_size=2048,
        block_types=["recurrent", "recurrent", "attention"],
    )  # fmt: skip
    assert kinds_of(griffin) == [RgLru, RgLru, SlidingWindow, RgLru]
    rwkv = spec_of(model_type="rwkv6", attention_hidden_size=1024, head_size=64)
    assert layers_of(rwkv)[0] == Rwkv(1024, 16, 64)
    assert layers_of(spec_of(model_type="rwkv"))[0] == Rwkv(1024, 1, 1024, matrix_state=False)
    xlstm = spec_of(
        {
            "model_type": "xlstm",
            "hidden_size": 4096,
            "num_blocks": 2,
            "num_heads": 8,
            "inference_state_dtype": "float32",
        }
    )
    assert layers_of(xlstm) == [Mlstm(8, 256, 512, "float32")] * 2


def test_plamo_2_attends_every_second_layer():
    spec = spec_of(
        model_type="plamo2", num_key_value_heads=2, hidden_size_per_head=128, attention_window_size=2048,
        full_attention_idx=[3], mamba_step=2, mamba_num_heads=16, mamba_d_state=64, mamba_d_conv=4,
    )  # fmt: skip
    assert kinds_of(spec) == [Mamba1, SlidingWindow, Mamba1, FullAttention]
    assert layers_of(spec)[0] == Mamba1(2048, 64, 4)


def test_convolution_layers():
    lfm = {**PLAIN, "model_type": "lfm2", "num_key_value_heads": 2, "conv_L_cache": 3, "full_attn_idxs": [2]}
    assert kinds_of(spec_of(lfm)) == [ShortConv, ShortConv, FullAttention, ShortConv]
    assert layers_of(spec_of(lfm))[0] == ShortConv(1024, 3)


def test_encoder_decoder():
    t5 = spec_of(
        {"model_type": "t5", "d_model": 1024, "d_kv": 64, "num_heads": 32, "num_layers": 12, "num_decoder_layers": 6}
    )
    assert layers_of(t5) == [layers_of(t5)[0]] * 6
    assert branches(layers_of(t5)[0]) == (FullAttention(32, 32, 64), CrossAttention(32, 32, 64))
    whisper = spec_of(
        {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "num_hidden_layers": 32,
         "encoder_attention_heads": 20, "decoder_attention_heads": 20, "max_source_positions": 1500},
    )  # fmt: skip
    assert whisper.layer_count == 4
    assert branches(layers_of(whisper)[0])[1] == CrossAttention(20, 20, 64, 1500)


def test_mllama_image_layers_dont_grow():
    text = {**PLAIN, "model_type": "mllama_text_model", "num_key_value_heads": 2, "cross_attention_layers": [1]}
    assert kinds_of(spec_of({"model_type": "mllama", "text_config": text}))[:2] == [FullAttention, CrossAttention]


def test_wrapper_text_blocks_fill_class_defaults_but_roots_dont():
    """LLaVA-1.5's text block names neither layers nor heads: the Llama class's 32 layers and 32 heads of 128 apply."""
    text = {"model_type": "llama", "vocab_size": 32064, "torch_dtype": "float16"}
    spec = spec_of({"model_type": "llava", "text_config": text})
    assert layers_of(spec) == [FullAttention(32, 32, 128)] * 32


def test_wrapped_gemma_2_and_qwen_2_blocks():
    """PaliGemma 2 leaves out 8 heads, Qwen2-Audio layers and heads: gemma2's and qwen2's class defaults."""
    gemma = {"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 2, "num_key_value_heads": 4}
    spec = spec_of({"model_type": "paligemma", "text_config": {**gemma, "sliding_window": 4096}})
    assert layers_of(spec) == [SlidingWindow(8, 4, 256, 4096), FullAttention(8, 4, 256)]
    assert spec.provenance.confidence == "class defaults"
    audio = spec_of({"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "vocab_size": 156032}})
    assert layers_of(audio) == [FullAttention(32, 32, 128)] * 32


def test_grok_2_writes_minus_one_for_no_window():
    grok = {**PLAIN, "model_type": "git", "architectures": ["Grok1ForCausalLM"], "sliding_window_size": -1}
    assert kinds_of(spec_of(grok, num_key_value_heads=2)) == [FullAttention] * 4


def test_looped_layers_keep_a_cache_for_each_pass():
    assert spec_of(PLAIN, model_type="ouro", total_ut_steps=4).layer_count == 16
    window = spec_of(PLAIN, model_type="iquestloopcoder", num_key_value_heads=2, loop_num=2, loop_window_size=64)
    assert kinds_of(window) == [FullAttention] * 4 + [SlidingWindow] * 4
    core = {
        "model_type": "dory",
        "num_key_value_heads": 2,
        "sliding_window": 64,
        "n_input_layers": 1,
        "n_output_layers": 1,
    }
    assert spec_of(PLAIN, **core, n_recurrent_loops=3).layer_count == 1 + 3 * 2 + 1
    last = spec_of(PLAIN, **core, n_recurrent_loops=3, recurrent_kv_cache_mode="last_loop")
    assert last.layer_count == 4


def test_zamba_1_by_its_class():
    """transformers 5.24.0, Zamba: layer 2, then layer i where (i - 3) % period == offset."""
    zamba = {
        **PLAIN, "model_type": "zamba", "num_hidden_layers": 14, "num_key_value_heads": 8, "attn_layer_period": 6,
        "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
        "attention_hidden_size": 2048,
    }  # fmt: skip
    spec = spec_of(zamba)
    assert [index for index, name in enumerate(spec.sequence()) if name == "hybrid"] == [2, 7, 13]
    assert branches(spec.blocks["hybrid"]) == (FullAttention(8, 8, 256), Mamba1(2048, 16, 4))


def test_ling_2_5_is_lightning_where_no_convolution_is_named():
    ling = {**MLA, "model_type": "bailing_hybrid", "layer_group_size": 4, "head_dim": 128}
    assert kinds_of(spec_of(ling)) == [Lightning] * 3 + [LatentAttention]
    assert kinds_of(spec_of(ling, short_conv_kernel_size=4)) == [Kda] * 3 + [LatentAttention]


def test_assume_dense_marks_the_result():
    unknown = {**PLAIN, "model_type": "neverheardof", "num_key_value_heads": 2}
    spec = import_config(unknown, name="m", assume_dense=True)
    assert layers_of(spec) == [FullAttention(8, 2, 128)] * 4
    assert spec.provenance.confidence == "assumed" and any("on request" in s for s in spec.assumptions)
    window = import_config({**PLAIN, "sliding_window": 64}, name="m", assume_dense=True)
    assert kinds_of(window) == [FullAttention] * 4 and window.provenance.confidence == "assumed"


def test_a_window_that_never_bites_is_left_out():
    spec = spec_of(sliding_window=4096, max_position_embeddings=4096)
    assert kinds_of(spec) == [FullAttention] * 4 and any("left out" in sentence for sentence in spec.assumptions)


def test_a_folder_with_both_files(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, '
                                        '"num_attention_heads": 2, "num_key_value_heads": 1}')  # fmt: skip
    (folder / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    )
    for path in (folder, folder / "config.json"):
        spec = load_config(path)
        assert (spec.id, spec.quantization.bits, spec.kv_quantization.algorithm) == ("my-model", 8, "FP8")
