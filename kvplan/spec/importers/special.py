"""Families whose stack no list describes: SambaY's shared second half, Nemotron-NAS's searched blocks, PLaMo 2.

And the draft (MTP) layers behind a stack, which count only when drafting is on.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.spec.importers import mixers
from kvplan.spec.importers.counts import window_at
from kvplan.spec.importers.fields import Fields
from kvplan.spec.importers.layout import WORDS
from kvplan.spec.layers import (
    FullAttention,
    LatentAttention,
    Layer,
    NoCache,
    Parallel,
    SlidingWindow,
)

Stack = tuple[list[Layer], list[int | None]]


def stack(fields: Fields, layers: int) -> Stack | None:
    """The layers and their owners for a family with a rule of its own; None for all others."""
    if fields.family.sharing == "yoco":
        return _sambay(fields, layers)
    if fields.items("block_configs") is not None:
        return _searched(fields, layers)
    if fields.family.linear == "plamo":
        return _plamo(fields, layers)
    return None


def _sambay(fields: Fields, layers: int) -> Stack:
    """Phi-4-mini-flash: Mamba on even layers, attention on odd ones; the upper half reads one layer's K and V."""
    period = fields.whole("mb_per_layer", low=0)
    if period not in (None, 2) or layers % 4:
        raise fields.unsupported(f"mb_per_layer {period} and {layers} layers, expected 2 and a multiple of four")
    if fields.present(("sliding_window",)) is None:
        raise fields.unsupported("sliding_window is missing, expected a width or a list with one entry for each layer")
    widths = fields.get("sliding_window")
    if isinstance(widths, list):
        fields.same_length("sliding_window", len(widths), layers)
    half = layers // 2
    own: list[Layer] = []
    owners: list[int | None] = [None] * layers
    for index in range(layers):
        if index % 2 == 0:
            own.append(mixers.build(fields, "linear" if index <= half else "gated_memory", index, layers))
        elif index < half:
            own.append(mixers.build(fields, "window" if window_at(fields, index) else "full", index, layers))
        else:
            own.append(mixers.build(fields, "full", index, layers))
            owners[index] = None if index == half + 1 else half + 1
    return own, owners


def _searched(fields: Fields, layers: int) -> Stack:
    """Nemotron-NAS: each layer's attention with a group size of its own, replaced by a linear map, or gone."""
    configs = fields.items("block_configs") or []
    fields.same_length("block_configs", len(configs), layers)
    own: list[Layer] = []
    query = mixers.query_heads(fields, 0, layers)
    for index, config in enumerate(configs):
        scope = fields.with_values({f"block_configs[{index}]": config}).block(f"block_configs[{index}]")
        block = scope.block("attention") if scope is not None else None
        if block is None:
            raise fields.unsupported(f"block_configs[{index}].attention is missing")
        if block.flag("no_op") or block.flag("replace_with_linear"):
            own.append(NoCache("removed" if block.flag("no_op") else "linear"))
            continue
        if (block.whole("num_sink_tokens", low=0) or 0) > 0:
            raise fields.unsupported(
                f"block_configs[{index}].attention.num_sink_tokens is set, which kvplan can't place"
            )
        heads = block.whole("num_key_value_heads")
        group = block.whole("n_heads_in_group")
        if heads is None and group is None:
            raise fields.unsupported(f"block_configs[{index}].attention.n_heads_in_group is missing")
        if heads is None and group is not None:
            if query % group:
                raise fields.unsupported(f"{query} query heads don't divide by the group of {group} in block {index}")
            heads = query // group
        width, window = mixers.head_dim(fields, query), block.whole("window_length", high=10**12)
        assert heads is not None
        own.append(SlidingWindow(query, heads, width, window) if window else FullAttention(query, heads, width))
    return own, [None] * layers


