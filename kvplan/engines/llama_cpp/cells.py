"""How many cells each of llama.cpp's caches has, and in how many streams.

Source: ggml-org/llama.cpp build b11549, src/llama-context.cpp, llama-kv-cache-iswa.cpp and llama-kv-cache-dsv4.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass


def pad(count: int, multiple: int) -> int:
    """`count` rounded up to `multiple`."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True)
class Cells:
    """The context as the engine resolves it.

    `context` is the sum over streams, `per_stream` what one stream holds, `per_slot` the longest sequence of one slot.
    One stream is shared by all `slots`.
    """

    context: int
    per_stream: int
    per_slot: int
    streams: int
    slots: int
    padding: int
    ubatch: int
    swa_full: bool

    def window(self, width: int) -> int:
        """Cells a stream of the window pool holds: the windows of the slots that share it and one micro-batch."""
        if self.swa_full:
            return self.per_stream
        sharing = self.slots if self.streams == 1 else 1
        return pad(min(self.per_stream, width * sharing + self.ubatch), self.padding)

    def compressed(self, ratio: int) -> int:
        """Cells for one entry every `ratio` tokens."""
        return pad(-(-self.per_stream // ratio), self.padding)


def resolve_cells(
    context: int, slots: int, *, unified: bool, streams: bool, padding: int, ubatch: int, batch: int, swa_full: bool
) -> Cells:
    """Round `context` tokens for `slots` sequences. A split context rounds each slot's share up, never down."""
    total = pad(context, padding)
    ubatch = min(ubatch, batch, total)
    if unified or not streams:
        return Cells(total, total, total if unified else total // slots, 1, slots, padding, ubatch, swa_full)
    share = pad(max(1, total // slots), padding)
    return Cells(share * slots, share, share, slots, slots, padding, ubatch, swa_full)
