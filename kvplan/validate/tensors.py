"""The tensors one cache entry is made of, from a layer's geometry: what an engine's kernel would see.

Nothing here adds bytes up. The sizes come from the tensors once they exist, and are held against `kvplan.cache`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.cache.layout import COMPRESSED, INDEX_KEYS, KV, LATENT, WINDOW, Part
from kvplan.errors import InputError, did_you_mean
from kvplan.spec import layers as kinds

FP8 = "float8_e4m3fn"
_PLAIN = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": FP8}
_STATE = {"model dtype": "bfloat16"}
DTYPES = (*_PLAIN, "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "fp8_ds_mla", "nvfp4")
INT4_PER_BYTE = 2
NVFP4_GROUP = 16
LATENT_SCALE_GROUP = 128
COMPRESSED_SCALE_GROUP = 64


@dataclass(frozen=True)
class Field:
    """One tensor of an entry: its torch dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """The tensors of one entry; `packed` ones lie side by side in one record of bytes, `pad` bytes after them."""

    fields: tuple[Field, ...]
    packed: bool = False
    pad: int = 0


def entry_tensors(layer: kinds.SingleLayer, part: Part) -> Entry:
    """The tensors of one entry of `part` of `layer`. Raises InputError for a dtype that has no tensor layout here."""
    if part.role == "state":
        return _state(layer, part)
    if part.name == INDEX_KEYS:
        indexer = getattr(layer, "indexer", None)
        assert indexer is not None
        return _index(indexer.key_dim, part)
    if isinstance(layer, kinds.LatentAttention) and part.name == LATENT:
        packed = part.dtype == "fp8_ds_mla" or (part.dtype == "fp8" and layer.indexer is not None)
        return _record(layer.latent_dim, layer.rope_dim, part, LATENT_SCALE_GROUP if packed else None)
    if isinstance(layer, kinds.CompressedSparse) and part.name in (WINDOW, COMPRESSED):
        nope = layer.head_dim - layer.rope_dim
        packed = part.dtype in ("fp8", "fp8_ds_mla")
        return _record(nope, layer.rope_dim, part, COMPRESSED_SCALE_GROUP if packed else None)
    if isinstance(
        layer, kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention | kinds.CrossAttention
    ) and part.name in (KV, "cross K+V"):
        return _heads(layer.kv_heads, layer.head_dim, getattr(layer, "v_head_dim", None) or layer.head_dim, part)
    raise _unknown(part)


def _unknown(part: Part) -> InputError:
    return InputError(
        f"--kv-cache-dtype: found {part.dtype} for {part.name}, which has no tensors of its own here, expected one of "
        f"{', '.join(DTYPES)}{did_you_mean(part.dtype, DTYPES)}"
    )


