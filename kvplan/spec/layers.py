"""The layer kinds: what a checkpoint fixes about each layer's cache.

These are plain frozen dataclasses, so that a registered model can be loaded without pydantic; read from an
untrusted file they are validated by pydantic through the discriminated union `Layer` (key `kind`). They hold
geometry only. How geometry becomes bytes is decided in `kvplan.cache`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from kvplan.record import record

FORBID_EXTRA = {"extra": "forbid"}


@record
class Whole:
    """Bounds of an integer field, in the form pydantic asks of a metadata object.

    Strict: no booleans, no numeric strings. The upper bounds keep a hostile file from asking for 10^12 layers.
    """

    low: int = 1
    high: int = 10**8

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "ge": self.low, "le": self.high, "strict": True}


@record
class ByKind:
    """Makes pydantic choose a union's member by its `kind` key, without importing pydantic before it is needed."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import Discriminator

        return handler.generate_schema(Annotated[source, Discriminator("kind")])


Count: TypeAlias = Annotated[int, Whole()]
CountOrZero: TypeAlias = Annotated[int, Whole(low=0)]
Tokens: TypeAlias = Annotated[int, Whole(high=10**12)]
StateDtype: TypeAlias = Literal["float32", "bfloat16", "float16"]


@record
class Indexer:
    """A learned selector beside attention: one key per `pool` tokens is stored, `top_k` entries are then read.

    `top_k` counts tokens (or compressed entries, where the layer is compressed), not blocks. `heads` are the
    indexer's query heads: they cost FLOPs and no cache. `owns_keys` is False on a layer that stores no key of its
    own: it reuses the selection of an earlier layer or, with `scans_keys`, makes its own from that layer's keys.
    `key_format` pins the key's stored format where the model's published code fixes it.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    key_dim: Count
    top_k: Count | None = None
    heads: Count | None = None
    pool: Count = 1
    owns_keys: bool = True
    scans_keys: bool = False
    key_format: Literal["fp8"] | None = None


@record
class FullAttention:
    """K and V of every token. `v_head_dim` is the width of V where it differs from K's `head_dim`."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    indexer: Indexer | None = None
    kind: Literal["full_attention"] = "full_attention"


@record
class SlidingWindow:
    """K and V of the last `window` tokens, `window` as the checkpoint publishes it."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    window: Tokens
    v_head_dim: Count | None = None
    kind: Literal["sliding_window"] = "sliding_window"


@record
class ChunkedAttention:
    """K and V of the current chunk (Llama 4); the plan holds a full chunk of `chunk` tokens."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    chunk: Tokens
    v_head_dim: Count | None = None
    kind: Literal["chunked_attention"] = "chunked_attention"


@record
class LatentAttention:
    """MLA: one vector of `latent_dim` + `rope_dim` values a token, for all heads, K and V alike.

    `nope_head_dim` and `v_head_dim` are the expanded per-head widths: they cost nothing in a latent cache and
    tell what storing expanded heads would cost. A `window` caps the tokens kept (dots3).
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    latent_dim: Count
    rope_dim: CountOrZero
    nope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    window: Tokens | None = None
    indexer: Indexer | None = None
    kind: Literal["latent_attention"] = "latent_attention"


@record
class CompressedSparse:
    """DeepSeek V4: a raw window plus one compressed entry per `ratio` tokens, K and V being one shared vector.

    `ratio` None keeps the window only. `overlap` says that neighbouring compression blocks overlap, which doubles
    the compressor's state rows and width. `owns_compressed` is False on a V4.1 layer that reads the compressed
    entries of an earlier source layer.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    head_dim: Count
    rope_dim: CountOrZero
    window: Tokens
    ratio: Count | None = None
    overlap: bool = False
    indexer: Indexer | None = None
    owns_compressed: bool = True
    kind: Literal["compressed_sparse"] = "compressed_sparse"


@record
class Mamba1:
    """Mamba-1: convolution over `inner` channels and a state of `inner` x `state`."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    inner: Count
    state: Count
    conv_kernel: Count
    state_dtype: StateDtype | None = None
    kind: Literal["mamba1"] = "mamba1"


@record
class Mamba2:
    """Mamba-2: convolution over heads x head_dim + 2 x groups x state channels, state heads x head_dim x state."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    conv_kernel: Count
    state_dtype: StateDtype | None = None
    kind: Literal["mamba2"] = "mamba2"


