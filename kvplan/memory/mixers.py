"""How the weights of a token mixer shard: by head, by KV head, or not at all.

Only shares follow from here: the weights themselves are counted in `kvplan.spec.parameters`.
"""

from __future__ import annotations

from fractions import Fraction

from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

HEADS = (kinds.FullAttention, kinds.SlidingWindow, kinds.ChunkedAttention, kinds.CrossAttention)


@record
class Mixer:
    """Weights of one layer's mixers, in parameters: `sharded` by rank, `by_kv_head` (heads, weights) at least one head
    a rank, `replicated` on every rank."""

    sharded: Fraction
    by_kv_head: tuple[tuple[int, Fraction], ...]
    replicated: Fraction

    @property
    def total(self) -> Fraction:
        return self.sharded + self.replicated + sum((weights for _, weights in self.by_kv_head), Fraction())


def mixers_of(spec: ModelSpec) -> dict[str, Mixer]:
    """The mixers of each block of `spec`, by geometry; the rank of a query's down-projection follows from the count."""
    hidden = spec.hidden_size or 1
    plain = {name: _mixer(spec, name, hidden, None) for name in spec.counts}
    latent = [name for name in spec.counts if _latent(spec, name)]
    if not latent or spec.parameters is None:
        return plain
    others = sum((plain[name].total * count for name, count in spec.counts.items() if name not in latent), Fraction())
    layers = sum(spec.counts[name] for name in latent)
    each = (spec.parameters.attention - others) / layers
    return plain | {name: _mixer(spec, name, hidden, each) for name in latent}


def _latent(spec: ModelSpec, name: str) -> bool:
    return any(isinstance(layer, kinds.LatentAttention) for layer in branches(spec.blocks[name]))


def _mixer(spec: ModelSpec, name: str, hidden: int, counted: Fraction | None) -> Mixer:
    parts = [_branch(spec, layer, hidden, counted) for layer in branches(spec.blocks[name])]
    return Mixer(
        sum((part.sharded for part in parts), Fraction()),
        tuple(pair for part in parts for pair in part.by_kv_head),
        sum((part.replicated for part in parts), Fraction()),
    )


def _branch(spec: ModelSpec, layer: kinds.SingleLayer, hidden: int, counted: Fraction | None) -> Mixer:
    if isinstance(layer, HEADS):
        value = getattr(layer, "v_head_dim", None) or layer.head_dim
        queries = layer.query_heads * (layer.head_dim + value) * hidden
        keys = Fraction(layer.kv_heads * (layer.head_dim + value) * hidden)
        return Mixer(Fraction(queries), ((layer.kv_heads, keys),), Fraction(_indexer(layer, hidden, hidden)))
    if isinstance(layer, kinds.LatentAttention):
        return _latent_mixer(layer, hidden, counted)
    if isinstance(layer, kinds.CompressedSparse):
        key = hidden * layer.head_dim
        return Mixer(Fraction(2 * hidden * layer.query_heads * layer.head_dim), (), Fraction(key))
    if isinstance(layer, kinds.SharedCache):
        owner = _branch(spec, branches(spec.blocks[layer.owner])[0], hidden, None)
        return Mixer(owner.sharded, (), Fraction())
    return Mixer(Fraction(_recurrent(layer, hidden)), (), Fraction())


def _latent_mixer(layer: kinds.LatentAttention, hidden: int, counted: Fraction | None) -> Mixer:
    """Up-projections and output by head, down-projections and indexer on every rank.

    `counted` parameters of a layer tell the query's rank: whatever it is, they are rank x (hidden + query width) more
    than the rest. A count that leaves no room for that has no down-projection.
    """
    value = layer.v_head_dim or layer.nope_head_dim or layer.latent_dim
    query = layer.query_heads * ((layer.nope_head_dim or value) + layer.rope_dim)
    down = hidden * (layer.latent_dim + layer.rope_dim)
    up = layer.query_heads * layer.latent_dim * ((layer.nope_head_dim or value) + value)
    out = layer.query_heads * value * hidden
    direct = query * hidden
    if counted is None:
        return Mixer(Fraction(up + out + direct), (), Fraction(down))
    index = layer.indexer
    wide = 0 if index is None else (index.heads or 0) * index.key_dim
    rest = counted - up - out - down - (0 if index is None else hidden * (index.key_dim + (index.heads or 0)))
    rank = rest / (hidden + query + wide)
    if rest <= 0 or rank * 2 >= hidden:
        return Mixer(Fraction(up + out + direct), (), Fraction(down))
    return Mixer(up + out + rank * query, (), down + rank * hidden + _indexer(layer, hidden, rank))


def _indexer(layer: kinds.SingleLayer, hidden: int, query_rank: Fraction | int) -> Fraction:
    index = getattr(layer, "indexer", None)
    if index is None:
        return Fraction()
    heads = index.heads or 0
    return Fraction(query_rank * heads * index.key_dim + hidden * (index.key_dim + heads))


def _recurrent(layer: kinds.SingleLayer, hidden: int) -> int:
    """Projections in and out of a recurrent mixer, near enough to weigh layers against each other."""
    if isinstance(layer, kinds.NoCache):
        return hidden * hidden if layer.role == "linear" else 0
    if isinstance(layer, kinds.GatedDelta):
        return hidden * (2 * layer.key_heads * layer.key_dim + 3 * layer.value_heads * layer.value_dim)
    if isinstance(layer, kinds.Mamba2):
        inner = layer.heads * layer.head_dim
        return hidden * (3 * inner + 2 * layer.groups * layer.state + layer.heads)
    if isinstance(layer, kinds.Mamba1):
        return 3 * hidden * layer.inner
    if isinstance(layer, kinds.Kda):
        return 5 * hidden * layer.heads * layer.head_dim
    return 4 * hidden * hidden
