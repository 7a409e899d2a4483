"""ModelSpec: everything a checkpoint fixes about one model's cache and weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from kvplan.errors import InputError, show
from kvplan.record import record
from kvplan.spec.layers import (
    FORBID_EXTRA,
    ByKind,
    Count,
    CountOrZero,
    Layer,
    Parallel,
    SharedCache,
    SingleLayer,
    Tokens,
    Whole,
)

MAX_LAYERS = 10_000
MAX_NAME = 128

Confidence: TypeAlias = Literal["verbatim", "reconstructed", "class defaults", "unverified", "assumed"]
ModelDtype: TypeAlias = Literal["bfloat16", "float16", "float32"]

ParameterCount: TypeAlias = Annotated[int, Whole(low=0, high=10**16)]

_RUN = re.compile(r"(?:([0-9]{1,6}) x )?([A-Za-z][A-Za-z0-9_.-]*)")


@record
class Provenance:
    """Where a spec's figures come from. Anything but `verbatim` is said to the user in words."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    source: str
    confidence: Confidence
    note: str | None = None


@record
class Parameters:
    """Weights by part, in parameters. `total` is their sum; the vision or audio tower and draft layers are apart.

    `attention` holds every token mixer, recurrent ones too. `active` is what one token touches: everything but
    the experts it isn't routed to (the embedding table counts whole).
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    embedding: ParameterCount
    attention: ParameterCount
    dense_mlp: ParameterCount
    experts: ParameterCount
    shared_experts: ParameterCount
    router: ParameterCount
    norms: ParameterCount
    head: ParameterCount
    active: ParameterCount
    draft: ParameterCount = 0

    @property
    def total(self) -> int:
        return (
            self.embedding + self.attention + self.dense_mlp + self.experts
            + self.shared_experts + self.router + self.norms + self.head
        )  # fmt: skip


@record
class WeightQuantization:
    """How the checkpoint stores its weights. `kept` lists the module patterns that stay in the model dtype."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    method: str
    bits: CountOrZero | None = None
    group_size: Count | None = None
    block_shape: tuple[Count, Count] | None = None
    experts_bits: Count | None = None
    kept: tuple[str, ...] = ()


@record
class KvQuantization:
    """The checkpoint's own wish for its KV cache: a hint that only an engine's `auto` follows."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    algorithm: str
    source: str


@record
class Repeat:
    """`repeat` times the runs `of`, each a `"5 x local"` string or a Repeat of its own."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    repeat: Count
    of: tuple[str, ...]


Run: TypeAlias = str | Repeat


def _expand(runs: tuple[Run, ...], field_name: str) -> Iterator[tuple[str, int]]:
    for run in runs:
        if isinstance(run, Repeat):
            for _ in range(min(run.repeat, MAX_LAYERS)):
                yield from _expand(run.of, field_name)
            continue
        match = _RUN.fullmatch(run)
        if match is None:
            raise InputError(f"{field_name}: found {show(run)}, expected a run such as '80 x attention' or 'attention'")
        yield match.group(2), int(match.group(1) or 1)


@record
class ModelSpec:
    """One model: named blocks (layer kinds with their geometry) and the order in which they are stacked.

    `max_context` is the longest context the checkpoint declares, None where it declares none. `meta_tokens` are
    learned tokens prepended to each sequence that every owning attention layer keeps besides its own entries.
    `draft_layers` count only when drafting is on. `assumptions` are the values an importer filled in.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    id: str
    model_type: str
    dtype: ModelDtype
    blocks: dict[str, Annotated[Layer, ByKind()]]
    layers: tuple[Run, ...]
    provenance: Provenance
    hf_ids: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    max_context: Tokens | None = None
    hidden_size: Count | None = None
    vocab_size: Count | None = None
    meta_tokens: CountOrZero = 0
    tied_embeddings: bool | None = None
    draft_layers: tuple[Run, ...] = ()
    parameters: Parameters | None = None
    published_parameters_b: tuple[float | None, float | None] | None = None
    quantization: WeightQuantization | None = None
    kv_quantization: KvQuantization | None = None
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for field_name, spellings in (("id", (self.id,)), ("aliases", self.aliases), ("hf_ids", self.hf_ids)):
            for spelling in spellings:
                if not is_name(spelling):
                    raise InputError(
                        f"{field_name}: found {show(spelling)}, expected 1 to {MAX_NAME} printable characters "
                        "without blanks"
                    )
        for name in (*self.counts, *self.draft_counts):
            if name not in self.blocks:
                raise InputError(
                    f"layers: {self.id} names block {show(name)}, expected one of {', '.join(self.blocks)}"
                )
        for name, block in self.blocks.items():
            for branch in branches(block):
                if isinstance(branch, SharedCache) and branch.owner not in self.blocks:
                    raise InputError(
                        f"blocks.{name}.owner: found {show(branch.owner)}, expected one of {', '.join(self.blocks)}"
                    )
        if not 1 <= self.layer_count <= MAX_LAYERS:
            raise InputError(f"layers: found {self.layer_count} layers in {self.id}, expected 1 to {MAX_LAYERS}")

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many layers each block makes, in order of first appearance, draft layers left out."""
        return _count(_expand(self.layers, "layers"))

    @cached_property
    def draft_counts(self) -> dict[str, int]:
        """How many draft (MTP) layers each block makes."""
        return _count(_expand(self.draft_layers, "draft_layers"))

    @property
    def layer_count(self) -> int:
        return sum(self.counts.values())

    def sequence(self) -> list[str]:
        """The block name of each layer, in order."""
        return [name for name, count in _expand(self.layers, "layers") for _ in range(count)]


def is_name(text: str) -> bool:
    """Whether a text can name a model: 1 to MAX_NAME printable characters, no blanks among them."""
    return 0 < len(text) <= MAX_NAME and text.isprintable() and " " not in text


def model_name(text: str) -> str:
    """`text` as a name of a model: a dash for what can't be printed, cut to MAX_NAME; empty where nothing is left."""
    kept = "".join(each if each.isprintable() and each != " " else "-" for each in text[: 2 * MAX_NAME])
    return kept.strip("-")[:MAX_NAME]


def _count(runs: Iterator[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, count in runs:
        totals[name] = totals.get(name, 0) + count
    return totals


def branches(layer: Layer) -> tuple[SingleLayer, ...]:
    """The mixers of one layer: its branches where they run in parallel, else the layer itself."""
    return layer.branches if isinstance(layer, Parallel) else (layer,)
