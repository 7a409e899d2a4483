"""Weight bytes of each rank: what tensor, pipeline, expert and data parallelism shard, and what stays whole.

The sharding rules are vLLM's, which the other engines follow: column- and row-parallel projections, vocabulary-parallel
ends padded to a multiple of 64, KV heads copied once there are more ranks than heads, latent down-projections, routers
and norms on every rank (vllm/model_executor/layers/linear.py, vocab_parallel_embedding.py and fused_moe/config.py,
vLLM 0.32.0). Experts lie over tensor x data ranks, whole with expert parallelism and sliced without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Protocol

from kvplan.errors import InputError
from kvplan.memory.mixers import Mixer, mixers_of
from kvplan.memory.weights import DTYPE_BITS, has_tower, usable, weight_bytes
from kvplan.record import record
from kvplan.spec.layers import LatentAttention
from kvplan.spec.model import ModelDtype, ModelSpec, branches

if TYPE_CHECKING:
    from kvplan.spec.importers.tensors import CheckpointTensors

VOCABULARY_PADDING = 64
ENDS = ("embedding", "head")
#: A tower is believed in when the published count exceeds the counted one by this share of it, and by more than its
#: last digit is rounded.
TOWER_SHARE = Fraction(1, 200)
_SAME_PART = {"mlp": "dense_mlp", "norm": "norms"}
_WHOLE = ("router", "norms")
_EXPERTS = "experts"


class Ranked(Protocol):
    """How many ranks of each kind; `expert` puts whole experts on ranks."""

    @property
    def tensor(self) -> int: ...
    @property
    def pipeline(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def expert(self) -> bool: ...


@record
class RankPart:
    """One part of a rank's weights: `bytes` there, of `total_bytes` in the whole model; `how` says how it is split."""

    name: str
    bytes: int
    total_bytes: int
    how: str


@record
class RankWeights:
    """The weights of one rank of each pipeline stage. `layers` are the stage's layers, drafts left out."""

    stages: tuple[tuple[RankPart, ...], ...]
    layers: tuple[int, ...]
    source: str
    exact: bool
    assumptions: tuple[str, ...] = ()

    @property
    def stage_bytes(self) -> tuple[int, ...]:
        """Bytes of one rank, a stage each."""
        return tuple(sum(part.bytes for part in parts) for parts in self.stages)


def rank_weights(
    spec: ModelSpec,
    ranks: Ranked,
    *,
    tensors: CheckpointTensors | None = None,
    served_dtype: ModelDtype | None = None,
    drafting: bool = False,
    partition: Sequence[int] | None = None,
    text_only: bool = False,
) -> RankWeights | None:
    """The weight bytes of one rank of each stage, or None where the model's weights aren't known.

    `partition` is the number of layers of each stage; by default they are split evenly, the first stages taking one
    more. Adds what an engine loads besides the checkpoint's text model: the rotary table (maximal context x rotary
    width x 16 bits) and, where more parameters are published than counted, the difference in 16 bits: a vision or
    audio tower where the architecture has one. `text_only` leaves it out.
    Raises InputError for a partition that isn't the model's layers.
    """
    estimate = weight_bytes(spec, tensors=tensors, served_dtype=served_dtype, drafting=drafting)
    if estimate is None:
        return None
    layers = _partition(spec, ranks.pipeline, partition)
    found = {_SAME_PART.get(part.name, part.name): part.bytes for part in estimate.parts}
    extra, assumptions = _extras(spec, known=(tensors is not None and usable(tensors)) or text_only)
    if text_only:
        found.pop("vision", None)
    shared = _shares(spec, ranks.tensor, layers)
    stages = []
    for stage, count in enumerate(layers):
        share = Fraction(count, spec.layer_count)
        parts = [
            part
            for name, total in (found | extra).items()
            if (part := _part(spec, name, total, ranks, stage, share, shared[stage])).bytes
        ]
        stages.append(tuple(parts))
    return RankWeights(tuple(stages), layers, estimate.source, estimate.exact, (*estimate.assumptions, *assumptions))


def _partition(spec: ModelSpec, stages: int, partition: Sequence[int] | None) -> tuple[int, ...]:
    if partition is None:
        each, more = divmod(spec.layer_count, stages)
        return tuple(each + (stage < more) for stage in range(stages))
    if len(partition) != stages or sum(partition) != spec.layer_count:
        raise InputError(
            f"pipeline partition: found {tuple(partition)}, expected {stages} counts that sum to the "
            f"{spec.layer_count} layers"
        )
    return tuple(partition)


