"""Hypothesis strategies that draw whole model specs of every layer kind."""

from __future__ import annotations

from hypothesis import strategies as st

from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, Provenance

small = st.integers(1, 16)
widths = st.sampled_from([16, 32, 64, 80, 96, 128, 192, 256])
windows = st.integers(1, 5000)

indexers = st.builds(
    kinds.Indexer,
    key_dim=widths,
    top_k=st.none() | st.integers(1, 4096),
    pool=st.sampled_from([1, 4]),
    owns_keys=st.booleans(),
)
full = st.builds(kinds.FullAttention, small, small, widths, st.none() | widths, st.none() | indexers)
window = st.builds(kinds.SlidingWindow, small, small, widths, windows, st.none() | widths)
chunked = st.builds(kinds.ChunkedAttention, small, small, widths, windows)
latent = st.builds(
    kinds.LatentAttention, small, st.sampled_from([128, 256, 512]), st.sampled_from([0, 32, 64]),
    window=st.none() | windows, indexer=st.none() | indexers,
)  # fmt: skip
compressed = st.builds(
    kinds.CompressedSparse, small, st.just(512), st.just(64), st.integers(1, 512),
    st.sampled_from([None, 1, 2, 4, 128]),
    st.booleans(), st.none() | indexers,
)  # fmt: skip
state_dtypes = st.sampled_from([None, "float32", "bfloat16"])
recurrent = st.one_of(
    st.builds(kinds.Mamba1, widths, small, st.integers(2, 5), state_dtypes),
    st.builds(kinds.Mamba2, small, widths, small, small, st.integers(2, 5), state_dtypes),
    st.builds(kinds.GatedDelta, small, widths, small, widths, st.integers(2, 5), state_dtypes),
    st.builds(kinds.Kda, small, widths, st.integers(2, 5), state_dtypes),
    st.builds(kinds.Lightning, small, widths, state_dtypes),
    st.builds(kinds.RgLru, widths, st.integers(2, 5), state_dtypes),
    st.builds(kinds.ShortConv, widths, st.integers(2, 7)),
    st.builds(kinds.Rwkv, widths, small, widths, matrix_state=st.booleans()),
    st.builds(kinds.Mlstm, small, widths, widths, state_dtypes),
)
attention = st.one_of(full, window, chunked, latent)
single = st.one_of(full, window, chunked, latent, compressed, recurrent, st.just(kinds.NoCache()))
parallel = st.builds(lambda a, b: kinds.Parallel((a, b)), attention, recurrent)
layers = st.one_of(single, parallel)


@st.composite
def specs(draw: st.DrawFn, layer: st.SearchStrategy[kinds.Layer] = layers) -> ModelSpec:
    """A model of one to four blocks, now and then with meta tokens and layers that share a cache."""
    blocks: dict[str, kinds.Layer] = {f"b{i}": draw(layer) for i in range(draw(st.integers(1, 4)))}
    runs = [f"{draw(st.integers(1, 40))} x {name}" for name in blocks]
    if draw(st.booleans()):
        blocks["sharing"] = kinds.SharedCache("b0")
        runs.append(f"{draw(st.integers(1, 10))} x sharing")
    return ModelSpec(
        id="drawn", model_type="drawn", dtype="bfloat16", blocks=blocks, layers=tuple(runs),
        provenance=Provenance("hypothesis", "verbatim"), meta_tokens=draw(st.sampled_from([0, 0, 128])),
    )  # fmt: skip
