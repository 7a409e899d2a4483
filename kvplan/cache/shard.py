"""What tensor parallelism makes of one layer: heads and channels are split, latents are not.

A rank keeps max(1, ceil(heads / ranks)) KV heads, so past the number of heads the total over ranks grows
(vLLM 0.33 v1/kv_cache_interface.py). MLA's latent, DeepSeek V4's shared vector and index keys serve all query heads:
every rank holds them whole. Recurrent heads and channels are split; Mamba-2's groups are raised to the number of ranks
where they don't divide (vLLM 0.33 model_executor/layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.spec import layers as kinds


def _share(count: int, ranks: int) -> int:
    return max(1, -(-count // ranks))


def shard_layer(layer: kinds.SingleLayer, ranks: int) -> kinds.SingleLayer:
    """The layer as one of `ranks` tensor-parallel ranks holds it; the layer itself for one rank."""
    if ranks == 1:
        return layer
    match layer:
        case kinds.FullAttention() | kinds.SlidingWindow() | kinds.ChunkedAttention() | kinds.CrossAttention():
            return replace(layer, query_heads=_share(layer.query_heads, ranks), kv_heads=_share(layer.kv_heads, ranks))
        case kinds.LatentAttention() | kinds.CompressedSparse():
            return replace(layer, query_heads=_share(layer.query_heads, ranks))
        case kinds.Mamba1():
            return replace(layer, inner=_share(layer.inner, ranks))
        case kinds.Mamba2():
            return replace(layer, heads=_share(layer.heads, ranks), groups=_share(layer.groups, ranks))
        case kinds.GatedDelta():
            return replace(
                layer, key_heads=_share(layer.key_heads, ranks), value_heads=_share(layer.value_heads, ranks)
            )
        case kinds.Kda() | kinds.Lightning() | kinds.Mlstm():
            return replace(layer, heads=_share(layer.heads, ranks))
        case kinds.RgLru():
            return replace(layer, width=_share(layer.width, ranks))
        case kinds.ShortConv():
            return replace(layer, channels=_share(layer.channels, ranks))
        case kinds.Rwkv():
            return replace(layer, heads=_share(layer.heads, ranks))
        case kinds.SharedCache() | kinds.NoCache():
            return layer
