"""Exact parameter counts by part, from a config.json and the layers of its ModelSpec.

The layer kinds and their geometry come from the spec, widths, experts and biases from the config, and what only the
modelling code knows from `rules.yaml`. The counts are those of the text model: a vision or audio tower is left out,
the encoder of an encoder-decoder model is in. Draft layers stand apart in `Parameters.draft`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    NoCache,
    SharedCache,
    ShortConv,
    SingleLayer,
    SlidingWindow,
)
from kvplan.spec.model import ModelSpec, Parameters, branches
from kvplan.spec.parameters.attention import compressed_sparse, head_attention, latent_attention
from kvplan.spec.parameters.families import EXTRAS, Tally
from kvplan.spec.parameters.feedforward import (
    FeedForward,
    dense_mlp,
    expert_mlp,
    has_experts,
    layer_mlp,
    sparse_layers,
)
from kvplan.spec.parameters.fields import Fields, UnknownSizeError, linear, text_scope
from kvplan.spec.parameters.recurrent import recurrent
from kvplan.spec.parameters.rules import rules_for

HEAD_ATTENTION = (FullAttention, SlidingWindow, ChunkedAttention, CrossAttention)


def count_parameters(config: Mapping[str, Any], spec: ModelSpec) -> Parameters | None:
    """Count the weights of `spec`, the model imported from `config`, by part.

    None when a field that decides the count is missing, or when the family's weights aren't described. Raises
    InputError for a field of the wrong type.
    """
    fields = _fields(config, spec)
    if not fields.rules.counted:
        return None
    try:
        return _count(fields, spec)
    except UnknownSizeError:
        return None


def parameter_assumptions(config: Mapping[str, Any], spec: ModelSpec) -> tuple[str, ...]:
    """What `count_parameters` takes for granted about this config, in sentences."""
    if _fields(config, spec).rules.known:
        return ()
    return (
        f"the weights of model_type {spec.model_type} are counted as a Llama-like model's: "
        "RMSNorm, gated MLP, no biases but those its config names",
    )


def _fields(config: Mapping[str, Any], spec: ModelSpec) -> Fields:
    text = text_scope(config)
    names = (text.get("model_type"), spec.model_type, config.get("model_type"))
    rules = rules_for(*(name if isinstance(name, str) else None for name in names))
    return Fields(text, config, rules, spec.id)


def _count(f: Fields, spec: ModelSpec) -> Parameters:
    tally = Tally()
    _add_ends(f, tally)
    names = spec.sequence()
    alone = any(isinstance(spec.blocks[name], NoCache) and _is_mlp(spec.blocks[name]) for name in names)
    sparse = sparse_layers(f, len(names))
    for index, name in enumerate(names):
        _add_layer(f, spec, spec.blocks[name], index, sparse[index], alone, tally)
    if f.rules.extra in EXTRAS:
        EXTRAS[f.rules.extra](f, spec, tally)
    total = (
        tally.embedding + tally.attention + tally.dense_mlp + tally.experts
        + tally.shared_experts + tally.router + tally.norms + tally.head
    )  # fmt: skip
    return Parameters(
        embedding=tally.embedding,
        attention=tally.attention,
        dense_mlp=tally.dense_mlp,
        experts=tally.experts,
        shared_experts=tally.shared_experts,
        router=tally.router,
        norms=tally.norms,
        head=tally.head,
        active=total - tally.idle,
        draft=_draft(f, spec, alone),
    )


def _is_mlp(layer: Layer) -> bool:
    return isinstance(layer, NoCache) and layer.role in ("mlp", "experts")


def _add_ends(f: Fields, tally: Tally) -> None:
    """Embedding, learned positions, final norm and head."""
    h = f.hidden
    vocabulary = f.need("vocab_size", "padded_vocab_size")
    tally.embedding = vocabulary * h
    if f.rules.positions is not None:
        rows = f.need("max_target_positions", "n_positions", "max_position_embeddings")
        tally.embedding += (rows + f.rules.positions) * h
    tally.norms += (f.norm_width if f.rules.embedding_norm else 0) + (f.norm_width if f.rules.final_norm else 0)
    if not is_tied(f):
        bias = f.flag("lm_head_bias")
        tally.head = linear(h, vocabulary, f.rules.head_bias if bias is None else bias)


def is_tied(f: Fields) -> bool:
    """Whether embedding and head are one matrix: the text scope says so, else the root, else the family's default."""
    tied = f.flag("tie_word_embeddings", "share_input_output_layers")
    if tied is None:
        root = f.root.get("tie_word_embeddings")
        tied = root if isinstance(root, bool) else f.rules.tied
    return tied


