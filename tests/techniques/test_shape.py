"""A shape without its traits: which layer stands for a recurrent one, and what each trait puts back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.cache.techniques.shape import TRAITS, Trait, shape_with
from kvplan.spec import layers as kinds
from tests.techniques.shapes import spec

NONE: frozenset[Trait] = frozenset()
EVERY = frozenset(TRAITS)
INDEXER = kinds.Indexer(128, 2048, 64)


def without(layer: kinds.Layer, *traits: Trait) -> kinds.Layer:
    return shape_with(spec((1, layer)), EVERY - set(traits)).blocks["b0"]


@pytest.mark.parametrize(("wide", "narrow", "heads"), [(3, 1, 16), (1, 3, 4)])
def test_a_recurrent_layer_stands_for_the_attention_that_most_layers_have(wide: int, narrow: int, heads: int) -> None:
    model = spec(
        (wide, kinds.FullAttention(16, 2, 256)), (narrow, kinds.FullAttention(4, 2, 64)), (2, kinds.Lightning(8, 64))
    )
    attention = shape_with(model, NONE).blocks["b2"]
    assert isinstance(attention, kinds.FullAttention)
    assert (attention.query_heads, attention.kv_heads) == (heads, heads)


def test_a_layer_that_reads_compressed_entries_gets_its_own_and_keys_of_its_own() -> None:
    reads = replace(INDEXER, owns_keys=False, scans_keys=True)
    reader = kinds.CompressedSparse(64, 512, 64, 128, 4, indexer=reads, owns_compressed=False)
    assert without(reader, "sharing") == kinds.CompressedSparse(64, 512, 64, 128, 4, indexer=INDEXER)
    assert without(reader) == reader
    owner = kinds.CompressedSparse(64, 512, 64, 128, 4, indexer=reads)
    assert without(owner, "sharing") == owner


@pytest.mark.parametrize(
    ("layer", "trait", "left"),
    [
        (kinds.FullAttention(8, 2, 64, None, INDEXER), "indexer", kinds.FullAttention(8, 2, 64)),
        (kinds.FullAttention(8, 2, 64, None, INDEXER), "heads", kinds.FullAttention(8, 8, 64, None, INDEXER)),
        (kinds.SlidingWindow(8, 2, 64, 1024), "window", kinds.FullAttention(8, 2, 64)),
        (kinds.SlidingWindow(8, 2, 64, 1024), "heads", kinds.SlidingWindow(8, 8, 64, 1024)),
        (
            kinds.LatentAttention(8, 512, 64, 128, 128, 1024, INDEXER), "window",
            kinds.LatentAttention(8, 512, 64, 128, 128, None, INDEXER),
        ),
        (
            kinds.LatentAttention(8, 512, 64, 128, 128, 1024, INDEXER), "indexer",
            kinds.LatentAttention(8, 512, 64, 128, 128, 1024),
        ),
        (kinds.LatentAttention(8, 512, 64, 128, 128), "latent", kinds.FullAttention(8, 8, 192, 128)),
        (kinds.CrossAttention(8, 2, 64), "heads", kinds.CrossAttention(8, 8, 64)),
        # DeepSeek V4's record as one vector of 512 for K and V; without its window alone it is the same latent.
        (kinds.CompressedSparse(64, 512, 64, 128, 4), "compression", kinds.LatentAttention(64, 512, 0)),
        (kinds.CompressedSparse(64, 512, 64, 128), "window", kinds.LatentAttention(64, 512, 0)),
        (kinds.CompressedSparse(64, 512, 64, 128), "compression", kinds.CompressedSparse(64, 512, 64, 128)),
    ],
)  # fmt: skip
def test_each_trait_is_taken_away_alone(layer: kinds.Layer, trait: Trait, left: kinds.Layer) -> None:
    assert without(layer, trait) == left
    assert without(layer) == layer
