"""The peak of an engine's dummy run: one layer over all profiled tokens, or the sampling of all sequences' logits.

The sizes follow from the model and the batch. The coefficients are an engine's, from `overheads.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.memory.ranks import Ranked
from kvplan.memory.terms import Term
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.units import KIB

VALUE_BYTES = 2


@record
class Widths:
    """The widths that decide activations. `intermediate` is the dense MLP's or the shared experts', `expert` one
    routed expert's, `routed` the experts a token visits; each 0 where the model has none."""

    hidden: int
    vocabulary: int
    layers: int
    intermediate: float
    expert: float
    routed: float


def widths(spec: ModelSpec) -> Widths | None:
    """The widths of a model, its MLPs' from the parameter counts; None where sizes or counts are unknown.

    A gated MLP has 3 x hidden x width weights and a router hidden x experts, so that width and visited experts follow
    from the totals over all layers.
    """
    counts, hidden = spec.parameters, spec.hidden_size
    if counts is None or hidden is None or spec.vocab_size is None:
        return None
    layers = spec.layer_count
    dense = (counts.dense_mlp + counts.shared_experts) / (3 * hidden * layers)
    if not counts.experts or not counts.router:
        return Widths(hidden, spec.vocab_size, layers, dense, 0.0, 0.0)
    experts = counts.router / (hidden * layers)
    visited = max(0, counts.experts - (counts.total - counts.active)) / counts.experts * experts
    return Widths(hidden, spec.vocab_size, layers, dense, counts.experts / (3 * counts.router), visited)


def layer_bytes(size: Widths, tokens: int, ranks: Ranked, values: Mapping[str, Any], chunk: int) -> int:
    """Bytes of one layer's activations over `tokens` tokens, on one rank.

    A dense layer holds a few copies of its MLP's and of the hidden width a token; a sparse one the same for each expert
    visited, over the tokens of all data-parallel ranks but at most `chunk` at a time.
    """
    wide, hidden = values["intermediate"], values["hidden"] * size.hidden
    dense = tokens * (wide * size.intermediate / ranks.tensor + hidden)
    if not size.routed:
        return int(dense * VALUE_BYTES)
    sliced = 1 if ranks.expert else ranks.tensor * ranks.data
    gathered = min(tokens * ranks.data, chunk)
    sparse = gathered * size.routed * (wide * size.expert / sliced + size.hidden) + tokens * hidden
    return int(max(dense, sparse) * VALUE_BYTES)


def sampler_bytes(size: Widths, tokens: int, sequences: int, per_logit: float) -> int:
    """Bytes of the dummy sampling run: each sequence's logits over the whole vocabulary, with all hidden states held.

    Every tensor-parallel rank gathers the whole vocabulary.
    """
    rows = min(sequences, tokens)
    return int(rows * size.vocabulary * per_logit) + tokens * size.hidden * VALUE_BYTES


def activation_term(
    spec: ModelSpec, tokens: int, sequences: int, ranks: Ranked, rules: Mapping[str, Any], *, image_tokens: int = 0
) -> Term | None:
    """The peak of a profile run over `tokens` tokens that samples `sequences` rows (0: a chunk that ends no prompt).

    An encoder that is profiled over `image_tokens` counts where its peak is the highest. None where the model's widths
    are unknown.
    """
    size = widths(spec)
    if size is None:
        return None
    layer = layer_bytes(size, tokens, ranks, rules["layer_values"], rules["expert_chunk"])
    figure, spread = rules["sampler_bytes"], rules["activation_spread"]
    peaks = {key: max(layer, sampler_bytes(size, tokens, sequences, figure[key])) for key in ("low", "nominal", "high")}
    says = f"{tokens:,} tokens through a layer"
    if peaks["nominal"] > layer:
        says = (
            f"{min(sequences, tokens):,} rows x {size.vocabulary:,} logits x {figure['nominal']:g} B, {tokens:,} tokens"
        )
    if image_tokens:
        encoder = {key: int(rules["vision"][key] * KIB) * image_tokens for key in peaks}
        if encoder["nominal"] > peaks["nominal"]:
            says = f"{image_tokens:,} tokens through the vision encoder"
        peaks = {key: max(peaks[key], encoder[key]) for key in peaks}
    low = min(peaks["nominal"], peaks["low"]) * (100 - spread["low"]) // 100
    high = max(peaks["nominal"], peaks["high"]) * (100 + spread["high"]) // 100
    return Term("activation peak", low, peaks["nominal"], high, says, "profile run, sizes from the model and the batch")
