"""The geometry of each kind of layer: heads, widths, ranks and state shapes from the fields of one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.spec.importers import states
from kvplan.spec.importers.counts import window_at
from kvplan.spec.importers.fields import DECODER_HEADS, HEAD_DIM, KV_HEADS, QUERY_HEADS, WIDTH, Fields, is_whole
from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    CrossAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    NoCache,
    Parallel,
    ShortConv,
    SingleLayer,
    SlidingWindow,
)

NO_CACHE: dict[str, NoCache] = {
    "mlp": NoCache("mlp"),
    "experts": NoCache("experts"),
    "gated_memory": NoCache("gated_memory"),
    "removed": NoCache("removed"),
    "replaced": NoCache("linear"),
}


def for_layer(fields: Fields, layer: int, kind: str) -> Fields:
    """The fields as one layer sees them: `per_layer_config`, then the geometry of its kind, over the common ones."""
    values = dict(fields.values)
    overrides = values.pop("per_layer_config", None)
    if isinstance(overrides, dict):
        for key, own in overrides.items():
            if str(key).isdigit() and int(key) == layer and isinstance(own, dict):
                values.update(own)
    elif overrides is not None:
        raise fields.bad("per_layer_config", overrides, "an object")
    if kind in ("window", "hybrid_window"):
        values.update(_local_geometry(fields))
    elif kind in ("full", "indexed") and fields.family.global_head_dim and not isinstance(overrides, dict):
        values.update(_global_geometry(fields, fields.family.global_head_dim))
    return fields.with_values(values)


def _local_geometry(fields: Fields) -> dict[str, Any]:
    """A window layer's own heads and widths: `swa_*`, `num_swa_*`, or Step's `attention_other_setting`."""
    own: dict[str, Any] = {}
    for name, value in fields.values.items():
        if value is None:
            continue
        if name.startswith("swa_"):
            own[name.removeprefix("swa_")] = value
        elif name.startswith("num_swa_"):
            own["num_" + name.removeprefix("num_swa_")] = value
    if "num_attention_heads" in own and "head_dim" not in own and fields.get("num_swa_attention_heads"):
        own["head_dim"] = None
    if fields.get("num_sliding_attention_heads") is not None:
        own["num_attention_heads"] = fields.get("num_sliding_attention_heads")
    factor, heads = fields.family.local_kv_factor, fields.get("num_key_value_heads")
    if factor > 1 and "num_key_value_heads" not in own and is_whole(heads):
        own["num_key_value_heads"] = factor * heads
        fields.assume(f"swa_num_key_value_heads is absent: the class gives window layers {factor} x {heads} KV heads.")
    other = fields.block("attention_other_setting")
    if other is not None:
        own |= {
            k: v for k, v in other.values.items() if k in ("num_attention_heads", "num_attention_groups", "head_dim")
        }
    if "qk_nope_head_dim" in own and "qk_rope_head_dim" not in own and is_whole(own.get("head_dim")):
        own["qk_rope_head_dim"] = own["head_dim"] - own["qk_nope_head_dim"]
    return own


def _global_geometry(fields: Fields, default: int) -> dict[str, Any]:
    """Gemma 4's full layers: wider heads, and fewer KV heads where K and V share a projection."""
    width = fields.whole("global_head_dim")
    if width is None:
        width = default
        fields.assume(f"global_head_dim is absent: the class default of {default} is used on full layers.")
    own: dict[str, Any] = {"head_dim": width}
    heads = fields.whole("num_global_key_value_heads")
    if heads is not None and fields.flag("attention_k_eq_v", default=True):
        own["num_key_value_heads"] = heads
    return own


def query_heads(fields: Fields, layer: int, layers: int) -> int:
    names = DECODER_HEADS if fields.family.encoder_decoder else ("num_attention_heads_per_layer", *QUERY_HEADS)
    heads = fields.per_layer(names, layer, layers)
    return fields.need("the number of query heads", *names) if heads is None else heads


