"""Which layer is of which kind: explicit lists, then pattern strings, then periods, then the class's own rule.

A kind is one of the words of `KINDS`; what it stores is decided in `mixers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import show
from kvplan.spec.importers.catalog import Every
from kvplan.spec.importers.counts import TYPE_LISTS, draft_count, window_at, window_width
from kvplan.spec.importers.fields import WINDOW, Fields, is_whole
from kvplan.spec.model import MAX_LAYERS

KINDS = (
    "full", "indexed", "window", "chunk", "linear", "conv", "hybrid", "hybrid_window", "cross", "mlp", "experts",
    "gated_memory", "removed", "replaced", "compressed",
)  # fmt: skip

#: what `layer_types`, `layers_block_type` and their likes call each kind
WORDS = {
    **dict.fromkeys(("full_attention", "attention", "attn", "global", "global_attention", "full", "full_attn"), "full"),
    **dict.fromkeys(("indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse"), "indexed"),
    **dict.fromkeys(
        (
            "sliding_attention",
            "sliding_window_attention",
            "sliding_window",
            "sliding",
            "local",
            "local_attention",
            "swa",
        ),
        "window",
    ),
    **dict.fromkeys(("chunked_attention", "chunked"), "chunk"),
    **dict.fromkeys(
        ("linear_attention", "linear", "mamba", "mamba2", "recurrent", "kda", "gated_deltanet", "m", "ssm"), "linear"
    ),
    **dict.fromkeys(("conv", "short_conv", "convolution"), "conv"),
    "hybrid": "hybrid",
    "hybrid_sliding": "hybrid_window",
    "cross_attention": "cross",
    "mlp": "mlp",
    **dict.fromkeys(("moe", "experts"), "experts"),
    **dict.fromkeys(("compressed_sparse_attention", "heavily_compressed_attention"), "compressed"),
}
PATTERN = {"M": "linear", "*": "full", "-": "mlp", "E": "experts"}
EXAONE = {"L": "window", "G": "full"}

FULL_INDICES = ("full_attn_idxs", "full_attention_idx", "global_attn_idx", "attn_layer_indices", "hybrid_layer_ids")
WINDOW_INDICES = ("local_layer_ids", "sliding_window_layers")
#: lists of flags, with the kinds of 0 and 1
FLAG_LISTS = {
    "attn_type_list": ("linear", "full"),
    "hybrid_layer_pattern": ("full", "window"),
    "sliding_window_layout": ("full", "window"),
}


def layer_kinds(fields: Fields, layers: int, assume_dense: bool = False) -> list[str]:
    """The kind of each of `layers` layers. Raises UnsupportedArchitectureError where the fields don't decide it."""
    for resolve in (_from_words, _from_flags, _from_indices, _from_window_list, _from_pattern, _from_periods):
        kinds = resolve(fields, layers)
        if kinds is not None:
            break
    else:
        kinds = _from_class(fields, layers, assume_dense)
    cross = fields.indices("cross_attention_layers", layers)
    if cross:
        kinds = ["cross" if index in cross else kind for index, kind in enumerate(kinds)]
    return _with_indexers(fields, kinds)


def _with_indexers(fields: Fields, kinds: list[str]) -> list[str]:
    """Full layers own an indexer where its fields are set and no list singles out the indexed ones."""
    enabled = all(fields.get(name) is not None for name in fields.family.index_when)
    if fields.block("sparse_attention_config") is not None:
        return _minimax_indexers(fields, kinds)
    if not enabled and fields.family.indexed:
        raise fields.unsupported("index_head_dim is missing, which its indexer on every layer needs")
    if not enabled:
        return ["full" if kind == "indexed" else kind for kind in kinds]
    can_index = fields.family.attention == "latent" or fields.family.index_when != ("index_head_dim",)
    if "indexed" in kinds or not can_index:
        return kinds
    return ["indexed" if kind == "full" else kind for kind in kinds]


