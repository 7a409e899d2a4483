"""How many layers and draft layers there are, and how wide the window of a layer is."""

from __future__ import annotations

from kvplan.spec.importers.fields import DECODER_LAYERS, DRAFTS, LAYERS, WINDOW, Fields, is_whole
from kvplan.spec.model import MAX_LAYERS

#: lists with one kind a layer
TYPE_LISTS = ("layer_types", "layers_block_type", "layer_block_types")


def layer_count(fields: Fields) -> int:
    """The number of layers; where the field is gone (newer hybrids), the length of the layer list."""
    names = DECODER_LAYERS if fields.family.encoder_decoder else LAYERS
    count = fields.whole(*names, high=MAX_LAYERS)
    if count is not None:
        return count
    pattern = fields.get("hybrid_override_pattern")
    lengths = [len(pattern)] if isinstance(pattern, str) else []
    lengths += [len(fields.items(name) or ()) for name in TYPE_LISTS if fields.get(name) is not None]
    if lengths and 1 <= lengths[0] <= MAX_LAYERS:
        return lengths[0]
    return fields.need("the number of layers", *names, high=MAX_LAYERS)


def draft_count(fields: Fields) -> int:
    """Draft (MTP) layers the file declares."""
    found = {name: value for name in DRAFTS if (value := fields.whole(name, low=0, high=1000))}
    inner = fields.block("mtp_config")
    if inner is not None and not found:
        found = {name: value for name in DRAFTS if (value := inner.whole(name, low=0, high=1000))}
    if len(set(found.values())) > 1:
        first = next(iter(found))
        others = ", ".join(f"{name} {value}" for name, value in found.items() if name != first)
        fields.assume(f"{first} says {found[first]} draft layers and {others}: the first is used.")
    each = fields.whole("mtp_transformer_layers") or 1 if "num_mtp_modules" in found and len(found) == 1 else 1
    return next(iter(found.values()), 0) * each


def window_width(fields: Fields) -> int | None:
    """The width of the window; None where the file sets none or switches it off."""
    names = (fields.family.window_field,) if fields.family.window_field else WINDOW
    name = fields.present(names)
    if name is None or isinstance(fields.get(name), list):
        return None
    listed = any(fields.get(kinds) is not None for kinds in TYPE_LISTS)
    on = fields.flag("use_sliding_window", default=not fields.family.window_switch)
    if not on and (fields.family.window_switch or not listed):
        return None
    return fields.whole(name, high=10**12)


def window_at(fields: Fields, layer: int) -> int | None:
    """The window of one layer, from a list with an entry per layer where there is one; None, 0 and -1 mean full."""
    for name in ("sliding_window", "sliding_windows"):
        widths = fields.get(name)
        if isinstance(widths, list):
            if layer >= len(widths):
                raise fields.unsupported(f"{name} has {len(widths)} entries, expected one for layer {layer} too")
            if widths[layer] is None or (is_whole(widths[layer], -1, 0)):
                return None
            if not is_whole(widths[layer], 1, 10**12):
                raise fields.bad(name, widths[layer], "a window, or null for a full layer")
            return int(widths[layer])
    return window_width(fields)
