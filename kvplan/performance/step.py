"""The time of one engine step: linear layers, attention, all-reduces and the host, in whole ticks.

    step = linear(tokens) + head(sampled) + all-reduce(tokens) + host
           + max(floor x decoding, start + reads of all decoding sequences)                when anything decodes
           + causal attention of each prefill chunk

Linear layers take max(2 x active parameters x tokens / (rate x efficiency), weight bytes / (bandwidth x share)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvplan.cache.size import CachePlan
from kvplan.errors import InputError
from kvplan.memory.weights import weight_bytes
from kvplan.performance.factors import Factors
from kvplan.performance.reads import TICKS, Reads, reads_of
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

if TYPE_CHECKING:
    from kvplan.hardware.accelerators import Accelerator

#: Chunks as (tokens already stored, tokens computed now)
Chunks = Sequence[tuple[int, int]]


class StepTime(Protocol):
    """What the simulator asks, in ticks (10^-18 s). A step takes fixed + max(least, reads of all) + prefill.

    `reads` is one sequence's share of decode attention.
    """

    name: str
    reads: Reads
    free_prefill: bool

    def fixed(self, tokens: int, sampled: int, decoding: int) -> int:
        """What a step costs whatever its contexts are."""
        ...

    def least(self, decoding: int) -> int:
        """The least that the reads of `decoding` sequences take together."""
        ...

    def prefill(self, chunks: Chunks) -> int:
        """Attention of prefill chunks."""
        ...


@dataclass
class AffineStep:
    """A step lasts base + per_sequence x decoding, and prefill is free: for checks against closed forms."""

    base: int
    per_sequence: int = 0
    name: str = "affine"
    reads: Reads = field(default_factory=lambda: Reads(0, ()))
    free_prefill: bool = True

    def fixed(self, tokens: int, sampled: int, decoding: int) -> int:
        return self.base + self.per_sequence * decoding

    def least(self, decoding: int) -> int:
        return 0

    def prefill(self, chunks: Chunks) -> int:
        return 0


@dataclass(frozen=True)
class _Attention:
    """Layers of one geometry in prefill: FLOPs a (query, key) pair, and the window, None for all keys."""

    layers: int
    pair_flops: int
    window: int | None


@dataclass
class ModelStep:
    """The step of a model on one rank of a device. Build it with `model_step`."""

    factors: Factors
    reads: Reads
    floor: int
    flops: float
    bandwidth: float
    linear_parameters: float
    expert_parameters: float
    expert_share: float
    weight_byte: float
    head_parameters: float
    attention: tuple[_Attention, ...]
    decode_start: int
    all_reduce: float
    all_reduce_token: float
    ranks: int = 1
    name: str = "calibrated"
    free_prefill: bool = False
    _linear: dict[int, int] = field(default_factory=dict)
    _head: dict[int, int] = field(default_factory=dict)

    def fixed(self, tokens: int, sampled: int, decoding: int) -> int:
        linear = self._linear.get(tokens)
        if linear is None:
            linear = self._linear[tokens] = self._ticks(self._linear_seconds(tokens) + self.factors.host)
        head = self._head.get(sampled)
        if head is None:
            head = self._head[sampled] = self._ticks(self._product_seconds(self.head_parameters, 1.0, sampled))
        return linear + head + (self.decode_start if decoding else 0)

    def least(self, decoding: int) -> int:
        return max(0, self.floor * decoding - self.decode_start)

    def prefill(self, chunks: Chunks) -> int:
        seconds = 0.0
        for stored, count in chunks:
            flops = sum(
                layer.layers * layer.pair_flops * _pairs(stored, count, layer.window) for layer in self.attention
            )
            seconds += flops / (self.flops * self.factors.prefill_efficiency(stored + count))
        return self._ticks(seconds / self.ranks)

    def _ticks(self, seconds: float) -> int:
        return round(seconds * self.factors.scale * TICKS)

    def _linear_seconds(self, tokens: int) -> float:
        """Dense layers, experts and all-reduces of a step of `tokens` tokens."""
        if tokens == 0:
            return 0.0
        touched = 1.0 - (1.0 - self.expert_share) ** tokens  # experts that at least one token is routed to
        seconds = self._product_seconds(self.linear_parameters, 1.0, tokens)
        if self.expert_parameters:
            compute = 2 * self.expert_parameters * self.expert_share * tokens / self.ranks
            compute /= self.flops * self.factors.gemm_efficiency(max(1, round(tokens * self.expert_share)))
            load = self.expert_parameters * touched * self.weight_byte / self.ranks
            seconds += max(compute, load / (self.bandwidth * self.factors.gemm_mbu))
        return seconds + self.all_reduce + self.all_reduce_token * tokens

    def _product_seconds(self, parameters: float, share: float, rows: int) -> float:
        if rows == 0:
            return 0.0
        compute = 2 * parameters * share * rows / self.ranks / (self.flops * self.factors.gemm_efficiency(rows))
        load = parameters * self.weight_byte / self.ranks / (self.bandwidth * self.factors.gemm_mbu)
        return max(compute, load)


def _pairs(stored: int, count: int, window: int | None) -> int:
    """(query, key) pairs of `count` queries after `stored` tokens, each seeing itself and what its window holds."""
    if window is None or stored + count <= window:
        return count * stored + count * (count + 1) // 2
    growing = max(0, min(count, window - stored))
    return growing * stored + growing * (growing + 1) // 2 + (count - growing) * window


def model_step(plan: CachePlan, device: Accelerator, factors: Factors, ranks: int = 1) -> ModelStep:
    """The step time of one tensor-parallel rank; `plan` is that rank's cache plan, sparse reads in its laws.

    Raises InputError for a model without parameter counts and for a device without a dense rate.
    """
    spec = plan.spec
    weights = weight_bytes(spec)
    parameters = spec.parameters
    if parameters is None or weights is None:
        raise InputError(f"model: found {spec.id} without parameter counts, expected a spec with them to time a step")
    if device.bf16_flops is None:
        raise InputError(f"hardware: found {device.slug} without a known bf16 rate, expected a device that has one")
    bits = 8 if plan.precision.key.effective_bits(128) < 16 else 16
    share, start = factors.decode_share[bits], factors.decode_start[bits]
    attention_layers = sum(count for name, count in spec.counts.items() if _attends(spec, name))
    scale = factors.scale
    reads = reads_of(
        plan,
        scale / (device.memory_bandwidth * share),
        scale / (device.bf16_flops * factors.gemm_efficiency(256)) / ranks,
    )
    expert_share = (parameters.active - (parameters.total - parameters.experts)) / max(1, parameters.experts)
    all_reduce, per_token = _all_reduce(spec, device, factors, ranks)
    dense = parameters.total - parameters.experts - parameters.embedding - parameters.head
    return ModelStep(
        factors=factors,
        reads=reads,
        floor=round(factors.sequence_floor * attention_layers * scale * TICKS),
        flops=device.bf16_flops,
        bandwidth=device.memory_bandwidth,
        linear_parameters=float(dense),
        expert_parameters=float(parameters.experts),
        expert_share=min(1.0, max(0.0, expert_share)),
        weight_byte=weights.total_bytes / parameters.total,
        head_parameters=float(parameters.head or parameters.embedding),
        attention=_prefill_attention(spec),
        decode_start=round(start * attention_layers * scale * TICKS),
        all_reduce=all_reduce,
        all_reduce_token=per_token,
        ranks=ranks,
        name="roofline" if factors.name == "roofline" else "calibrated",
    )


def _attends(spec: ModelSpec, name: str) -> bool:
    return not all(isinstance(branch, (*kinds.RECURRENT, kinds.NoCache)) for branch in branches(spec.blocks[name]))


def _prefill_attention(spec: ModelSpec) -> tuple[_Attention, ...]:
    found = []
    for name, count in spec.counts.items():
        for layer in branches(spec.blocks[name]):
            source = layer
            if isinstance(layer, kinds.SharedCache):
                source = branches(spec.blocks[layer.owner])[0]
            pair = _pair_flops(source)
            if pair:
                window = getattr(source, "window", None) or getattr(source, "chunk", None)
                found.append(_Attention(count, pair, window))
    return tuple(found)


def _pair_flops(layer: kinds.SingleLayer) -> int:
    """FLOPs of one query over one key in prefill: MLA expands its latent there, so its heads count as plain ones."""
    match layer:
        case kinds.FullAttention() | kinds.SlidingWindow():
            return 2 * layer.query_heads * (layer.head_dim + (layer.v_head_dim or layer.head_dim))
        case kinds.ChunkedAttention():
            return 4 * layer.query_heads * layer.head_dim
        case kinds.LatentAttention():
            nope = layer.nope_head_dim or layer.latent_dim
            return 2 * layer.query_heads * (nope + layer.rope_dim + (layer.v_head_dim or layer.latent_dim))
        case kinds.CompressedSparse():
            return 4 * layer.query_heads * layer.head_dim // (layer.ratio or 1)
        case _:
            return 0


def _all_reduce(spec: ModelSpec, device: Accelerator, factors: Factors, ranks: int) -> tuple[float, float]:
    """Seconds of a step's all-reduces, two a layer, ring algorithm: fixed, and for each token."""
    if ranks == 1:
        return 0.0, 0.0
    link = device.device_link_bandwidth / 2 if device.device_link_bandwidth else device.pcie_bandwidth
    if link is None or spec.hidden_size is None:
        raise InputError(f"hardware: found {device.slug} without a known link, expected one to split a model over")
    moved = 2 * (ranks - 1) / ranks * spec.hidden_size * 2
    count = 2 * spec.layer_count
    return count * factors.all_reduce, count * moved / (link * factors.link_share)