def _minimax_indexers(fields: Fields, kinds: list[str]) -> list[str]:
    sparse = fields.block("sparse_attention_config")
    assert sparse is not None
    if not sparse.flag("use_sparse_attention", default=True):
        return ["full" if kind == "indexed" else kind for kind in kinds]
    flags = sparse.wholes("sparse_attention_freq", high=1)
    if flags is None:
        return kinds if "indexed" in kinds else ["indexed"] * len(kinds)
    fields.same_length("sparse_attention_config.sparse_attention_freq", len(flags), len(kinds))
    return [
        "indexed" if flag and kind in ("full", "indexed") else kind for flag, kind in zip(flags, kinds, strict=True)
    ]


def _words(fields: Fields, name: str, words: list[Any]) -> list[str]:
    kinds = []
    for word in words:
        if not isinstance(word, str):
            raise fields.bad(name, word, "a list of layer kinds")
        kind = fields.family.words.get(word) or WORDS.get(word)
        if kind is None:
            raise fields.unsupported(f"{name} names the layer kind {show(word)}, expected one of {', '.join(WORDS)}")
        kinds.append(kind)
    return kinds


def _from_words(fields: Fields, layers: int) -> list[str] | None:
    for name in TYPE_LISTS:
        words = fields.items(name)
        if words is None:
            continue
        drafts = draft_count(fields)
        if len(words) == layers + drafts:  # the layers behind the stack belong to the draft modules
            words = words[:layers]
        fields.same_length(name, len(words), layers)
        return _checked(fields, name, _words(fields, name, words))
    for name in ("block_types", "_block_types"):
        words = fields.items(name)
        if words:
            kinds = _words(fields, name, words)
            return _checked(fields, name, [kinds[index % len(kinds)] for index in range(layers)])
    for name in ("attention_layers", "attention_types"):
        words = fields.items(name)
        if words is not None:
            groups = _expanded(fields, fields.items("attention_types"))
            words = groups if name == "attention_types" else words
            fields.same_length(name, len(words), layers)
            return _checked(fields, name, _words(fields, name, words))
    return None


def _expanded(fields: Fields, groups: list[Any] | None) -> list[Any]:
    """GPT-Neo's `[[["global", "local"], 12]]`, written out."""
    words: list[Any] = []
    if groups is None:
        return words
    if not groups:
        raise fields.bad("attention_types", groups, "pairs of a list of kinds and a repeat count")
    for group in groups:
        pair = group if isinstance(group, list) and len(group) == 2 else [None, None]
        if not isinstance(pair[0], list) or not is_whole(pair[1], 1, MAX_LAYERS):
            raise fields.bad("attention_types", group, "pairs of a list of kinds and a repeat count")
        words += pair[0] * pair[1]
        if len(words) > 2 * MAX_LAYERS:
            raise fields.bad("attention_types", f"{len(words):,} layers", f"at most {MAX_LAYERS:,}")
    return words


def _checked(fields: Fields, name: str, kinds: list[str]) -> list[str]:
    """Refuse window and chunk layers for which the file sets no width."""
    needs = {"window", "hybrid_window"} & set(kinds)
    if needs and fields.family.attention != "compressed" and not _any_window(fields):
        raise fields.unsupported(f"{name} names window layers, but no width: expected one of {', '.join(WINDOW)}")
    if "chunk" in kinds and fields.whole("attention_chunk_size") is None:
        raise fields.unsupported(f"{name} names chunked layers, but attention_chunk_size is missing")
    return kinds


def _any_window(fields: Fields) -> bool:
    if window_width(fields) is not None or fields.get("sliding_windows") is not None:
        return True
    per_layer = fields.get("per_layer_config")
    return isinstance(per_layer, dict) and any(
        isinstance(v, dict) and v.get("sliding_window") for v in per_layer.values()
    )


def _from_flags(fields: Fields, layers: int) -> list[str] | None:
    for name, kinds in FLAG_LISTS.items():
        flags = fields.wholes(name, high=1)
        if flags is not None:
            fields.same_length(name, len(flags), layers)
            return _checked(fields, name, [kinds[flag] for flag in flags])
    return None


def _other_than_full(fields: Fields) -> str:
    """What the layers are that a list of full layers leaves out."""
    family = fields.family
    if family.beside and "global_attn_idx" in fields.values:
        return "hybrid_window"
    if fields.whole("conv_L_cache") is not None:
        return "conv"
    return "linear" if family.linear else "window"


