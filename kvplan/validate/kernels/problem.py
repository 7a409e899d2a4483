"""One decode step over paged keys and values: the tensors that every kernel is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Decode:
    """Query tokens of a batch against their pages. Kernels read only; shapes, with P blocks of `page` entries:

    - query [batch, query heads, key width + rotary width], key [P, page, KV heads, key width],
      value [P, page, KV heads, value width], rope [P, page, 1, rotary width] or None (the rotary part of an MLA latent,
      which scores and carries no value);
    - key_scale and value_scale [P, page, KV heads, groups] fp32 or None: each scales an equal run of the width;
    - table int32 [batch, most blocks], lengths int32 [batch]; entries of `table` past a request's blocks are unused;
    - sinks fp32 [query heads] or None: a logit per head that takes part in the softmax and carries no value.

    `window` is the number of newest tokens that are attended, 0 for all. With `shared` the value is the first values
    of the key's own vector, so a kernel loads it once.
    """

    torch: Any
    query: Any
    key: Any
    value: Any
    table: Any
    lengths: Any
    scale: float
    rope: Any = None
    key_scale: Any = None
    value_scale: Any = None
    window: int = 0
    sinks: Any = None
    shared: bool = False

    @property
    def page(self) -> int:
        return int(self.key.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.key.shape[2])

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return int(self.query.shape[1]) // self.kv_heads

    @property
    def value_width(self) -> int:
        return int(self.value.shape[3])

    def span(self, number: int) -> tuple[int, int]:
        """First and last + 1 token that request `number` attends to."""
        length = int(self.lengths[number])
        return (max(0, length - self.window) if self.window else 0), length

    def attended(self) -> int:
        """Tokens read over the batch."""
        return sum(end - begin for begin, end in map(self.span, range(int(self.lengths.numel()))))

    def with_table(self, table: Any, lengths: Any) -> Decode:
        """The same pages under another table: a selection of them, or what an eviction left."""
        return replace(self, table=table, lengths=lengths)

    def first_heads(self, count: int) -> Decode:
        """The same step for the first `count` KV heads and their query heads."""
        count = min(count, self.kv_heads)

        def cut(tensor: Any, axis: int = 2) -> Any:
            return None if tensor is None else tensor.narrow(axis, 0, count if axis == 2 else count * self.group)

        return replace(
            self, query=cut(self.query, 1), key=cut(self.key), value=cut(self.value), key_scale=cut(self.key_scale),
            value_scale=cut(self.value_scale), sinks=cut(self.sinks, 0),
        )  # fmt: skip

    def poisoned_output(self) -> Any:
        """An fp32 output full of NaN, so that a value nobody wrote can't pass for a right one."""
        shape = (*self.query.shape[:2], self.value_width)
        return self.torch.full(shape, math.nan, dtype=self.torch.float32, device=self.query.device)


def shuffled_table(torch: Any, blocks: int, lengths: Sequence[int], page: int, generator: Any, device: Any) -> Any:
    """A block table whose blocks are a random choice out of `blocks`, none used twice; int32 [batch, most blocks].

    What lies past a request's last block points to block 0 and must not be read.
    """
    needed = [-(-length // page) for length in lengths]
    order = torch.randperm(blocks, generator=generator, device=device)[: sum(needed)].to(torch.int32)
    table = torch.zeros((len(lengths), max(needed)), dtype=torch.int32, device=device)
    start = 0
    for row, count in enumerate(needed):
        table[row, :count] = order[start : start + count]
        start += count
    return table


def dequantized(torch: Any, values: Any, scale: Any) -> Any:
    """`values` [..., width] in fp32, times `scale` [..., groups], each for an equal run of the width."""
    wide = values.to(torch.float32)
    if scale is None:
        return wide
    run = values.shape[-1] // scale.shape[-1]
    return wide * scale.to(torch.float32).repeat_interleave(run, dim=-1)


def error_bound(torch: Any, query: Any) -> float:
    """The largest absolute error allowed against fp32 for standard normal inputs: a CPU computes in fp32 itself."""
    if query.device.type == "cpu":
        return 1e-4
    return {torch.bfloat16: 2e-2, torch.float16: 5e-3}.get(query.dtype, 1e-4)
