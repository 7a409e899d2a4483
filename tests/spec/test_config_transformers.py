"""Imported layouts against the tensors transformers really holds (tests/evidence/transformers_shapes.json).

transformers' own conventions, applied here alone: a dynamic window keeps window - 1 entries, a convolution all of its
kernel's columns, MLA its latent and its rotary key as two tensors, Inkling's four streams as four tensors.
"""

import json
from pathlib import Path

import pytest

from kvplan.spec.importers.config import import_config
from kvplan.spec.layers import (
    ChunkedAttention,
    CompressedSparse,
    FullAttention,
    GatedDelta,
    Kda,
    LatentAttention,
    Mamba1,
    Mamba2,
    NoCache,
    SharedCache,
    ShortConv,
    SlidingWindow,
)
from kvplan.spec.model import branches

CASES = json.loads((Path(__file__).parents[1] / "evidence" / "transformers_shapes.json").read_text())["cases"]


def _conv(channels: int, kernel: int, recurrent: list[int]) -> dict:
    return {"conv_states.0": [channels, kernel], "recurrent_states.0": recurrent}


def _heads(b, length: int) -> dict:
    return {"keys": [b.kv_heads, length, b.head_dim], "values": [b.kv_heads, length, b.v_head_dim or b.head_dim]}


def _latent(b: LatentAttention, length: int) -> dict:
    keys = {"indexer_keys": [length, b.indexer.key_dim]} if b.indexer and b.indexer.owns_keys else {}
    return {"keys": [1, length, b.latent_dim], "values": [1, length, b.rope_dim], **keys}


def _compressed(b: CompressedSparse, tokens: int) -> dict:
    held = {"keys": [1, min(tokens, b.window - 1), b.head_dim]}
    if b.ratio is None:
        return held
    held["compressed_kv.compressor"] = [tokens // b.ratio, b.head_dim]
    widths = {"compressor": b.head_dim}
    if b.indexer:
        widths["indexer"] = b.indexer.key_dim
        held["compressed_kv.indexer"] = [tokens // b.ratio, b.indexer.key_dim]
    if b.overlap:
        held |= {
            f"overlap_{part}.{name}": [b.ratio, width] for part in ("kv", "gate") for name, width in widths.items()
        }
    return held


def shapes(layer, tokens: int, static: int | None) -> dict:
    held: dict = {}
    for b in branches(layer):
        length = tokens if static is None else static
        if isinstance(b, SlidingWindow | ChunkedAttention):
            cap = b.window if isinstance(b, SlidingWindow) else b.chunk
            held |= _heads(b, min(length, cap - 1 if static is None else cap))
        elif isinstance(b, FullAttention):
            held |= _heads(b, length)
        elif isinstance(b, LatentAttention):
            held |= _latent(b, length)
        elif isinstance(b, CompressedSparse):
            held |= _compressed(b, tokens)
        elif isinstance(b, Mamba1):
            held |= _conv(b.inner, b.conv_kernel, [b.inner, b.state])
        elif isinstance(b, Mamba2):
            channels = b.heads * b.head_dim + 2 * b.groups * b.state
            held |= _conv(channels, b.conv_kernel, [b.heads, b.head_dim, b.state])
        elif isinstance(b, GatedDelta):
            channels = 2 * b.key_heads * b.key_dim + b.value_heads * b.value_dim
            held |= _conv(channels, b.conv_kernel, [b.value_heads, b.key_dim, b.value_dim])
        elif isinstance(b, Kda):
            held |= _conv(3 * b.heads * b.head_dim, b.conv_kernel, [b.heads, b.head_dim, b.head_dim])
        elif isinstance(b, ShortConv):
            held |= {"conv": [b.channels, b.conv_kernel]}
        else:
            assert isinstance(b, NoCache | SharedCache)
    return held


def real(tensors: dict) -> dict:
    """The real shapes, with the convolutions of a layer that has nothing else recurrent taken as one."""
    convolutions = [tensors[name] for name in tensors if name.startswith("conv_states")]
    if not convolutions or any(name.startswith("recurrent_states") for name in tensors):
        return tensors
    rest = {name: shape for name, shape in tensors.items() if not name.startswith("conv_states")}
    return {**rest, "conv": [sum(channels for channels, _ in convolutions), convolutions[0][1]]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_layout_is_what_transformers_holds(case):
    spec = import_config(case["config"], name=case["id"])
    found = [shapes(spec.blocks[name], case["tokens"], case["static"]) for name in spec.sequence()]
    assert found == [real(tensors) for count, tensors in case["layers"] for _ in range(count)]


def test_the_evidence_covers_the_layer_kinds():
    kinds = {
        type(branch)
        for case in CASES
        for layer in import_config(case["config"], name=case["id"]).blocks.values()
        for branch in branches(layer)
    }
    assert kinds >= {
        FullAttention, SlidingWindow, ChunkedAttention, LatentAttention, CompressedSparse, Mamba1, Mamba2, GatedDelta,
        Kda, ShortConv, SharedCache, NoCache,
    }  # fmt: skip