@record
class GatedDelta:
    """Gated DeltaNet: convolution over q, k and v streams, state value_heads x key_dim x value_dim."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    key_heads: Count
    key_dim: Count
    value_heads: Count
    value_dim: Count
    conv_kernel: Count
    state_dtype: StateDtype | None = None
    kind: Literal["gated_delta"] = "gated_delta"


@record
class Kda:
    """Kimi delta attention: three convolved streams of heads x head_dim, state heads x head_dim x head_dim."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    heads: Count
    head_dim: Count
    conv_kernel: Count
    state_dtype: StateDtype | None = None
    kind: Literal["kda"] = "kda"


@record
class Lightning:
    """Lightning (linear) attention: a state of heads x head_dim x head_dim, no convolution."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    heads: Count
    head_dim: Count
    state_dtype: StateDtype | None = None
    kind: Literal["lightning"] = "lightning"


@record
class RgLru:
    """RG-LRU (RecurrentGemma): a state of `width` values and a convolution over as many channels."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    width: Count
    conv_kernel: Count
    state_dtype: StateDtype | None = None
    kind: Literal["rg_lru"] = "rg_lru"


@record
class ShortConv:
    """A short convolution over `channels`: alone (LFM2), beside attention (Inkling), or over K and V (Baichuan-M1)."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    channels: Count
    conv_kernel: Count
    kind: Literal["short_conv"] = "short_conv"


@record
class Rwkv:
    """RWKV: `shift_rows` rows of `hidden` for the token shifts, and a recurrent state.

    The state is heads x head_dim x head_dim from version 5 on, and three vectors of heads x head_dim in version 4
    (`matrix_state` False).
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    hidden: Count
    heads: Count
    head_dim: Count
    shift_rows: Count = 2
    matrix_state: bool = True
    state_dtype: StateDtype | None = None
    kind: Literal["rwkv"] = "rwkv"


@record
class Mlstm:
    """xLSTM's mLSTM: heads x (key_dim x value_dim matrix + key_dim normaliser + 1 stabiliser), no convolution."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    heads: Count
    key_dim: Count
    value_dim: Count
    state_dtype: StateDtype | None = None
    kind: Literal["mlstm"] = "mlstm"


@record
class CrossAttention:
    """K and V of the encoder's tokens. `encoder_tokens` is their number where the checkpoint fixes it (Whisper)."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    query_heads: Count
    kv_heads: Count
    head_dim: Count
    encoder_tokens: Tokens | None = None
    kind: Literal["cross_attention"] = "cross_attention"


@record
class SharedCache:
    """A layer that stores nothing and reads the cache of an earlier layer (CLA, YOCO, Gemma 3n/4).

    `owner` names the block of the spec whose cache it reads, `owner_layer` the layer's index where it is known.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    owner: str
    owner_layer: CountOrZero | None = None
    kind: Literal["shared_cache"] = "shared_cache"


@record
class NoCache:
    """A layer without any cache: an MLP or expert layer counted as a layer, a gated memory unit, a removed block."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    role: Literal["mlp", "experts", "gated_memory", "removed", "linear"] = "mlp"
    kind: Literal["no_cache"] = "no_cache"


SingleLayer: TypeAlias = (
    FullAttention
    | SlidingWindow
    | ChunkedAttention
    | LatentAttention
    | CompressedSparse
    | Mamba1
    | Mamba2
    | GatedDelta
    | Kda
    | Lightning
    | RgLru
    | ShortConv
    | Rwkv
    | Mlstm
    | CrossAttention
    | SharedCache
    | NoCache
)


@record
class Parallel:
    """Several mixers in one layer, each with its own cache: attention beside Mamba (Falcon-H1, Hymba), a convolution
    beside attention (Inkling, ZAYA), self-attention and cross-attention (Whisper, T5)."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    branches: tuple[Annotated[SingleLayer, ByKind()], ...]
    kind: Literal["parallel"] = "parallel"


Layer: TypeAlias = SingleLayer | Parallel

LAYER_CLASSES: tuple[type[Any], ...] = (
    FullAttention, SlidingWindow, ChunkedAttention, LatentAttention, CompressedSparse,
    Mamba1, Mamba2, GatedDelta, Kda, Lightning, RgLru, ShortConv, Rwkv, Mlstm,
    CrossAttention, SharedCache, NoCache, Parallel,
)  # fmt: skip
LAYER_BY_KIND: dict[str, type[Any]] = {cls.__dataclass_fields__["kind"].default: cls for cls in LAYER_CLASSES}

RECURRENT = (Mamba1, Mamba2, GatedDelta, Kda, Lightning, RgLru, ShortConv, Rwkv, Mlstm)
Recurrent: TypeAlias = Mamba1 | Mamba2 | GatedDelta | Kda | Lightning | RgLru | ShortConv | Rwkv | Mlstm