def _from_indices(fields: Fields, layers: int) -> list[str] | None:
    linear = fields.block("linear_attn_config")
    if linear is not None and linear.present(("full_attn_layers", "kda_layers")):
        return _from_two_lists(fields, linear, layers)
    for name in FULL_INDICES:
        if name == "full_attention_idx" and fields.family.linear == "plamo":
            continue
        full = fields.indices(name, layers)
        if full is not None and name == "hybrid_layer_ids":
            return ["hybrid" if index in full else "linear" for index in range(layers)]
        if full is not None:
            other = _other_than_full(fields)
            full_kind = "hybrid" if other == "hybrid_window" else "full"
            return _checked(fields, name, [full_kind if index in full else other for index in range(layers)])
    for name in WINDOW_INDICES:
        local = fields.indices(name, layers)
        if local is not None:
            kinds = ("hybrid", "hybrid_window") if fields.family.beside else ("full", "window")
            return _checked(fields, name, [kinds[index in local] for index in range(layers)])
    return None


def _from_two_lists(fields: Fields, linear: Fields, layers: int) -> list[str]:
    """Kimi's lists count from 1, GLM-5.3's from 0: together they must name every layer exactly once."""
    full, kda = linear.wholes("full_attn_layers"), linear.wholes("kda_layers")
    if full is None or kda is None:
        missing = "full_attn_layers" if full is None else "kda_layers"
        raise fields.unsupported(f"linear_attn_config.{missing} is missing, expected both layer lists")
    named = sorted(full + kda)
    for base in (1, 0):
        if named == list(range(base, layers + base)):
            return ["full" if index + base in full else "linear" for index in range(layers)]
    raise fields.unsupported(
        f"full_attn_layers ({len(full)}) and kda_layers ({len(kda)}) of linear_attn_config don't name each of "
        f"{layers} layers once, counted from 0 or from 1"
    )


def _from_window_list(fields: Fields, layers: int) -> list[str] | None:
    for name in ("sliding_window", "sliding_windows"):
        widths = fields.get(name)
        if isinstance(widths, list) and fields.family.sharing != "yoco":
            fields.same_length(name, len(widths), layers)
            return ["window" if window_at(fields, index) else "full" for index in range(layers)]
    return None


def _from_pattern(fields: Fields, layers: int) -> list[str] | None:
    pattern = fields.get("hybrid_override_pattern")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise fields.bad("hybrid_override_pattern", pattern, "a string of M, *, - and E")
        fields.same_length("hybrid_override_pattern", len(pattern), layers)
        unknown = next((letter for letter in pattern if letter not in PATTERN), None)
        if unknown:
            raise fields.unsupported(f"hybrid_override_pattern has the letter {show(unknown)}, expected M, *, - or E")
        return [PATTERN[letter] for letter in pattern]
    letters = fields.get("sliding_window_pattern")
    if isinstance(letters, str):
        if not letters or set(letters) - set(EXAONE):
            raise fields.unsupported(f"sliding_window_pattern is {show(letters)}, expected a number or letters L and G")
        if window_width(fields) is None:
            return ["full"] * layers
        return [EXAONE[letters[index % len(letters)]] for index in range(layers)]
    return None


def _from_periods(fields: Fields, layers: int) -> list[str] | None:
    """A period of window layers, which needs no knowledge of the family."""
    family = fields.family
    if family.every is not None or family.tile:
        return None
    period = fields.whole("sliding_window_pattern", "global_attn_every_n_layers", high=MAX_LAYERS)
    width = window_width(fields)
    if period is not None and width is not None and not family.linear and family.layers == "full":
        return ["window" if (index + 1) % period else "full" for index in range(layers)]
    return None


