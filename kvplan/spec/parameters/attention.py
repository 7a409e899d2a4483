"""Weights of the attention layers: projections, biases, query/key norms, gates, sinks, indexers."""

from __future__ import annotations

from typing import TypeAlias

from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    CrossAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    SlidingWindow,
)
from kvplan.spec.parameters.fields import Fields, linear

HeadAttention: TypeAlias = FullAttention | SlidingWindow | ChunkedAttention | CrossAttention


def _biases(f: Fields) -> tuple[bool, bool]:
    """Whether query, key and value carry a bias, and whether the output projection does."""
    if f.flag("no_bias") is True and f.rules.attention_bias == "all":
        return False, False
    named = f.flag("attention_bias", "use_bias", "bias")
    qkv = f.flag("qkv_bias", "use_qkv_bias", "add_qkv_bias")
    if qkv is None:
        qkv = named if named is not None else f.rules.qkv_bias
    out = f.flag("attention_out_bias")
    if out is None:
        out = named if named is not None and f.rules.attention_bias == "all" else f.rules.out_bias
    return qkv, out


def qk_norm(f: Fields, query: int, key: int, head_dim: int, owns_keys: bool = True) -> int:
    """Query and key norms: one scale a head channel (`head`) or a channel of all heads (`full`)."""
    switch = f.flag("use_qk_norm", "qk_norm", "use_qk_layernorm", "qk_layernorm", "normalize_qk_projections")
    kind = f.rules.qk_norm
    if switch is False or (switch is None and kind == "none"):
        return 0
    if switch is True and kind == "none":
        if f.rules.extra == "llama4":  # its norm has no weights
            return 0
        # Cohere and StableLM scale every head apart; the rest share one scale a head channel.
        kind = "full" if f.rules.norm != "rms" else "head"
        if kind == "full":
            return query + (key if owns_keys else 0)
    widths = (head_dim, head_dim) if kind == "head" else (query, key)
    return f.norm(widths[0]) + (f.norm(widths[1]) if owns_keys else 0)


def output_gate(f: Fields, query_heads: int, width: int) -> int:
    """The gate on attention's output, `width` = heads x value width: one value a head, a matrix, or none.

    A gate that the query projection carries (`query`) is counted there.
    """
    if f.rules.gate == "full" or f.flag("mla_use_output_gate") is True:
        return linear(f.hidden, width)
    switch = f.flag("use_attention_gate", "use_head_wise_attn_gate", "gating")
    if switch is False:
        return 0
    return linear(f.hidden, query_heads) if f.rules.gate == "head" or switch is True else 0


def sinks(f: Fields, query_heads: int, windowed: bool) -> int:
    """One learned sink logit a head, where the family has them."""
    return query_heads if f.rules.sinks == "all" or (f.rules.sinks == "sliding" and windowed) else 0


def head_attention(f: Fields, layer: HeadAttention, owns_keys: bool = True) -> int:
    """Attention with K and V heads. `owns_keys` False: the layer reads another layer's cache and projects no K, V."""
    h = f.hidden
    query = layer.query_heads * layer.head_dim
    key = layer.kv_heads * layer.head_dim
    value_dim = (None if isinstance(layer, CrossAttention) else layer.v_head_dim) or layer.head_dim
    value = layer.kv_heads * value_dim
    output = layer.query_heads * value_dim
    qkv_bias, out_bias = _biases(f)
    count = linear(h, query * 2 if f.rules.gate == "query" else query, qkv_bias) + linear(output, h, out_bias)
    if owns_keys:
        count += linear(h, key, qkv_bias and f.rules.key_bias) + linear(h, value, qkv_bias)
    count += qk_norm(f, query, key, layer.head_dim, owns_keys)
    count += output_gate(f, layer.query_heads, output) + sinks(f, layer.query_heads, isinstance(layer, SlidingWindow))
    indexer = layer.indexer if isinstance(layer, FullAttention) else None
    if indexer is not None and indexer.owns_keys:
        count += _block_indexer(f, indexer)
    return count


