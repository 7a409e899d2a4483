"""What several answers are made of. The fields are the keys of the JSON documents; bytes are integers."""

from __future__ import annotations

from typing import Literal

from kvplan.record import record


@record
class Input:
    """One input of a derivation and where it comes from."""

    name: str
    value: str
    source: str


@record
class Derivation:
    """A formula with its numbers filled in, and the source of each number."""

    formula: str
    inputs: tuple[Input, ...]


@record
class Component:
    """One part of the cache over all its equal layers. `bytes` and `read_bytes` are those of one sequence."""

    name: str
    kind: str
    part: Literal["growing", "state", "cross"]
    dtype: str
    layers: int
    reading_layers: int
    entries: int
    entries_read: int
    bytes_per_token: int
    bytes: int
    read_bytes: int
    derivation: Derivation


@record
class Cache:
    """The *needed* size: what the mathematics asks, before any engine rounds or reserves.

    `needed_bytes` = growing + state + cross over the whole batch, `needed_bytes_per_sequence` of one sequence.
    `bytes_per_token_marginal` is what one more token of one sequence adds at this context (rounded down where a
    compressed cache adds a fraction). `read_bytes_per_step` is what one decode step of the whole batch loads.
    """

    size: Literal["needed"]
    needed_bytes: int
    needed_bytes_per_sequence: int
    growing_bytes: int
    state_bytes: int
    cross_bytes: int
    bytes_per_token_marginal: int
    read_bytes_per_step: int
    growing_layers: int
    total_layers: int
    components: tuple[Component, ...]


@record
class Model:
    """Which model was asked about, and how far its spec can be trusted."""

    id: str
    hf_ids: tuple[str, ...]
    architecture: str | None
    model_type: str
    dtype: str
    max_context: int | None
    confidence: str
    source: str


@record
class Dtypes:
    """The dtypes in force. `index` and `state` are "auto" when they follow the KV dtype and the checkpoint."""

    kv_key: str
    kv_value: str
    index: str
    state: str


@record
class Weights:
    """Bytes of the weights; `exact` when they follow without a guess, from headers or from counts in a plain dtype."""

    bytes: int
    exact: bool
    source: str


@record
class Fit:
    """Weights and KV cache against device memory, simple and conservative: no engine's rounding is in it.

    `longest_context_bound` says what ends `longest_context_tokens`: the memory, the model's own limit, or nothing.
    """

    gpu: str
    count: int
    memory_bytes_per_gpu: int
    memory_source: str
    usable_bytes_per_gpu: int
    weights_bytes_per_gpu: int
    kv_bytes_per_sequence_per_gpu: int
    max_full_length_sequences: int
    longest_context_tokens: int
    longest_context_bound: Literal["memory", "model", "none"]
    fits: bool
