"""What single families add to the weights that no trait of `rules.yaml` covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.spec.layers import FullAttention, LatentAttention, SlidingWindow
from kvplan.spec.model import ModelSpec, branches
from kvplan.spec.parameters.feedforward import dense_width, mlp, sparse_layers
from kvplan.spec.parameters.fields import Fields, linear


@dataclass
class Tally:
    """Weights by part while they are added up. `idle` are the expert weights one token doesn't touch."""

    embedding: int = 0
    attention: int = 0
    dense_mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0
    idle: int = 0


def _attention_layers(spec: ModelSpec) -> list[FullAttention | SlidingWindow]:
    """The attention with K and V heads of each layer that has one, in order."""
    found = []
    for name in spec.sequence():
        for branch in branches(spec.blocks[name]):
            if isinstance(branch, FullAttention | SlidingWindow):
                found.append(branch)
    return found


def _apertus(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    tally.dense_mlp += 2 * spec.layer_count  # xIELU learns two scales a layer


def _beam(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    tally.attention += sum(layer.query_heads for layer in _attention_layers(spec))  # one gate bias a head


def _muse_spark(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    tally.norms += 2 * f.hidden * spec.layer_count  # a gate on either residual


def _dots3(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    layers = [spec.blocks[name] for name in spec.sequence()]
    tally.attention += sum(layer.rope_dim for layer in layers if isinstance(layer, LatentAttention))


def _axk2(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Norms gated by a low-rank MLP: before attention on each layer, before the MLP on sparse layers."""
    gated = spec.layer_count + sum(sparse_layers(f, spec.layer_count))
    tally.norms += gated * 2 * linear(f.hidden, f.need("gated_norm_rank"))


def _hyper_connections(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """mHC: two mixers of the residual streams a layer, reading all streams; one at the head (none in GLM-5)."""
    streams = f.find("hc_mult") or 4
    rows = (2 + streams) * streams
    _add_hyper_connections(f, spec, tally, streams, rows, 3, head=f.get("model_type") != "glm5_next_text")


def _hy_v4(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    streams = f.find("hc_mult") or 4
    _add_hyper_connections(f, spec, tally, streams, 2 * streams, 2, head=True)


def _add_hyper_connections(
    f: Fields, spec: ModelSpec, tally: Tally, streams: int, rows: int, scales: int, head: bool
) -> None:
    wide = streams * f.hidden
    tally.norms += spec.layer_count * 2 * (rows * wide + rows + scales)
    if head:
        tally.norms += streams * wide + streams + 1


def _gemma3n(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Per-layer embeddings, AltUp over several inputs, a low-rank residual (Laurel)."""
    h = f.hidden
    inputs, rank = f.find("altup_num_inputs") or 4, f.find("laurel_rank") or 64
    _per_layer_embeddings(f, spec, tally)
    tally.norms += 2 * (inputs - 1) * h * h
    altup = h + inputs**2 + inputs**3 + linear(h, inputs) + h
    tally.norms += spec.layer_count * (altup + 2 * linear(h, rank) + h)


def _per_layer_embeddings(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    width = f.find("hidden_size_per_layer_input")
    if not width:
        return
    rows = f.need("vocab_size_per_layer_input", "vocab_size")
    tally.embedding += rows * spec.layer_count * width + linear(f.hidden, spec.layer_count * width) + width
    tally.norms += spec.layer_count * (2 * linear(f.hidden, width) + f.hidden)


def _gemma4(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    _per_layer_embeddings(f, spec, tally)
    if f.flag("attention_k_eq_v") is True:  # full layers take V from the key projection
        full = [layer for layer in _attention_layers(spec) if isinstance(layer, FullAttention)]
        tally.attention -= sum(linear(f.hidden, layer.kv_heads * layer.head_dim) for layer in full)
    if f.flag("enable_moe_block") is True:
        experts = f.need("num_experts")
        tally.router += spec.layer_count * (f.hidden + experts)
        tally.norms += spec.layer_count * 3 * f.hidden


def _inkling(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Relative-position logits beside attention, a norm on the embedding, router rows for the shared experts."""
    rank, extent = f.find("d_rel") or 16, f.find("rel_extent") or 1024
    for layer in _attention_layers(spec):
        reach = layer.window if isinstance(layer, SlidingWindow) else extent
        tally.attention += linear(f.hidden, layer.query_heads * rank) + linear(rank, reach)
    tally.norms += f.hidden
    sparse = sum(sparse_layers(f, spec.layer_count))
    shared = f.find("n_shared_experts") or f.rules.shared_experts
    tally.router += sparse * linear(f.hidden, shared) + spec.layer_count


def _jetmoe(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Attention's query and output are experts too; K and V are shared by them."""
    h, layers = f.hidden, spec.layer_count
    count, top_k = f.need("num_local_experts"), f.need("num_experts_per_tok")
    width = _attention_layers(spec)[0].kv_heads * _attention_layers(spec)[0].head_dim
    each = 2 * linear(h, width)
    tally.attention = layers * (count * each + 2 * linear(h, width) + h)
    tally.router += layers * linear(h, count)
    tally.dense_mlp += layers * h
    tally.idle += layers * max(0, count - top_k) * each


def _rwkv5(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Channel mix: receptance, key, value and two token mixes; a norm on the embedding."""
    h = f.hidden
    width = f.find("intermediate_size") or int(3.5 * h) // 32 * 32
    tally.dense_mlp += spec.layer_count * (linear(h, h) + 2 * linear(h, width) + 2 * h)
    tally.norms += f.norm_width


def _zamba2(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Shared transformer blocks on twice the width, counted once each, with a low-rank adapter a use."""
    h = f.hidden
    uses = len(_attention_layers(spec))
    blocks = f.find("num_mem_blocks") or 1
    width = f.need("intermediate_size")
    rank = f.find("adapter_rank") or 128
    layer = _attention_layers(spec)[0]
    query = layer.query_heads * layer.head_dim
    attention = 3 * linear(2 * h, query) + linear(query, h)
    tally.attention += blocks * attention - sum(
        linear(h, a.query_heads * a.head_dim) * 2 + 2 * linear(h, a.kv_heads * a.head_dim)
        for a in _attention_layers(spec)
    )
    tally.dense_mlp += blocks * mlp(f, h, width) + uses * (linear(h, rank) + linear(rank, 2 * width))
    tally.norms += blocks * 3 * h + uses * linear(h, h)
    if f.flag("use_shared_attention_adapter") is True:
        tally.attention += uses * 3 * (linear(2 * h, rank) + linear(rank, query))


def _zaya(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """Convolutions over query and key, an MLP router, learned scales on both residuals."""
    h, layers = f.hidden, spec.layer_count
    rank = f.need("router_hidden_size")
    count, top_k = f.need("num_experts"), f.need("num_experts_per_tok")
    for layer in _attention_layers(spec):
        width = (layer.query_heads + layer.kv_heads) * layer.head_dim
        steps = f.need("cca_time0") + layer.head_dim * f.need("cca_time1")
        tally.attention += width * (steps + 2) + layer.kv_heads
    each = 3 * linear(h, f.need("moe_intermediate_size"))
    router = linear(h, rank, True) + rank + 2 * linear(rank, rank, True) + linear(rank, count + 1)
    tally.experts += layers * count * each
    tally.idle += layers * max(0, count - top_k) * each
    tally.router += layers * router + (layers - 1) * rank
    tally.norms += layers * 8 * h + 2 * h


def _encoder(f: Fields, spec: ModelSpec, tally: Tally) -> None:
    """The encoder of an encoder-decoder model, which is loaded with its decoder. Whisper's reads a spectrogram."""
    h = f.hidden
    heads = f.need("encoder_attention_heads", "num_heads")
    inner = heads * (f.find("d_kv") or h // heads)
    biases = (4 if f.rules.key_bias else 3) if f.rules.qkv_bias else 0
    attention = 4 * linear(h, inner) + biases * h
    layers = f.need("encoder_layers", "num_layers")
    width = f.find("encoder_ffn_dim") or dense_width(f, 0)
    tally.attention += layers * attention
    tally.dense_mlp += layers * mlp(f, h, width, f.rules.mlp_bias)
    tally.norms += (layers * 2 + f.rules.final_norm + f.rules.embedding_norm) * f.norm_width
    buckets = f.find("relative_attention_num_buckets") or 32
    if f.find("d_kv"):
        tally.attention += 2 * buckets * heads
    bins = f.find("num_mel_bins")
    if bins:
        tally.embedding += linear(3 * bins, h, True) + linear(3 * h, h, True) + f.need("max_source_positions") * h
    elif f.rules.positions is not None:
        tally.embedding += (f.need("max_position_embeddings") + f.rules.positions) * h


EXTRAS: dict[str, Callable[[Fields, ModelSpec, Tally], None]] = {
    "apertus": _apertus,
    "axk2": _axk2,
    "beam": _beam,
    "dots3": _dots3,
    "encoder": _encoder,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "hy_v4": _hy_v4,
    "hyper_connections": _hyper_connections,
    "inkling": _inkling,
    "jetmoe": _jetmoe,
    "muse_spark": _muse_spark,
    "rwkv5": _rwkv5,
    "zamba2": _zamba2,
    "zaya": _zaya,
}