def _heads(heads: int, key: int, value: int, part: Part) -> Entry:
    scales = (Field("key scale", "float32", (heads,)), Field("value scale", "float32", (heads,)))
    if part.dtype in _PLAIN:
        dtype = _PLAIN[part.dtype]
        return Entry((Field("key", dtype, (heads, key)), Field("value", dtype, (heads, value))))
    if part.dtype in ("fp8_per_token_head", "int8_per_token_head"):
        dtype = "int8" if part.dtype.startswith("int8") else FP8
        return Entry((Field("key", dtype, (heads, key)), Field("value", dtype, (heads, value)), *scales))
    if part.dtype == "int4_per_token_head":
        halves = [-(-width // INT4_PER_BYTE) for width in (key, value)]
        return Entry((Field("key", "uint8", (heads, halves[0])), Field("value", "uint8", (heads, halves[1])), *scales))
    if part.dtype == "nvfp4":
        return Entry(
            (
                Field("key", "uint8", (heads, -(-key // INT4_PER_BYTE))),
                Field("value", "uint8", (heads, -(-value // INT4_PER_BYTE))),
                Field("key scale", FP8, (heads, -(-key // NVFP4_GROUP))),
                Field("value scale", FP8, (heads, -(-value // NVFP4_GROUP))),
            )
        )
    raise _unknown(part)


def _record(nope: int, rope: int, part: Part, scale_group: int | None) -> Entry:
    """One vector for all heads: plain, or 8-bit values with scales and a 16-bit rotary part (656 and 584 bytes)."""
    if scale_group is None:
        if part.dtype not in _PLAIN:
            raise _unknown(part)
        return Entry((Field("record", _PLAIN[part.dtype], (nope + rope,)),))
    groups = -(-nope // scale_group)
    values, rotary = Field("nope", FP8, (nope,)), Field("rope", "bfloat16", (rope,))
    if scale_group == LATENT_SCALE_GROUP:
        return Entry((values, Field("scale", "float32", (groups,)), rotary), packed=True)
    # DeepSeek V4: a byte of scale per group at the end of the record, one byte of padding after them.
    return Entry((values, rotary, Field("scale", "uint8", (groups,))), packed=True, pad=1)


def _index(width: int, part: Part) -> Entry:
    if part.dtype in ("bf16", "fp32"):
        return Entry((Field("index key", _PLAIN[part.dtype], (width,)),))
    if part.dtype == "fp8":
        return Entry((Field("index key", FP8, (width,)), Field("scale", "float32", (1,))), packed=True)
    raise _unknown(part)


def _state(layer: kinds.SingleLayer, part: Part) -> Entry:
    dtype = _STATE.get(part.dtype, part.dtype)
    shape = _state_shape(layer, part.name.removesuffix(" state"))
    return Entry((Field(part.name, dtype, shape),))


def _state_shape(layer: kinds.SingleLayer, name: str) -> tuple[int, ...]:
    """The shape of a state tensor, rows first (vLLM 0.32 model_executor/layers/mamba/mamba_utils.py)."""
    match layer, name:
        case kinds.Mamba1(), "conv":
            return (layer.conv_kernel - 1, layer.inner)
        case kinds.Mamba1(), "recurrent":
            return (layer.inner, layer.state)
        case kinds.Mamba2(), "conv":
            return (layer.conv_kernel - 1, layer.heads * layer.head_dim + 2 * layer.groups * layer.state)
        case kinds.Mamba2(), "recurrent":
            return (layer.heads, layer.head_dim, layer.state)
        case kinds.GatedDelta(), "conv":
            streams = 2 * layer.key_heads * layer.key_dim + layer.value_heads * layer.value_dim
            return (layer.conv_kernel - 1, streams)
        case kinds.GatedDelta(), "recurrent":
            return (layer.value_heads, layer.value_dim, layer.key_dim)
        case kinds.Kda(), "conv":
            return (layer.conv_kernel - 1, 3, layer.heads * layer.head_dim)
        case ((kinds.Kda() | kinds.Lightning()), "recurrent"):
            return (layer.heads, layer.head_dim, layer.head_dim)
        case kinds.RgLru(), "conv":
            return (layer.conv_kernel - 1, layer.width)
        case kinds.RgLru(), "recurrent":
            return (layer.width,)
        case kinds.ShortConv(), "conv":
            return (layer.conv_kernel - 1, layer.channels)
        case kinds.Rwkv(), "token shift":
            return (layer.shift_rows, layer.hidden)
        case kinds.Rwkv(), "recurrent":
            square = (layer.heads, layer.head_dim, layer.head_dim)
            return square if layer.matrix_state else (3, layer.heads * layer.head_dim)
        case kinds.Mlstm(), "recurrent":
            return (layer.heads, layer.key_dim * layer.value_dim + layer.key_dim + 1)
        case kinds.CompressedSparse(), "compressor" | "index compressor":
            assert layer.ratio is not None
            blocks = 2 if layer.overlap else 1
            width = layer.head_dim
            if name.startswith("index"):
                assert layer.indexer is not None
                width = layer.indexer.key_dim
            return (blocks * layer.ratio, 2, blocks, width)
        case _:
            raise InputError(f"model: found a {name} state of {layer.kind}, which has no tensor layout to allocate")
