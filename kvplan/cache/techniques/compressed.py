"""Compressed and natively trained sparse attention: DeepSeek V4, NSA, MoBA, DSA."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import edit_attention, owned_attention, refuse_shared, relayer
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec

TECHNIQUE = Technique(
    number=6,
    name="csa",
    title="Compressed sparse attention: DeepSeek V4, NSA, MoBA",
    term="tokens",
    stored="V4: min(n, window) + n // ratio entries; NSA and MoBA store more than dense",
    read="index keys, the window and the selected entries",
    computed="index scores over n // ratio keys, attention over the selected entries",
    needs_training=True,
    kinds=("compressed_sparse",),
    untouched="the raw window; weights",
    metadata="index keys and a fixed fp32 compressor state, 18.7 MB a sequence in V4-Pro",
    quality="trained into the checkpoint",
    kernel="own manager and kernels; blocks of 256 tokens in vLLM",
    headline="V4-Pro keeps 10.5 % of V3.2's fp8 cache at 1M with the fp4 index (11.5 % with fp8); FLOPs 26.5 %",
    source="vLLM recipes for DeepSeek-V4-Pro; vLLM 0.33 models/deepseek_v4; arXiv 2502.11089 (NSA), 2502.13189 (MoBA)",
    what_if="csa=4+128",
)

# DeepSeek V4-Pro's record, window and indexer (vLLM 0.33 models/deepseek_v4).
_V4_HEAD_DIM, _V4_ROPE, _V4_WINDOW, _V4_TOP_K, _V4_INDEX_HEADS, _V4_INDEX_DIM = 512, 64, 128, 1024, 64, 128


@record
class SparseReads:
    """Token-equivalents a native sparse layer reads in one step, and how many K/V entries it stores."""

    read_tokens: int
    stored_tokens: int
    dense_tokens: int

    @property
    def speedup(self) -> Fraction:
        """Dense reads over these reads."""
        return Fraction(self.dense_tokens, self.read_tokens)


def nsa(n: int, stride: int = 16, blocks: int = 16, block: int = 64, window: int = 512) -> SparseReads:
    """NSA: n // stride compressed tokens, `blocks` selected blocks and a window are read; each branch has its own K
    and V, so full + compressed + window are stored (arXiv 2502.11089, decoding memory access).
    """
    compressed = n // stride
    return SparseReads(compressed + min(n, blocks * block) + min(n, window), n + compressed + min(n, window), n)


def moba(n: int, block: int = 4096, top_k: int = 12) -> SparseReads:
    """MoBA: the `top_k` blocks whose mean key fits the query are read; one mean key (half a K/V pair) a block is
    stored besides and is not counted among the reads (arXiv 2502.13189).
    """
    blocks = -(-n // block)
    return SparseReads(min(n, block * top_k), n + -(-blocks // 2), n)


def with_csa(spec: ModelSpec, ratios: tuple[int, ...]) -> ModelSpec:
    """Every attention layer in DeepSeek V4's layout, the compression ratios taken in turn; ratio 4 has an indexer."""
    refuse_shared(spec, "csa")
    places = owned_attention(spec)
    if not places:
        raise InputError("csa: found a model without attention layers, expected layers whose tokens can be compressed")
    names = spec.sequence()
    blocks: dict[str, kinds.Layer] = {}
    for index, (number, name) in enumerate(places):
        ratio = ratios[index % len(ratios)]
        names[number] = f"{name}.csa{ratio}"
        heads = _query_heads(spec.blocks[name])
        indexer = kinds.Indexer(_V4_INDEX_DIM, _V4_TOP_K, _V4_INDEX_HEADS) if ratio <= 16 else None
        blocks[names[number]] = kinds.CompressedSparse(
            heads, _V4_HEAD_DIM, _V4_ROPE, _V4_WINDOW, ratio, ratio <= 16, indexer
        )
    return relayer(spec, names, blocks)


def with_dsa(spec: ModelSpec, top_k: int) -> ModelSpec:
    """A DeepSeek V3.2 indexer (128-wide key, 64 heads) beside every full or latent layer: `top_k` entries are read."""
    indexer = kinds.Indexer(128, top_k, 64)

    def edit(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        if isinstance(layer, kinds.FullAttention):
            return replace(layer, indexer=indexer)
        if isinstance(layer, kinds.LatentAttention) and layer.window is None:
            return replace(layer, indexer=indexer)
        return layer

    wanted = (kinds.FullAttention, kinds.LatentAttention)
    return edit_attention(spec, edit, wanted, "dsa", "full-attention or MLA layers")


def _query_heads(block: kinds.Layer) -> int:
    layers = block.branches if isinstance(block, kinds.Parallel) else (block,)
    return next(layer.query_heads for layer in layers if hasattr(layer, "query_heads"))
