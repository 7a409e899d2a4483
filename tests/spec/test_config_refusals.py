"""What the importer refuses: exit 3 where the layout isn't decided, exit 2 for values of the wrong type or range."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError, UnsupportedArchitectureError
from kvplan.spec.importers.config import import_config, load_config

PLAIN = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
MLA = {**PLAIN, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
LINEAR = {
    "full_attn_layers": [4],
    "kda_layers": [1, 2, 3],
    "num_heads": 8,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
}


def without(base: dict, *names: str) -> dict:
    return {key: value for key, value in base.items() if key not in names}


UNDECIDED = {
    "unknown model_type": ({**PLAIN, "model_type": "llamaa"}, "llamaa", "llama"),
    "no architecture and odd fields": ({**without(PLAIN, "model_type"), "ssm": 1}, "no model_type"),
    "window nobody places": ({**PLAIN, "sliding_window": 1024}, "sliding_window", "layer_types"),
    "chunk nobody places": ({**PLAIN, "attention_chunk_size": 1024}, "attention_chunk_size"),
    "list of the wrong length": ({**PLAIN, "layer_types": ["full_attention"] * 3}, "3 entries", "4 layers"),
    "unknown layer kind": ({**PLAIN, "layer_types": ["warp"] * 4}, "'warp'"),
    "window layers without a width": (
        {**PLAIN, "layer_types": ["sliding_attention"] * 4}, "layer_types", "sliding_window",
    ),
    "class window without a width": ({**PLAIN, "model_type": "gemma3_text"}, "no width"),
    "recurrent layers in a dense family": ({**PLAIN, "layer_types": ["mamba"] * 4}, "recurrent"),
    "hybrid layers in a dense family": ({**PLAIN, "layer_types": ["hybrid"] * 4}, "hybrid"),
    "width that doesn't divide": ({**PLAIN, "num_attention_heads": 6, "num_key_value_heads": 6}, "1024 / 6"),
    "KV heads that don't divide": ({**PLAIN, "num_key_value_heads": 3}, "8 query heads", "3 KV heads"),
    "more KV heads than heads": ({**PLAIN, "num_key_value_heads": 16}, "16 KV heads"),
    "no layer count": (without(PLAIN, "num_hidden_layers"), "num_hidden_layers"),
    "no heads": (without(PLAIN, "num_attention_heads"), "query heads"),
    "KV heads the class doesn't derive": (
        {**without(PLAIN, "num_key_value_heads"), "model_type": "qwen2"}, "num_key_value_heads",
    ),
    "null KV heads of a searched model": (
        {**PLAIN, "model_type": "nemotron-nas", "num_key_value_heads": None}, "block_configs",
    ),
    "MLA without its rank": (without(MLA, "kv_lora_rank"), "kv_lora_rank"),
    "MLA without its rotary part": (without(MLA, "qk_rope_head_dim"), "qk_rope_head_dim"),
    "shared layers without their count": (
        {**PLAIN, "model_type": "gemma3n_text", "sliding_window": 512, "layer_types": ["full_attention"] * 4},
        "num_kv_shared_layers",
    ),
    "sharing before any owner": (
        {**PLAIN, "model_type": "gemma3n_text", "sliding_window": 512, "num_kv_shared_layers": 2,
         "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]}, "kind window",
    ),
    "cross-layer factor missing": ({**PLAIN, "use_cla": True}, "cla_share_factor"),
    "layer lists that overlap": (
        {**MLA, "model_type": "kimi_linear", "linear_attn_config": {**LINEAR, "full_attn_layers": [3]}}, "once",
    ),
    "half of the layer lists": (
        {**MLA, "model_type": "kimi_linear", "linear_attn_config": without(LINEAR, "kda_layers")}, "kda_layers",
    ),
    "hybrid without any list": ({**MLA, "model_type": "kimi_linear"}, "layer_types"),
    "index out of the stack": ({**PLAIN, "model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [4]}, "layer 4"),
    "pattern of the wrong length": (
        {**PLAIN, "model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "2 entries",
    ),
    "pattern with an unknown letter": (
        {**PLAIN, "model_type": "nemotron_h", "hybrid_override_pattern": "M*X-"}, "'X'",
    ),
    "ratio list too short": (
        {**PLAIN, "model_type": "deepseek_v4", "head_dim": 512, "sliding_window": 128, "compress_ratios": [0]},
        "1 entries",
    ),
    "per-layer heads of the wrong length": ({**PLAIN, "num_key_value_heads": [2, 2]}, "2 entries"),
    "switched-on window without its start": (
        {**PLAIN, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "max_window_layers",
    ),
    "an indexer without its width": ({**MLA, "model_type": "deepseek_v32", "index_head_dim": None}, "index_head_dim"),
    "shared heads that don't divide": ({**PLAIN, "model_type": "plamo", "n_shared_head": 3}, "n_shared_head 3"),
    "an early Falcon that tells no KV heads": (
        {"model_type": "RefinedWeb", "hidden_size": 1024, "n_layer": 4, "n_head": 8}, "n_head_kv", "multi_query",
    ),
    "latents where K and V are convolved": ({**MLA, "model_type": "inkling", "sliding_window": None}, "kv_lora_rank"),
    "Jamba without its period": ({**PLAIN, "model_type": "jamba"}, "attn_layer_period"),
    "state heads that don't divide": (
        {**PLAIN, "model_type": "granitemoehybrid", "layer_types": ["mamba"] * 4, "mamba_n_heads": 7, "mamba_expand": 2,
         "mamba_d_head": "auto", "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_groups": 1}, "2048",
    ),
}  # fmt: skip

WRONG_VALUES = {
    "list for a number": ({**PLAIN, "hidden_size": [1024]}, "hidden_size", "[1024]"),
    "string for a number": ({**PLAIN, "num_hidden_layers": "4"}, "num_hidden_layers", "'4'"),
    "boolean for a number": ({**PLAIN, "num_attention_heads": True}, "num_attention_heads"),
    "fraction": ({**PLAIN, "head_dim": 64.5}, "head_dim", "64.5"),
    "NaN": ({**PLAIN, "head_dim": float("nan")}, "head_dim", "NaN"),
    "1e300": ({**PLAIN, "hidden_size": 1e300}, "hidden_size"),
    "negative heads": ({**PLAIN, "num_attention_heads": -8}, "num_attention_heads", "-8"),
    "zero head_dim": ({**PLAIN, "head_dim": 0}, "head_dim", "found 0"),
    "zero KV heads": ({**PLAIN, "num_key_value_heads": 0}, "num_key_value_heads"),
    "10^12 layers": ({**PLAIN, "num_hidden_layers": 10**12}, "num_hidden_layers", "10,000"),
    "no layers": ({**PLAIN, "num_hidden_layers": 0}, "num_hidden_layers"),
    "text block that is a list": ({"model_type": "w", "text_config": [PLAIN]}, "text_config"),
    "layer list that is a string": ({**PLAIN, "layer_types": "full_attention"}, "layer_types"),
    "layer list of numbers": ({**PLAIN, "layer_types": [1, 2, 3, 4]}, "layer_types"),
    "flag that is a word": (
        {**PLAIN, "model_type": "qwen2", "sliding_window": 9, "use_sliding_window": "no"}, "use_sliding_window",
    ),
    "negative window": ({**PLAIN, "model_type": "mistral", "sliding_window": -5}, "sliding_window", "-5"),
    "huge repeat": (
        {**PLAIN, "model_type": "gpt_neo", "window_size": 8, "attention_types": [[["global"], 10**12]]},
        "attention_types",
    ),
    "state dtype": (
        {**PLAIN, "model_type": "nemotron_h", "hybrid_override_pattern": "M***", "mamba_ssm_cache_dtype": "int3"},
        "int3",
    ),
    "MLP width that is a word": ({**PLAIN, "vocab_size": 9, "intermediate_size": "x"}, "intermediate_size", "'x'"),
    "negative width of the MLP": ({**PLAIN, "vocab_size": 9, "intermediate_size": -3}, "intermediate_size", "-3"),
    "experts that are a word": ({**PLAIN, "vocab_size": 9, "num_local_experts": "8"}, "num_local_experts", "'8'"),
    "tied embeddings that are a word": ({**PLAIN, "tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
    "dtype that is a number": ({**PLAIN, "torch_dtype": 16}, "torch_dtype", "found 16"),
    "attention types that are a word": (
        {**PLAIN, "model_type": "gpt_neo", "window_size": 8, "attention_layers": ["local"] * 4, "attention_types": "x"},
        "attention_types",
    ),
    "quantization that is a word": ({**PLAIN, "quantization_config": "fp8"}, "quantization_config"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNDECIDED.values(), ids=UNDECIDED.keys())
def test_an_undecided_layout_is_refused(case):
    config, *words = case
    with pytest.raises(UnsupportedArchitectureError) as refused:
        import_config(config, name="odd-model")
    message = str(refused.value)
    assert refused.value.exit_code == 3
    assert message.startswith("odd-model") and "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("case", WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
def test_a_wrong_value_is_bad_input(case):
    config, *words = case
    with pytest.raises(InputError) as refused:
        import_config(config, name="odd-model")
    message = str(refused.value)
    assert refused.value.exit_code == 2
    assert message.startswith("odd-model") and "expected" in message and len(message) < 400
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "empty"),
        ("not json", "no JSON"),
        ("[1]", "list"),
        ("3", "number"),
        ('{"hidden_size": 1, "hidden_size": 2}', "twice"),
        ("[" * 10_000 + "]" * 10_000, "nesting"),
        ('{"a": ' * 10_000 + "1" + "}" * 10_000, "nesting"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, content, word):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(InputError, match=word):
        load_config(file)


def test_a_huge_or_missing_file(tmp_path):
    file = tmp_path / "config.json"
    with pytest.raises(InputError, match="can't be read"):
        load_config(tmp_path)
    file.write_bytes(b" " * (50 << 20))
    with pytest.raises(InputError, match="at most"):
        load_config(file)


@pytest.mark.parametrize("odd", [[1], "FP8", 3])
def test_a_second_file_without_an_object(odd):
    with pytest.raises(InputError, match=r"hf_quant_config.json: quantization: found .*, expected an object"):
        import_config(PLAIN, name="m", quant_config={"quantization": odd})


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-2, 10**13)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(-1, 9))
)
FIELDS = st.sampled_from(
    [*MLA, "head_dim", "layer_types", "sliding_window", "num_nextn_predict_layers", "compress_ratios", "text_config",
     "linear_attn_config", "per_layer_config", "quantization_config", "indexer_types", "index_head_dim", "v_head_dim",
     "use_cla", "kv_reuse_group", "hybrid_override_pattern", "attn_type_list", "block_configs", "vocab_size"]
)  # fmt: skip
TYPES = st.sampled_from(
    ["llama", "deepseek_v3", "deepseek_v4", "gemma3_text", "qwen3_next", "nemotron_h", "kimi_linear", "falcon_h1",
     "whisper", "phi4flash", "lfm2", "mimo_v2", "plamo2", "hymba", "inkling", "zamba2"]
)  # fmt: skip


@given(TYPES, st.dictionaries(FIELDS, ODD, max_size=5))
def test_no_file_gets_more_than_one_sentence(model_type, fields):
    """Whatever stands in a file: a spec or one of kvplan's own errors, and nothing else."""
    try:
        spec = import_config({**MLA, **fields, "model_type": model_type}, name="m")
    except KvplanError as error:
        assert "\n" not in str(error)
    else:
        json.dumps(spec.sequence())
        assert spec.layer_count >= 1