def _every(fields: Fields, rule: Every, layers: int) -> list[str]:
    other, special = rule.kinds
    if "window" in other and not _any_window(fields):
        name = fields.present(WINDOW)
        if name is None and all(candidate not in fields.values for candidate in WINDOW):
            raise fields.unsupported(
                f"the class has window layers, but no width is set: expected one of {', '.join(WINDOW)}"
            )
        return [special] * layers
    if other == "chunk" and fields.whole("attention_chunk_size") is None:
        return [special] * layers
    period = fields.whole(*rule.fields, high=MAX_LAYERS) if rule.fields else None
    if period is None:
        if rule.default is None:
            raise fields.unsupported(f"neither layer_types nor {rule.fields[0]} says which layers attend")
        period = rule.default
        missing = rule.fields[0] if rule.fields else "layer_types"
        fields.assume(f"{missing} is absent: the class's pattern is used (period {period}, {special} against {other}).")
    offset = fields.whole(rule.offset_field, low=0, high=MAX_LAYERS) if rule.offset_field else rule.offset
    if rule.offset_field and offset is None:
        raise fields.unsupported(f"{rule.offset_field} is missing beside {rule.fields[0]}")
    place: dict[str, Callable[[int], bool]] = {
        "last": lambda index: (
            index >= rule.skip and (index - rule.skip) % period == (period - 1 if offset is None else offset)
        ),
        "first": lambda index: index % period == 0,
        "backward": lambda index: (layers - 1 - index) % period == 0,
    }
    also = {index % layers for index in rule.also if index < layers}
    tail = layers // period * period if rule.rest else layers
    return [special if place[rule.at](i) or i in also or i >= tail else other for i in range(layers)]


def _from_class(fields: Fields, layers: int, assume_dense: bool) -> list[str]:
    family = fields.family
    if family.tile:
        fields.assume(f"layer_types is absent: the class's pattern of {len(family.tile)} layers is repeated.")
        return _checked(
            fields, "the class's pattern", [family.tile[index % len(family.tile)] for index in range(layers)]
        )
    if family.every is not None:
        no_rope = fields.wholes("no_rope_layers", high=1) if "chunk" in family.every.kinds else None
        if no_rope:
            fields.same_length("no_rope_layers", len(no_rope), layers)
            chunked = fields.whole("attention_chunk_size") is not None
            return ["chunk" if rotated and chunked else "full" for rotated in no_rope]
        return _every(fields, family.every, layers)
    width = window_width(fields)
    if family.layers == "tail":
        if width is None:
            return ["full"] * layers
        start = fields.whole("max_window_layers", low=0)
        if start is None:
            raise fields.unsupported("the window is on, but max_window_layers is missing")
        return ["window" if index >= start else "full" for index in range(layers)]
    if family.layers == "window":
        return ["window" if width is not None else "full"] * layers
    if family.layers == "listed":
        raise fields.unsupported(
            f"the kinds of its {layers} layers are missing, expected layer_types or another layer list"
        )
    if family.layers == "counted":
        return _counted(fields, layers)
    if fields.whole("attention_chunk_size", high=10**12) is not None and not assume_dense:
        raise fields.unsupported("attention_chunk_size is set, but nothing says which layers are chunked")
    if width is not None and family.layers == "full" and not family.window_unused and not assume_dense:
        context = fields.whole("max_position_embeddings", high=10**12)
        if context is None or width < context:
            raise fields.unsupported(
                f"{fields.present(WINDOW)} is {width}, but nothing says which layers it is for: expected layer_types"
            )
        fields.assume(f"{fields.present(WINDOW)} {width} isn't shorter than the context of {context}: left out.")
    elif width is not None and assume_dense:
        fields.assume(
            f"{fields.present(WINDOW)} {width} is ignored on request: every layer is taken as full attention."
        )
    return [family.layers] * layers


def _counted(fields: Fields, layers: int) -> list[str]:
    """MiMo V2 where only the number of full layers is published: the bytes need no positions."""
    full = fields.whole("full_attention_layer_count", low=0, high=layers)
    if full is None or window_width(fields) is None:
        raise fields.unsupported(
            "the layer list is missing, expected hybrid_layer_pattern or layer_types, and a window"
        )
    fields.assume(f"only the number of full layers ({full} of {layers}) is published: their positions are unknown.")
    return ["full"] * full + ["window"] * (layers - full)