def _part(
    spec: ModelSpec, name: str, total: int, ranks: Ranked, stage: int, share: Fraction, attention: Fraction
) -> RankPart:
    """One part on one rank of one stage; `share` is the stage's share of the layers, `attention` the rank's share of
    the token mixers."""
    tensor, last = ranks.tensor, ranks.pipeline - 1
    if name in ENDS:
        here = stage == 0 if name == "embedding" else stage == last
        # A tied embedding is also the head, so the last stage holds a copy.
        here = here or (name == "embedding" and stage == last and spec.tied_embeddings is True)
        return RankPart(name, _ends(total, spec.vocab_size, tensor) if here else 0, total, f"vocabulary over {tensor}")
    if name == "attention":
        return RankPart(name, _ceil(total * attention), total, f"heads over {tensor}, KV heads at least one a rank")
    if name == _EXPERTS:
        over = tensor * ranks.data
        how = f"{'whole experts' if ranks.expert else 'each expert'} over {over}"
        return RankPart(name, _ceil(total * share / over), total, how)
    if name in _WHOLE:
        return RankPart(name, _ceil(total * share), total, "on every rank")
    if name == "rotary table":
        return RankPart(name, total, total, "on every rank")
    if name in ("draft", "vision"):
        here = stage == (last if name == "draft" else 0)
        return RankPart(name, _ceil(Fraction(total, tensor)) if here else 0, total, f"over {tensor}")
    return RankPart(name, _ceil(total * share / tensor), total, f"over {tensor}")


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _ends(total: int, vocabulary: int | None, tensor: int) -> int:
    """A rank's rows of an embedding or head, the vocabulary padded to a multiple of 64 and of the ranks."""
    if vocabulary is None:
        return _ceil(Fraction(total, tensor))
    step = lcm(VOCABULARY_PADDING, tensor)
    rows = -(-vocabulary // step) * step // tensor
    return _ceil(Fraction(total * rows, vocabulary))


def _shares(spec: ModelSpec, tensor: int, layers: Iterable[int]) -> list[Fraction]:
    """The share of all token mixers' weights that one rank of each stage holds."""
    mixers = mixers_of(spec)
    sequence = spec.sequence()
    whole = sum((count * mixers[name].total for name, count in Counter(sequence).items()), Fraction())
    shares, start = [], 0
    for count in layers:
        here = Counter(sequence[start : start + count])
        held = sum((number * _held(mixers[name], tensor) for name, number in here.items()), Fraction())
        shares.append(held / whole if whole else Fraction(count, len(sequence)) / tensor)
        start += count
    return shares


def _held(mixer: Mixer, tensor: int) -> Fraction:
    kept = sum((weights * max(1, -(-heads // tensor)) / heads for heads, weights in mixer.by_kv_head), Fraction())
    return mixer.sharded / tensor + kept + mixer.replicated


def _extras(spec: ModelSpec, known: bool) -> tuple[dict[str, int], list[str]]:
    """What is loaded besides the counted weights, and the sentences that say so."""
    extra: dict[str, int] = {}
    width = max((_rotary_width(spec, name) for name in spec.counts), default=0)
    if spec.max_context and width:
        extra["rotary table"] = 2 * spec.max_context * width
    published = spec.published_parameters_b[0] if spec.published_parameters_b else None
    if known or published is None or spec.parameters is None:
        return extra, []
    counted = spec.parameters.total + spec.parameters.draft
    stated = Decimal(str(published))
    missing = int(stated * 10**9) - counted
    half_digit = Decimal(5).scaleb(int(stated.as_tuple().exponent) + 8)
    if missing <= counted * TOWER_SHARE or missing <= half_digit:
        return extra, []
    tower = has_tower(spec)
    extra["vision" if tower else "uncounted"] = (
        missing * DTYPE_BITS[spec.dtype if spec.dtype != "float32" else "bfloat16"] // 8
    )
    return extra, [
        f"{published:g} B parameters are published and {counted / 1e9:.2f} B counted: the rest is taken "
        f"{'as a vision or audio tower ' if tower else ''}in 16 bits"
    ]


def _rotary_width(spec: ModelSpec, name: str) -> int:
    widths = [0]
    for layer in branches(spec.blocks[name]):
        if isinstance(layer, LatentAttention):
            widths.append(layer.rope_dim)
        elif hasattr(layer, "head_dim") and hasattr(layer, "kv_heads"):
            widths.append(layer.head_dim)
    return max(widths)
