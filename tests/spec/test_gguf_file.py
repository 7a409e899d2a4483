"""GGUF headers: files written by the gguf package's own writer, and files nobody should trust."""

import struct
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError
from kvplan.spec.importers.gguf import load_gguf
from kvplan.spec.importers.gguf_file import LongArray, read_header


def write_model(path: Path, arch: str = "llama", tied: bool = False, **tensors: tuple[tuple[int, ...], str]) -> Path:
    """A two-layer model with 4 KV heads of 64, written by gguf.GGUFWriter; `tensors` are name -> (shape, type)."""
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name("Tiny Llama")
    writer.add_block_count(2)
    writer.add_context_length(4096)
    writer.add_embedding_length(512)
    writer.add_head_count(8)
    writer.add_head_count_kv(4)
    writer.add_token_list([f"t{i}" for i in range(300)])
    writer.add_array("general.tags", ["a", "b"])
    shapes = {"token_embd.weight": ((300, 512), "Q4_K"), "blk.0.ffn_up.weight": ((1024, 512), "Q8_0")}
    shapes |= {"output_norm.weight": ((512,), "F32"), "blk.0.attn_q.weight": ((512, 512), "F16")}
    if not tied:
        shapes["output.weight"] = ((300, 512), "Q6_K")
    for name, (shape, kind) in (shapes | tensors).items():
        dtype = gguf.GGMLQuantizationType[kind]
        if kind in ("F32", "F16"):
            writer.add_tensor(name, np.zeros(shape, dtype=np.float32 if kind == "F32" else np.float16))
        else:
            rows = gguf.quant_shape_to_byte_shape(shape, dtype)
            writer.add_tensor(name, np.zeros(rows, dtype=np.uint8), raw_shape=rows, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_sizes_and_layout_of_a_written_file(tmp_path: Path) -> None:
    spec, tensors = load_gguf(write_model(tmp_path / "tiny.gguf"))
    # ggml block formats: Q4_K 144 B and Q6_K 210 B for 256 values, Q8_0 34 B for 32
    expected = {
        "Q4_K": 300 * 512 // 256 * 144,
        "Q6_K": 300 * 512 // 256 * 210,
        "Q8_0": 1024 * 512 // 32 * 34,
        "F16": 512 * 512 * 2,
        "F32": 512 * 4,
    }
    assert tensors.bytes_by_dtype == dict(sorted(expected.items()))
    assert tensors.total_bytes == sum(expected.values())
    assert tensors.bytes_by_part["embedding"] == expected["Q4_K"]
    assert tensors.bytes_by_part["head"] == expected["Q6_K"]
    assert (tensors.tied_head, tensors.warnings) == (False, ())
    assert (spec.id, spec.vocab_size, spec.max_context, spec.counts) == ("tiny-llama", 300, 4096, {"attention": 2})
    assert spec.parameters is not None
    assert spec.parameters.total == 2 * 300 * 512 + 1024 * 512 + 512 * 512 + 512
    assert spec.quantization is not None


def test_the_package_reader_agrees_on_every_tensor(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", tied=True)
    theirs = {tensor.name: (tensor.n_elements, tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    header = read_header(path)
    assert {tensor.name: (tensor.elements, tensor.nbytes) for tensor in header.tensors} == theirs
    assert header.metadata["tokenizer.ggml.tokens"] == LongArray(300)
    assert header.metadata["general.tags"] == ["a", "b"]
    assert load_gguf(path)[1].tied_head


def test_a_header_alone_is_enough_and_says_so(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf")
    header = read_header(whole)
    start = whole.stat().st_size - header.held_bytes
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:start])
    spec, tensors = load_gguf(cut)
    assert tensors.total_bytes == load_gguf(whole)[1].total_bytes
    assert "cut.gguf ends before its tensors do" in tensors.warnings[0]
    assert spec.counts == {"attention": 2}


def test_split_files_are_summed_and_missing_parts_are_told(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama", split_max_tensors=2)
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_embedding_length, 256),
        (writer.add_head_count, 4),
        (writer.add_context_length, 1024),
    ):
        add(value)
    for name in ("token_embd.weight", "output.weight", "output_norm.weight"):
        writer.add_tensor(name, np.zeros((4, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = tmp_path / "m-00001-of-00002.gguf"
    tensors = load_gguf(first)[1]
    assert (tensors.total_bytes, tensors.warnings) == (3 * 4 * 256 * 4, ())
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    assert "1 of 2 split parts are missing" in load_gguf(first)[1].warnings[0]


def pack(*, version: int = 3, tensors: int = 0, pairs: int = 0, rest: bytes = b"", magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs) + rest


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + dims + struct.pack("<IQ", kind, offset)


ARCH = pair(b"general.architecture", 8, struct.pack("<Q", 5) + b"llama")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "found 0 bytes left at offset 0, expected 4 for the magic"),
        (pack(magic=b"GGML"), "expected the magic b'GGUF'"),
        (pack(version=1), "found GGUF version 1, expected 2 or 3"),
        (pack(version=99), "found GGUF version 99"),
        (pack(tensors=1 << 63), "tensors, expected at most"),
        (pack(pairs=(1 << 64) - 1), "metadata pairs, expected at most"),
        (pack()[:17], "truncated file"),
        (pack(pairs=2, rest=ARCH), "truncated file"),
        (pack(pairs=2, rest=ARCH * 2), "twice"),
        (pack(pairs=1, rest=struct.pack("<Q", 1 << 62)), "expected at most 1,024"),
        (pack(pairs=1, rest=pair(b"k", 13, b"")), "found value type 13"),
        (pack(pairs=1, rest=pair(b"k", 9, struct.pack("<IQ", 0, 1 << 60))), "expected at most 4,194,304"),
        (pack(pairs=1, rest=pair(b"k", 9, struct.pack("<IQ", 0, 1 << 20))), "truncated file"),
        (pack(pairs=1, rest=pair(b"k", 9, struct.pack("<IQ", 8, 1 << 20))), "truncated file"),
        (pack(pairs=1, rest=pair(b"k", 9, struct.pack("<IQ", 9, 1))), "array of value type 9"),
        (pack(pairs=1, rest=pair(b"k", 8, struct.pack("<Q", 2) + b"\xff\xff")), "no UTF-8"),
        (pack(pairs=1, rest=pair(b"general.alignment", 4, struct.pack("<I", 3))), "expected a power of two"),
        (pack(tensors=1, rest=tensor(b"t", [2] * 5, 0, 0)), "found 5 dimensions, expected at most 4"),
        (pack(tensors=1, rest=tensor(b"t", [1 << 40, 1 << 40], 0, 0)), "fewer than 2^62"),
        (pack(tensors=1, rest=tensor(b"t", [33], 8, 0)), "rows of a multiple of 32"),
        (pack(tensors=1, rest=tensor(b"t", [32], 9_999, 0)), "found tensor type 9999"),
        (pack(tensors=1, rest=tensor(b"t", [32], 0, 7)), "expected a multiple of 32"),
        (pack(tensors=2, rest=tensor(b"t", [32], 0, 0) + tensor(b"u", [32], 0, 32)), "from 128 on"),
        (pack(tensors=2, rest=tensor(b"t", [32], 0, 0) + tensor(b"t", [32], 0, 128)), "a second time"),
        (pack(), "general.architecture: found null"),
    ],
)
def test_broken_headers_get_one_sentence(tmp_path: Path, data: bytes, part: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        load_gguf(path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_big_endian_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    body = b"general.architecture"
    path.write_bytes(b"GGUF" + struct.pack(">IQQQ", 3, 0, 1, len(body)) + body + struct.pack(">IQ", 8, 5) + b"llama")
    assert read_header(path).metadata == {"general.architecture": "llama"}


def test_without_the_package_the_user_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.spec.importers import gguf_file

    path = write_model(tmp_path / "tiny.gguf")
    gguf_file._block_sizes.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"install kvplan-llm\[gguf\]"):
        load_gguf(path)
    gguf_file._block_sizes.cache_clear()


def test_a_projector_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    kind = pair(b"general.type", 8, struct.pack("<Q", 6) + b"mmproj")
    path.write_bytes(pack(pairs=2, rest=ARCH + kind))
    with pytest.raises(InputError, match="expected a model"):
        load_gguf(path)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
@example(b"", 0, 0)
def test_any_bytes_give_a_result_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes, tensors: int, pairs: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.gguf"
    for data in (rest, pack(tensors=tensors, pairs=pairs, rest=rest), pack(pairs=pairs + 1, rest=ARCH + rest)):
        path.write_bytes(data)
        try:
            load_gguf(path)
        except KvplanError as error:
            assert "\n" not in str(error)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_changed_byte_or_cut_never_escapes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("mutate")
    whole = write_model(folder / "w.gguf").read_bytes()
    header = len(whole) - read_header(folder / "w.gguf").held_bytes
    at = data.draw(st.integers(0, header - 1))
    changed = bytearray(whole[: data.draw(st.sampled_from([header, at]))])
    if at < len(changed):
        changed[at] = data.draw(st.integers(0, 255))
    (folder / "m.gguf").write_bytes(changed)
    try:
        load_gguf(folder / "m.gguf")
    except KvplanError as error:
        assert "\n" not in str(error)