def _block_indexer(f: Fields, indexer: Indexer) -> int:
    """MiniMax M3: index queries and one index key from the hidden state, both normalised."""
    heads = indexer.heads or f.need("sparse_attention_config.sparse_num_index_heads", "index_n_heads")
    return linear(f.hidden, (heads + 1) * indexer.key_dim) + 2 * f.norm(indexer.key_dim)


def latent_attention(f: Fields, layer: LatentAttention) -> int:
    """MLA: low-rank query, latent and rotary key, their expansion, output."""
    h = f.hidden
    bias = bool(f.flag("attention_bias"))
    nope = layer.nope_head_dim or f.need("qk_nope_head_dim")
    value = layer.v_head_dim or f.need("v_head_dim")
    heads = layer.query_heads
    rank = f.find("q_lora_rank")
    count = _latent_query(f, heads * (nope + layer.rope_dim), heads * value, rank, bias)
    count += linear(h, layer.latent_dim + layer.rope_dim, bias) + f.norm(layer.latent_dim)
    count += linear(layer.latent_dim, heads * (nope + value)) + linear(heads * value, h, bias)
    count += sinks(f, heads, layer.window is not None)
    if f.rules.extra != "axk2":
        count += output_gate(f, heads, heads * value)
    if layer.indexer is not None and layer.indexer.owns_keys:
        count += _sparse_indexer(f, layer.indexer, rank or h)
    return count


def _latent_query(f: Fields, query: int, value: int, rank: int | None, bias: bool) -> int:
    if not rank:
        return linear(f.hidden, query)
    down = linear(f.hidden, rank, bias) + f.norm(rank)
    # A.X-K2 expands query and output gate in one matrix from the compressed query, normalised and raw.
    return down + (linear(2 * rank, query + value) if f.rules.extra == "axk2" else linear(rank, query))


def _sparse_indexer(f: Fields, indexer: Indexer, inputs: int) -> int:
    """DSA: index queries from the compressed query, one key (LayerNorm) and head weights from the hidden state."""
    heads = indexer.heads or f.need("index_n_heads")
    count = linear(inputs, heads * indexer.key_dim) + linear(f.hidden, indexer.key_dim) + 2 * indexer.key_dim
    count += linear(f.hidden, heads)
    if indexer.pool > 1:  # learned pooling: a position table and a gate
        count += indexer.pool * indexer.key_dim + linear(f.hidden, indexer.key_dim)
    return count


def compressed_sparse(f: Fields, layer: CompressedSparse) -> int:
    """DeepSeek V4: low-rank query, one shared K/V vector, grouped low-rank output, compressor and its indexer."""
    h, dim, heads = f.hidden, layer.head_dim, layer.query_heads
    q_rank, o_rank, groups = f.need("q_lora_rank"), f.need("o_lora_rank"), f.need("o_groups")
    count = linear(h, q_rank) + f.norm(q_rank) + linear(q_rank, heads * dim) + linear(h, dim) + f.norm(dim)
    count += linear(heads * dim // groups, groups * o_rank) + linear(groups * o_rank, h) + sinks(f, heads, True)
    if layer.ratio is None or not layer.owns_compressed:
        return count
    count += _compressor(f, layer.ratio, dim, layer.overlap)
    if layer.indexer is not None and layer.indexer.owns_keys:
        index_heads = layer.indexer.heads or f.need("index_n_heads")
        count += _compressor(f, layer.ratio, layer.indexer.key_dim, layer.overlap)
        count += linear(q_rank, index_heads * layer.indexer.key_dim) + linear(h, index_heads)
    return count


def _compressor(f: Fields, ratio: int, dim: int, overlap: bool) -> int:
    width = 2 * dim if overlap else dim
    return ratio * width + 2 * linear(f.hidden, width) + f.norm(dim)