def _plamo(fields: Fields, layers: int) -> Stack:
    """PLaMo 2: one attention layer in `mamba_step`, windowed unless `full_attention_idx` names it."""
    full = fields.indices("full_attention_idx", layers) or set()
    step = fields.need("mamba_step", "mamba_step", low=2)
    own: list[Layer] = []
    for index in range(layers):
        attends = index == layers - 1 if layers <= step // 2 else index % step == step // 2
        if not fields.flag("mamba_enabled", default=True):
            attends = True
        kind = "linear" if not attends else "full" if index in full else "window"
        if kind == "window" and window_at(fields, index) is None:
            raise fields.unsupported("attention_window_size is missing for the layers outside full_attention_idx")
        own.append(mixers.build(fields, kind, index, layers))
    return own, [None] * layers


def looped(fields: Fields, own: list[Layer]) -> list[Layer]:
    """The stack with each further pass over its looped layers written out, since each pass keeps a cache of its own."""
    if fields.family.loop == "stack":
        return own * fields.need("the number of passes", "total_ut_steps", high=100)
    if fields.family.loop == "window":  # the second pass looks at a short window of its own
        if fields.need("the number of passes", "loop_num") != 2:
            raise fields.unsupported(f"loop_num is {fields.get('loop_num')}, expected 2")
        window = fields.need("the window of the second pass", "loop_window_size", high=10**12)
        return own + [
            SlidingWindow(b.query_heads, b.kv_heads, b.head_dim, window) for b in own if isinstance(b, FullAttention)
        ]
    inner = fields.block("loop_config") or fields
    passes = inner.need("the number of passes", "n_recurrent_loops", "loop_num_passes", "num_passes", high=100)
    if fields.text("recurrent_kv_cache_mode") == "last_loop":
        return own
    start = inner.need("the first looped layer", "n_input_layers", "loop_layer_index_start", "core_start", low=0)
    end = inner.whole("loop_layer_index_end", "core_end", low=0)
    if end is None:
        end = len(own) - inner.need("the layers behind the loop", "n_output_layers", low=0)
    if not start <= end <= len(own):
        raise fields.unsupported(f"the looped layers {start} to {end} aren't within the {len(own)} layers")
    return own[:start] + own[start:end] * passes + own[end:]


def drafts(fields: Fields, own: list[Layer], layers: int, count: int) -> list[Layer]:
    """The draft layers: by their own list where the file has one, else of the model's last attention geometry."""
    if count == 0:
        return []
    if fields.family.attention == "compressed":
        return [mixers.compressed(fields, 0, layers, draft=True)] * count
    words = fields.items("mtp_layers_block_type")
    if words:
        kinds = [WORDS.get(word) if isinstance(word, str) else None for word in words]
        if None in kinds:
            raise fields.bad("mtp_layers_block_type", words, "a list of layer kinds")
        return [mixers.build(fields, kind, 0, 1) for kind in kinds if kind] * count
    names = ("layer_types", "mtp_layer_types")
    listed = [fields.items(name) for name in names]
    tail = (listed[1] or []) if listed[1] else (listed[0] or [])[layers:]
    if len(tail) == count and all(isinstance(word, str) and word in WORDS for word in tail):
        kept = fields.with_values({k: v for k, v in fields.values.items() if k not in names})
        return [mixers.build(kept, WORDS[word], 0, 1) for word in tail]
    return [_last_attention(own)] * count if _attends(own) else []


def _growing(layer: Layer) -> bool:
    return isinstance(layer, FullAttention | LatentAttention) and getattr(layer, "window", None) is None


def _attends(own: list[Layer]) -> bool:
    return any(isinstance(b, FullAttention | LatentAttention | SlidingWindow) for layer in own for b in _parts(layer))


def _parts(layer: Layer) -> tuple[Layer, ...]:
    return layer.branches if isinstance(layer, Parallel) else (layer,)


def _last_attention(own: list[Layer]) -> Layer:
    """The last layer with a growing cache (its indexer with keys of its own), else the last windowed one."""
    flat = [part for layer in own for part in _parts(layer)]
    found = next((part for part in reversed(flat) if _growing(part)), None)
    if found is None:
        found = next(part for part in reversed(flat) if isinstance(part, SlidingWindow | LatentAttention))
    if isinstance(found, FullAttention | LatentAttention) and found.indexer is not None:
        return replace(found, indexer=replace(found.indexer, owns_keys=True))
    return found
