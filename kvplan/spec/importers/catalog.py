"""The known architectures: `architectures.yaml` read into typed families, and the look-up by model_type or class."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from kvplan.errors import KvplanError
from kvplan.files import read_yaml
from kvplan.spec.layers import FORBID_EXTRA

LinearKind: TypeAlias = Literal[
    "mamba1", "mamba2", "gated_delta", "kda", "lightning", "rg_lru", "rwkv4", "rwkv", "mlstm", "plamo"
]


@dataclass(frozen=True)
class Every:
    """One layer in `n` differs: layer i is the second of `kinds` where its place in the period fits, else the first.

    The period comes from the first present field of `fields`, else from `default`. `at` says which layer of a period
    differs: the `last` (or the one at `offset`), the `first`, or the last counted `backward` from the end of the
    stack. Periods begin behind the first `skip` layers. `also` adds layers (-1 is the last one). `rest` says that
    layers behind the last whole period are of the second kind too.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    kinds: tuple[str, str]
    default: int | None = None
    fields: tuple[str, ...] = ()
    offset: int | None = None
    offset_field: str | None = None
    skip: int = 0
    at: Literal["last", "first", "backward"] = "last"
    also: tuple[int, ...] = ()
    rest: bool = False


@dataclass(frozen=True)
class Family:
    """How one family's config.json becomes layers. Every default is the one of its published class."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    types: tuple[str, ...]
    classes: tuple[str, ...] = ()
    #: how an attention layer stores its tokens
    attention: Literal["heads", "latent", "compressed"] = "heads"
    #: every full layer has an indexer, so its width can't be absent
    indexed: bool = False
    #: what a recurrent layer is
    linear: LinearKind | None = None
    #: what it is instead where the file names no convolution
    linear_without_conv: LinearKind | None = None
    #: what runs beside attention in a hybrid layer
    beside: Literal["linear", "cca", "streams", "kv_conv"] | None = None
    #: every layer's kind where the file has no list: one kind; "window" where a window is set; "tail" for a window from
    #: layer max_window_layers on; "counted" where the number of full layers is enough; "listed" is refused
    layers: str = "full"
    every: Every | None = None
    tile: tuple[str, ...] = ()
    #: the window is on only with `use_sliding_window`
    window_switch: bool = False
    #: the class carries a window that no layer uses unless a list says so
    window_unused: bool = False
    window_field: str | None = None
    #: KV heads where the file has none: the query heads, one, or refused
    kv: Literal[
        "query",
        "required",
        "multi_query",
        "falcon",
        "refined_web",
        "shared_heads",
        "chatglm",
        "attn_config",
        "block_configs",
    ] = "query"
    head_dim: int | None = None
    #: the fields that tell it, where a field of that name means something else
    head_dim_fields: tuple[str, ...] = ()
    #: attention works on this many times the hidden width
    width_factor: int = 1
    #: window layers have this many times the KV heads where the file gives them no geometry of their own
    local_kv_factor: int = 1
    #: the head width of full layers where it differs from that of window layers
    global_head_dim: int | None = None
    #: fields that released files omit, with the class's values
    defaults: dict[str, int] = field(default_factory=dict)
    sharing: Literal["last_layers", "cla", "groups", "sources", "yoco"] | None = None
    #: attention blocks of one numbered layer (LongCat: 2)
    blocks_per_layer: int = 1
    #: layers that run more than once a token, each pass with a cache of its own
    loop: Literal["stack", "core", "window"] | None = None
    encoder_decoder: bool = False
    encoder_tokens_field: str | None = None
    index_frequency: int | None = None
    index_when: tuple[str, ...] = ("index_head_dim",)
    index_key_format: Literal["fp8"] | None = None
    #: kinds that this family calls by another family's word
    words: dict[str, str] = field(default_factory=dict)
    context: tuple[str, ...] = ()
    rope_extends: bool = False
    tied: bool | None = None


def normalised(name: str) -> str:
    """A class name or model_type reduced to what both spell alike: `Qwen2ForCausalLM` and `qwen2` are `qwen2`."""
    name = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", name)
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True)
class Catalog:
    """The whole of architectures.yaml. `nested_defaults` are what a wrapper's text block leaves out, by model_type."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    families: tuple[Family, ...]
    nested_defaults: dict[str, dict[str, int]]


@cache
def catalog() -> Catalog:
    """architectures.yaml, validated."""
    from pydantic import TypeAdapter, ValidationError

    path = Path(__file__).with_name("architectures.yaml")
    try:
        return TypeAdapter(Catalog).validate_python(read_yaml(path))
    except ValidationError as error:
        raise KvplanError(f"{path.name}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None


@cache
def families() -> dict[str, Family]:
    """Every known family by model_type and by explicitly listed class name."""
    table: dict[str, Family] = {}
    for family in catalog().families:
        for name in (*family.types, *family.classes):
            if name in table:
                raise KvplanError(f"architectures.yaml: found {name} twice, expected each name once")
            table[name] = family
    return table


@cache
def _by_normalised() -> dict[str, Family]:
    return {normalised(name): family for name, family in families().items()}


def find(model_type: object, architectures: object) -> Family | None:
    """The family of a config: by exact model_type, then by it without `_text`, then by its class names."""
    table = families()
    if isinstance(model_type, str):
        for name in (model_type, re.sub(r"_(text|text_model|language_model|language|model)$", "", model_type)):
            if name in table:
                return table[name]
    for name in architectures if isinstance(architectures, list) else ():
        if isinstance(name, str):
            found = table.get(name) or _by_normalised().get(normalised(name))
            if found:
                return found
    return None