def kv_heads(fields: Fields, layer: int, layers: int, query: int) -> int:
    """The KV heads of one layer, by the family's rule where the plain field misleads or is absent."""
    rule, heads = fields.family.kv, fields.per_layer(KV_HEADS, layer, layers)
    if fields.family.encoder_decoder and heads is None:
        return query
    if rule == "falcon":
        if fields.flag("new_decoder_architecture"):
            return query if heads is None else heads
        return 1 if fields.flag("multi_query", default=True) else query
    if rule == "refined_web":
        return _refined_web_heads(fields, query, heads)
    if rule == "shared_heads":
        return _shared_heads(fields, query)
    if rule == "multi_query":
        return 1 if fields.flag("multi_query", default=True) else query
    if rule == "chatglm":
        return (
            fields.need("multi_query_group_num", "multi_query_group_num")
            if fields.flag("multi_query_attention")
            else query
        )
    if rule == "attn_config":
        return _attn_config_heads(fields, query)
    if heads is not None:
        if heads > query or query % heads:
            raise fields.unsupported(f"{query} query heads don't divide by {heads} KV heads")
        return heads
    if rule == "block_configs":
        raise fields.unsupported("num_key_value_heads is null and block_configs, which would tell it, is missing")
    if rule == "required" and not any(name in fields.values for name in KV_HEADS):
        raise fields.unsupported("num_key_value_heads is missing, and the class's default isn't the query heads")
    fields.assume(f"num_key_value_heads is absent or null: every one of {query} query heads keeps its own K and V.")
    return query


def _refined_web_heads(fields: Fields, query: int, heads: int | None) -> int:
    """Falcon's first files: 7B and 1B say multi_query, 40B says n_head_kv (tiiuae/falcon-40b modelling_RW.py)."""
    multi_query = fields.flag("multi_query") if fields.get("multi_query") is not None else None
    if multi_query and not fields.flag("new_decoder_architecture"):
        return 1
    if heads is None and multi_query is None:
        raise fields.unsupported("n_head_kv and multi_query are missing, expected the one that tells the KV heads")
    heads = query if heads is None else heads
    if heads > query or query % heads:
        raise fields.unsupported(f"{query} query heads don't divide by {heads} KV heads")
    return heads


def _shared_heads(fields: Fields, query: int) -> int:
    """PLaMo: so many query heads share each K and V."""
    sharing = fields.need("the query heads of one KV head", "n_shared_head")
    if query % sharing:
        raise fields.unsupported(f"{query} query heads don't divide by n_shared_head {sharing}")
    fields.assume(
        f"n_shared_head {sharing} gives {query // sharing} KV heads, which mlx-lm and llama.cpp store; the "
        f"checkpoint's own code repeats them before it stores them ({sharing} times the size)."
    )
    return query // sharing


def _attn_config_heads(fields: Fields, query: int) -> int:
    inner = fields.block("attn_config")
    kind = inner.text("attn_type") if inner is not None else None
    heads = inner.whole("kv_n_heads") if inner is not None else None
    if kind == "multiquery_attention":
        return 1
    if heads is None and kind == "grouped_query_attention":
        raise fields.unsupported("attn_config.kv_n_heads is missing for grouped_query_attention")
    return query if heads is None else heads


def head_dim(fields: Fields, query: int) -> int:
    """The published head width; else the class's constant; else hidden / heads where that is whole."""
    family = fields.family
    width = fields.whole(*(family.head_dim_fields or HEAD_DIM))
    if width is not None:
        return width
    if family.head_dim is not None:
        fields.assume(f"head_dim is absent: the class default of {family.head_dim} is used.")
        return family.head_dim
    attention = fields.whole("attn_hidden_size", "attention_hidden_size")
    hidden = attention or family.width_factor * fields.need("the hidden width", *WIDTH)
    if hidden % query:
        raise fields.unsupported(f"head_dim is missing and {hidden} / {query} heads isn't whole")
    return hidden // query


def attention(fields: Fields, kind: str, layer: int, layers: int) -> SingleLayer:
    """One attention layer of kind full, indexed, window or chunk."""
    if fields.family.attention == "compressed":
        return compressed(fields, layer, layers)
    if is_latent(fields):
        return latent(fields, kind, layer, layers)
    query = query_heads(fields, layer, layers)
    kv = kv_heads(fields, layer, layers, query)
    width = head_dim(fields, query)
    value = fields.whole("v_head_dim") if fields.family.attention == "heads" and not _leftover_v(fields) else None
    value = None if value == width else value
    if kind in ("window", "hybrid_window"):
        window = window_at(fields, layer)
        if window is None:
            return FullAttention(query, kv, width, value)
        return SlidingWindow(query, kv, width, window, value)
    if kind == "chunk":
        return ChunkedAttention(query, kv, width, fields.need("the chunk", "attention_chunk_size", high=10**12), value)
    return FullAttention(query, kv, width, value, indexer(fields, layer, layers) if kind == "indexed" else None)


