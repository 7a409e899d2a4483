"""Safetensors headers: sizes by hand from shape x itemsize, and headers nobody should trust."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.spec.importers.safetensors import DTYPE_BITS, INDEX_NAME, Shard, parse_header, read_headers
from kvplan.spec.importers.tensors import PARTS, part_of


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def file_of(header: object, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def read(data: bytes, size: int | None = None) -> list:
    return parse_header(Shard("x", lambda offset, count: data[offset : offset + count], size or len(data)))


LAYER = {
    "__metadata__": {"format": "pt"},
    "model.embed_tokens.weight": entry("BF16", [100, 8], 0, 1600),
    "model.layers.0.self_attn.q_proj.weight": entry("F8_E4M3", [8, 8], 1600, 1664),
    "model.layers.0.mlp.experts.0.up_proj.weight": entry("F4", [16, 8], 1664, 1728),
    "model.layers.0.input_layernorm.weight": entry("F32", [8], 1728, 1760),
}


def write_sharded(folder: Path, total_size: int | None = 1776) -> None:
    (folder / "a-00001-of-00002.safetensors").write_bytes(file_of(LAYER, 1760))
    (folder / "a-00002-of-00002.safetensors").write_bytes(file_of({"lm_head.weight": entry("BF16", [8], 0, 16)}, 16))
    names = {name: "a-00001-of-00002.safetensors" for name in LAYER if name != "__metadata__"}
    index = {"weight_map": names | {"lm_head.weight": "a-00002-of-00002.safetensors"}}
    if total_size is not None:
        index["metadata"] = {"total_size": total_size}
    (folder / INDEX_NAME).write_text(json.dumps(index))


def test_a_sharded_checkpoint_is_summed_by_dtype_and_part(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    found = read_headers(tmp_path)
    assert found.total_bytes == 1600 + 64 + 64 + 32 + 16
    assert found.bytes_by_dtype == {"BF16": 1616, "F32": 32, "F4": 64, "F8_E4M3": 64}
    assert found.parameters_by_dtype == {"BF16": 808, "F32": 8, "F4": 128, "F8_E4M3": 64}
    assert found.bytes_by_part == {"embedding": 1600, "attention": 64, "experts": 64, "norm": 32, "head": 16}
    assert (found.tensor_count, len(found.files), found.tied_head, found.warnings) == (5, 2, False, ())


def test_a_wrong_total_in_the_index_is_a_warning(tmp_path: Path) -> None:
    write_sharded(tmp_path, total_size=1777)
    assert "the headers hold 1,776 bytes, the index says 1,777" in read_headers(tmp_path).warnings[0]


def test_an_index_alone_gives_totals(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    found = read_headers(tmp_path)
    assert (found.total_bytes, found.tensor_count, found.complete, found.bytes_by_dtype) == (1776, 5, False, {})
    assert not found.tied_head


def test_one_file_without_an_index_and_a_tied_head(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(file_of(LAYER, 1760))
    (tmp_path / "consolidated.safetensors").write_bytes(file_of(LAYER, 1760))
    found = read_headers(tmp_path)
    assert (found.total_bytes, found.tied_head, len(found.files)) == (1760, True, 1)


def test_an_incomplete_download_is_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "a-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="found 1 of the 2 files"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "x.bin", "a\\b.safetensors", "\ud800.safetensors", "a\0.safetensors"]
)
def test_an_index_may_not_leave_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(InputError, match=r"expected a \.safetensors file of the same folder"):
        read_headers(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found 0 \*\.safetensors files"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "found 0 bytes, expected a safetensors file of at least 8"),
        (b"\x00" * 7, "found 7 bytes"),
        (struct.pack("<Q", 1 << 63), "expected at most 100,000,000"),
        (struct.pack("<Q", 100) + b"{}", "expected a header that ends inside the file"),
        (file_of(b"\xff\xfe"), "no UTF-8"),
        (file_of(b"not json"), "no JSON"),
        (file_of(b""), "empty"),
        (file_of([1]), "expected a JSON object"),
        (file_of(b'{"a": 1, "a": 2}'), "twice"),
        (file_of(b"[" * 100_000), "nesting"),
        (file_of({"t": [1]}), "expected an object with dtype"),
        (file_of({"t": entry("BF17", [1], 0, 2)}, 2), "nearest: BF16"),
        (file_of({"t": entry("F32", [-1], 0, 4)}, 4), "found shape [-1]"),
        (file_of({"t": entry("F32", [True], 0, 4)}, 4), "found shape [true]"),
        (file_of({"t": entry("F32", [1.0], 0, 4)}, 4), "found shape [1.0]"),
        (file_of({"t": entry("F32", [1 << 62, 4], 0, 4)}, 4), "fewer than 2^63 values"),
        (file_of({"t": entry("F32", [2], 0, 4)}, 4), "shape x itemsize = 8 bytes"),
        (file_of({"t": entry("F4", [3], 0, 1)}, 1), "a fraction of a byte"),
        (file_of({"t": entry("F32", [1], 4, 0)}), "shape x itemsize"),
        (file_of({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4), "expected two whole numbers"),
        (file_of({"t": entry("F32", [1], 0, 4), "u": entry("F32", [1], 8, 12)}, 12), "start at 8, expected 4"),
        (file_of({"t": entry("F32", [1], 0, 4), "u": entry("F32", [1], 0, 4)}, 4), "start at 0, expected 4"),
        (file_of({"t": entry("F32", [2], 0, 8)}, 4), "(truncated file)"),
        (file_of({"t": entry("F32", [1], 0, 4)}, 8), "(bytes no tensor owns)"),
        (file_of({"t" * 2000: entry("F32", [1], 0, 4)}, 4), "expected at most 1,024"),
    ],
)
def test_broken_headers_get_one_sentence(data: bytes, part: str) -> None:
    with pytest.raises(InputError) as caught:
        read(data)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reader_that_stops_early_is_a_truncated_file() -> None:
    data = file_of(LAYER, 1760)
    with pytest.raises(InputError, match="truncated file"):
        parse_header(Shard("x", lambda offset, count: data[offset : offset + count][:50], None))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match=INDEX_NAME):
        read_headers(tmp_path)


# Names as published, one family a line: Llama, DeepSeek V3, Mixtral, Qwen2-MoE, gpt-oss, Jamba, Nemotron-H,
# Mamba, GPT-2, GPT-NeoX, InternLM2, Gemma 3, Qwen2.5-VL, RWKV, and llama.cpp's names.
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.self_attn.o_proj.weight", "attention"),
        ("model.layers.3.mlp.gate_proj.weight", "mlp"),
        ("model.layers.3.post_attention_layernorm.weight", "norm"),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", "attention"),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", "norm"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "router"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "shared_experts"),
        ("model.layers.3.mlp.experts.255.down_proj.weight_scale_inv", "experts"),
        ("model.layers.3.block_sparse_moe.gate.weight", "router"),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", "experts"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "shared_experts"),
        ("model.layers.3.mlp.router.weight", "router"),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", "experts"),
        ("model.layers.3.self_attn.sinks", "attention"),
        ("model.layers.3.mamba.in_proj.weight", "attention"),
        ("model.layers.3.feed_forward.down_proj.weight", "mlp"),
        ("backbone.layers.3.mixer.up_proj.weight", "mlp"),
        ("backbone.layers.3.mixer.A_log", "attention"),
        ("backbone.layers.3.mixer.q_proj.weight", "attention"),
        ("backbone.embeddings.weight", "embedding"),
        ("transformer.h.0.attn.c_attn.weight", "attention"),
        ("transformer.h.0.mlp.c_fc.weight", "mlp"),
        ("transformer.h.0.ln_1.weight", "norm"),
        ("transformer.wte.weight", "embedding"),
        ("embed_out.weight", "head"),
        ("gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "mlp"),
        ("model.tok_embeddings.weight", "embedding"),
        ("output.weight", "head"),
        ("model.layers.0.feed_forward.w2.weight", "mlp"),
        ("model.layers.0.attention.wqkv.weight", "attention"),
        ("language_model.model.layers.0.self_attn.k_norm.weight", "norm"),
        ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", "vision"),
        ("multi_modal_projector.mm_input_projection_weight", "vision"),
        ("visual.blocks.0.attn.qkv.weight", "vision"),
        ("rwkv.blocks.0.attention.key.weight", "attention"),
        ("mtp.layers.0.self_attn.q_proj.weight", "draft"),
        ("lm_head.weight", "head"),
        ("token_embd.weight", "embedding"),
        ("output_norm.weight", "norm"),
        ("blk.0.attn_output.weight", "attention"),
        ("blk.0.ffn_gate_inp.weight", "router"),
        ("blk.0.ffn_gate_inp_shexp.weight", "shared_experts"),
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.0.ffn_down_shexp.weight", "shared_experts"),
        ("blk.0.ffn_down.weight", "mlp"),
        ("blk.0.ssm_in.weight", "attention"),
        ("blk.0.ssm_norm.weight", "norm"),
        ("blk.0.shortconv.in_proj.weight", "attention"),
        ("rope_freqs.weight", "other"),
    ],
)
def test_parts_by_name(name: str, part: str) -> None:
    assert part_of(name) == part


def test_a_draft_layer_stored_as_a_decoder_layer_counts_as_draft(tmp_path: Path) -> None:
    header = {
        "model.layers.60.self_attn.o_proj.weight": entry("BF16", [2], 0, 4),
        "model.layers.61.self_attn.o_proj.weight": entry("BF16", [2], 4, 8),
        "model.layers.61.eh_proj.weight": entry("BF16", [2], 8, 12),
    }
    (tmp_path / "model.safetensors").write_bytes(file_of(header, 12))
    assert read_headers(tmp_path).bytes_by_part == {"attention": 4, "draft": 8}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_a_result_or_an_input_error(data: bytes) -> None:
    for raw in (data, file_of(data)):
        try:
            read(raw)
        except InputError as error:
            assert "\n" not in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        JSON | st.fixed_dictionaries({"dtype": st.sampled_from([*DTYPE_BITS]), "shape": JSON, "data_offsets": JSON}),
        max_size=3,
    )
)
def test_any_json_header_gives_a_result_or_an_input_error(header: dict) -> None:
    try:
        read(file_of(header))
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["BF16", "F32", "I8", "U64"]), st.lists(st.integers(0, 9), max_size=3)), max_size=6
    )
)
def test_a_sound_header_sums_to_its_data(tensors: list) -> None:
    header, at = {}, 0
    for number, (dtype, shape) in enumerate(tensors):
        size = DTYPE_BITS[dtype] // 8
        for dim in shape:
            size *= dim
        header[f"t{number}"] = entry(dtype, shape, at, at + size)
        at += size
    assert sum(tensor.nbytes for tensor in read(file_of(header, at))) == at
    assert {part_of(name) for name in header} <= set(PARTS)