def _add_layer(f: Fields, spec: ModelSpec, layer: Layer, index: int, sparse: bool, alone: bool, tally: Tally) -> None:
    """Add one layer. `alone` says that mixers and MLPs are layers of their own (Nemotron-H)."""
    tally.attention += mixer(f, spec, layer)
    if alone:
        feed = FeedForward()
        if isinstance(layer, NoCache):
            feed = expert_mlp(f, index) if layer.role == "experts" else dense_mlp(f, index)
        norms = 1
    else:
        norms = layer_norms(f)
        if isinstance(layer, NoCache) and layer.role == "removed":
            norms -= 1
        if _has_no_mlp(f, index):
            feed = FeedForward()
            norms -= 1
        else:
            shared = any(isinstance(branch, SharedCache) for branch in branches(layer))
            feed = layer_mlp(f, index, sparse, shared)
    tally.norms += norms * f.norm_width
    tally.dense_mlp += feed.dense
    tally.experts += feed.experts
    tally.shared_experts += feed.shared
    tally.router += feed.router
    tally.idle += feed.idle


def _has_no_mlp(f: Fields, index: int) -> bool:
    """Nemotron-NAS removes the MLP of some layers."""
    blocks = f.items("block_configs")
    if blocks is None or index >= len(blocks) or not isinstance(blocks[index], Mapping):
        return False
    ffn = blocks[index].get("ffn")
    return isinstance(ffn, Mapping) and ffn.get("no_op") is True


def layer_norms(f: Fields) -> int:
    """How many norms over the hidden width a layer has."""
    if f.flag("use_sandwich_norm") is True:
        return 4
    if f.rules.extra != "parallel":
        return f.rules.layer_norms
    if f.flag("new_decoder_architecture") is True:
        return f.find("num_ln_in_parallel_attn") or 2
    # Falcon runs attention and MLP side by side unless told otherwise, StableLM only when told to.
    side_by_side = f.flag("parallel_attn", "use_parallel_residual")
    falcon = f.get("model_type") == "falcon"
    return 1 if (falcon if side_by_side is None else side_by_side) else 2


def mixer(f: Fields, spec: ModelSpec, layer: Layer) -> int:
    """Weights of a layer's token mixers, parallel branches added."""
    parts = branches(layer)
    return sum(_branch(f, spec, branch, alone=len(parts) == 1) for branch in parts)


def _branch(f: Fields, spec: ModelSpec, branch: SingleLayer, alone: bool) -> int:
    if isinstance(branch, HEAD_ATTENTION):
        return head_attention(f, branch)
    if isinstance(branch, LatentAttention):
        return latent_attention(f, branch)
    if isinstance(branch, CompressedSparse):
        return compressed_sparse(f, branch)
    if isinstance(branch, SharedCache):
        return _shared_cache(f, spec, branch)
    if isinstance(branch, NoCache):
        return linear(f.hidden, f.hidden) if branch.role == "linear" else 0
    if isinstance(branch, ShortConv) and not alone:
        # A convolution beside attention has no projections; ZAYA's is more than depthwise and counted with the family.
        return 0 if f.rules.extra == "zaya" else branch.channels * branch.conv_kernel
    return recurrent(f, branch)


def _shared_cache(f: Fields, spec: ModelSpec, layer: SharedCache) -> int:
    """A layer that reads its owner's cache: query and output projections of the owner's geometry."""
    for owner in branches(spec.blocks[layer.owner]):
        if isinstance(owner, HEAD_ATTENTION):
            return head_attention(f, owner, owns_keys=False)
    raise UnknownSizeError(layer.owner)


def _draft(f: Fields, spec: ModelSpec, alone: bool) -> int:
    """Multi-token-prediction layers: a decoder layer each, a projection of two hidden states into one, three norms."""
    count = 0
    for name, layers in spec.draft_counts.items():
        layer = spec.blocks[name]
        if isinstance(layer, NoCache):
            feed = expert_mlp(f, 0) if layer.role == "experts" else dense_mlp(f, 0)
        elif alone:
            feed = expert_mlp(f, 0) if has_experts(f) else FeedForward()
        else:
            last = len(spec.sequence()) - 1
            feed = layer_mlp(f, last, sparse_layers(f, last + 1)[last], reads_shared_cache=False)
        body = mixer(f, spec, layer) + feed.dense + feed.experts + feed.shared + feed.router
        norms = layer_norms(f) + 3
        count += layers * (body + linear(2 * f.hidden, f.hidden) + norms * f.norm_width)
    return count