def _leftover_v(fields: Fields) -> bool:
    """DeepSeek files with `use_mla` false carry MLA's widths as zeros."""
    return fields.get("use_mla") is False


def is_latent(fields: Fields) -> bool:
    """Whether K and V are one latent vector: the rank decides, `use_mla: false` overrides."""
    if not fields.flag("use_mla", default=True):
        return False
    if fields.get("kv_lora_rank") is not None:
        return True
    if fields.family.attention == "latent":
        raise fields.unsupported("kv_lora_rank is missing, which an MLA model needs beside qk_rope_head_dim")
    return False


def latent(fields: Fields, kind: str, layer: int, layers: int) -> LatentAttention:
    if fields.get("qk_rope_head_dim") is None:
        raise fields.unsupported("kv_lora_rank is there but qk_rope_head_dim is missing, which MLA needs")
    return LatentAttention(
        query_heads=query_heads(fields, layer, layers),
        latent_dim=fields.need("the latent rank", "kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim", low=0) or 0,
        nope_head_dim=fields.whole("qk_nope_head_dim"),
        v_head_dim=fields.whole("v_head_dim"),
        window=window_at(fields, layer) if kind == "window" else None,
        indexer=indexer(fields, layer, layers) if kind == "indexed" else None,
    )


def indexer(fields: Fields, layer: int, layers: int) -> Indexer:
    """The selector beside one layer, in the spelling of DeepSeek, MiniMax M3 or Qwen 4."""
    sparse = fields.block("sparse_attention_config")
    if sparse is not None:
        block = sparse.need("the block size", "sparse_block_size")
        return Indexer(
            key_dim=sparse.need("the index width", "sparse_index_dim"),
            top_k=block * sparse.need("the number of blocks", "sparse_topk_blocks"),
            heads=sparse.whole("sparse_num_index_heads"),
        )
    if fields.get("index_topk_blocks") is not None:
        block = fields.need("the block size", "index_block_size")
        top_k: int | None = block * fields.need("the number of blocks", "index_topk_blocks")
    else:
        top_k = fields.whole("index_topk", "indexer_budget")
    return Indexer(
        key_dim=fields.need("the index width", "index_head_dim", "indexer_head_dim"),
        top_k=top_k,
        heads=fields.whole("index_n_heads", "indexer_n_heads"),
        pool=fields.whole("index_kpool", "indexer_compress_ratio") or 1,
        owns_keys=owns_index(fields, layer, layers),
        key_format=fields.family.index_key_format,
    )


def owns_index(fields: Fields, layer: int, layers: int) -> bool:
    """Whether this layer runs an indexer of its own or reuses an earlier layer's selection."""
    pattern = fields.get("index_topk_pattern")
    kinds = list(pattern) if isinstance(pattern, str) else fields.items("indexer_types")
    if kinds is None and isinstance(pattern, list):
        kinds = pattern
    if kinds is not None:
        name = "indexer_types" if fields.get("indexer_types") is not None else "index_topk_pattern"
        if fields.get("indexer_types") is not None:
            kinds = fields.items("indexer_types") or []
        if len(kinds) < layers:
            fields.same_length(name, len(kinds), layers)
        if kinds[layer] not in ("full", "shared", "F", "S"):
            raise fields.bad(name, kinds[layer], "full or shared")
        return kinds[layer] in ("full", "F")
    frequency = fields.whole("index_topk_freq")
    if frequency is None and fields.family.index_frequency:
        frequency = fields.family.index_frequency
        fields.assume(f"indexer_types is absent: the class lets one layer in {frequency} own an indexer.")
    offset = fields.whole("index_skip_topk_offset", low=0)
    return max(layer - (2 if offset is None else offset) + 1, 0) % (frequency or 1) == 0


def compressed(fields: Fields, layer: int, layers: int, draft: bool = False) -> CompressedSparse:
    """A DeepSeek V4 layer; in V4.1 only source layers own compressed entries and index keys."""
    rope = fields.whole("qk_rope_head_dim", low=0)
    if rope is None:
        fields.assume("qk_rope_head_dim is absent: the class's 64 rotary columns are used.")
    plain = CompressedSparse(
        query_heads=query_heads(fields, layer, layers),
        head_dim=fields.need("the width of the shared K and V", "head_dim"),
        rope_dim=64 if rope is None else rope,
        window=fields.need("the window", "sliding_window", high=10**12),
    )
    ratio = 0 if draft else _ratio(fields, layer, layers)
    if ratio == 0:
        return plain
    kv_sources, index_sources = (fields.wholes(f"{part}_source_layer_ids") for part in ("kv", "index"))
    has_index = ratio == 4 if index_sources is None else layer in index_sources
    owns = kv_sources is None or layer in kv_sources
    key_dim = fields.whole("index_head_dim")
    if key_dim is None and has_index:
        raise fields.unsupported("index_head_dim is missing, which layers with an indexer need")
    selector = None
    if key_dim is not None and (has_index or (kv_sources is not None and owns)):
        scans = has_index and not owns
        selector = Indexer(
            key_dim, fields.whole("index_topk"), fields.whole("index_n_heads"), owns_keys=owns, scans_keys=scans
        )
    return replace(
        plain, ratio=ratio, overlap=ratio == 4 and kv_sources is None, indexer=selector, owns_compressed=owns
    )


def _ratio(fields: Fields, layer: int, layers: int) -> int:
    ratios = fields.wholes("compress_ratios", high=10**6)
    if ratios is not None:
        if len(ratios) < layers:
            raise fields.unsupported(
                f"compress_ratios has {len(ratios)} entries, expected one for each of {layers} layers"
            )
        return ratios[layer]
    words = fields.items("layer_types")
    if words is None:
        raise fields.unsupported("compress_ratios is missing, expected it or layer_types")
    rates = fields.block("compress_rates")
    if words[layer] == "sliding_attention":
        return 0
    default = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}.get(words[layer])
    found = rates.whole(str(words[layer])) if rates is not None else None
    if found is None and default is None:
        raise fields.unsupported(f"layer_types names {words[layer]}, expected compressed or sliding attention")
    return int(found or default or 0)


def cross_attention(fields: Fields, layer: int, layers: int) -> CrossAttention:
    query = query_heads(fields, layer, layers)
    name = fields.family.encoder_tokens_field
    return CrossAttention(
        query_heads=query,
        kv_heads=kv_heads(fields, layer, layers, query),
        head_dim=head_dim(fields, query),
        encoder_tokens=fields.whole(name, high=10**12) if name else None,
    )


def beside(fields: Fields, mixer: SingleLayer) -> tuple[SingleLayer, ...]:
    """What runs in parallel with attention in a hybrid layer."""
    what = fields.family.beside
    if what == "linear":
        return (states.linear(fields),)
    if not isinstance(mixer, FullAttention | SlidingWindow | ChunkedAttention):
        raise fields.unsupported("kv_lora_rank is set, but its convolutions run over K and V heads")
    query, kv, width = mixer.query_heads, mixer.kv_heads, mixer.head_dim
    hidden = fields.need("the hidden width", *WIDTH)
    if what == "streams":  # Inkling: K, V and two streams of the residual are convolved
        if not fields.flag("use_sconv", default=True):
            return ()
        kernel = fields.need("the convolution", "sconv_kernel_size", "conv_kernel_size", low=2)
        return (ShortConv(2 * kv * width + 2 * hidden, kernel),)
    if what == "kv_conv":  # Baichuan-M1: K and V are convolved
        return (ShortConv(2 * kv * width, fields.need("the convolution", "conv_window", low=2)),)
    if what == "cca":  # ZAYA: q and k convolved twice in a row; one delayed row of half of V
        kernel = fields.need("cca_time0", "cca_time0") + fields.need("cca_time1", "cca_time1") - 1
        return (ShortConv((query + kv) * width, kernel), ShortConv(kv * width // 2, 2))
    raise fields.unsupported("its layer list names hybrid layers, which this family doesn't have")


def build(fields: Fields, kind: str, layer: int, layers: int) -> Layer:
    """The layer of one kind. `layers` is the length that per-layer lists must have."""
    if kind in NO_CACHE:
        return NO_CACHE[kind]
    own = for_layer(fields, layer, kind)
    if kind == "linear":
        return states.linear(own)
    if kind == "conv":
        return ShortConv(own.need("the hidden width", *WIDTH), own.need("the convolution", "conv_L_cache", low=2))
    if kind == "cross":
        return cross_attention(own, layer, layers)
    mixer = attention(own, kind, layer, layers)
    if own.family.encoder_decoder:
        return Parallel((mixer, cross_attention(own, layer, layers)))
    if kind in ("hybrid", "hybrid_window") or own.family.beside == "kv_conv":
        return Parallel((mixer, *beside(own, mixer)))
    return mixer
