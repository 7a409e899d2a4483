"""Blocks one request takes, the pool's blocks, the start-up check and the longest length that fits."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.engines.vllm.blocks import CacheLayer, ceil_div
from kvplan.engines.vllm.grouping import LayerGroup
from kvplan.engines.vllm.settings import Resolved
from kvplan.errors import InputError
from kvplan.record import record


@record
class Demand:
    """What decides how many blocks one request takes, its length apart. All in tokens but `ranks` and `drafted`."""

    in_flight: int
    encoder: int
    ranks: int
    state_mode: str
    drafted: int
    extra_window: int

    @classmethod
    def of(cls, resolved: Resolved, decode_context: int, drafted: int, extra_window: int) -> Demand:
        return cls(
            in_flight=resolved.in_flight_tokens,
            encoder=resolved.max_num_batched_tokens,
            ranks=decode_context,
            state_mode=resolved.state_mode,
            drafted=drafted,
            extra_window=extra_window,
        )

    def blocks(self, layer: CacheLayer, length: int) -> int:
        """Blocks of `layer` that one request of `length` tokens has set aside (vllm/v1/kv_cache_interface.py)."""
        match layer.family:
            case "full" | "latent":
                return ceil_div(ceil_div(length, self.ranks), layer.block)
            case "sliding" | "sliding_latent":
                assert layer.window is not None
                held = min(layer.window - 1 + self.extra_window + self.in_flight, length)
                return ceil_div(held, layer.block) + 1
            case "chunked":
                assert layer.window is not None
                return ceil_div(min(layer.window + self.in_flight, length), layer.block)
            case "cross":
                return ceil_div(self.encoder, layer.block)
            case "state":
                return self._state_blocks(layer, length)

    def _state_blocks(self, layer: CacheLayer, length: int) -> int:
        if self.state_mode == "align":
            return 2 + self.drafted + layer.unit.checkpoint_blocks
        if self.state_mode == "all":
            return ceil_div(length, layer.block) + self.drafted
        return 1 + self.drafted

    def group_blocks(self, group: LayerGroup, length: int) -> int:
        """Blocks of the group: those of its neediest layer."""
        if not group.uniform:
            return self.blocks(group.layers[0], length)
        kinds = {(layer.family, layer.window, layer.block): layer for layer in group.layers}
        return max(self.blocks(layer, length) for layer in kinds.values())

    def text(self, layer: CacheLayer, length: int) -> str:
        """blocks() as a formula with its numbers."""
        match layer.family:
            case "full" | "latent" if self.ranks > 1:
                return f"ceil(ceil({length} / {self.ranks}) / {layer.block})"
            case "full" | "latent":
                return f"ceil({length} / {layer.block})"
            case "sliding" | "sliding_latent":
                extra = f" + {self.extra_window}" if self.extra_window else ""
                return f"ceil(min({layer.window} - 1{extra} + {self.in_flight}, {length}) / {layer.block}) + 1"
            case "chunked":
                return f"ceil(min({layer.window} + {self.in_flight}, {length}) / {layer.block})"
            case "cross":
                return f"ceil({self.encoder} encoder tokens / {layer.block})"
            case _:
                return f"{self._state_blocks(layer, length)} state blocks ({self.state_mode}, {self.drafted} drafted)"


def request_blocks(groups: Sequence[LayerGroup], demand: Demand, length: int) -> int:
    """Blocks that one request of `length` tokens takes from the pool, over all groups."""
    return sum(demand.group_blocks(group, length) for group in groups)


def pool_block_bytes(groups: Sequence[LayerGroup], stage: int) -> int:
    """Bytes of one pool block on one stage: the widest group's."""
    return max((group.page_bytes(stage) for group in groups), default=0)


def longest_length(groups: Sequence[LayerGroup], demand: Demand, blocks: int, limit: int) -> int:
    """The longest request, at most `limit` tokens, that `blocks` blocks hold; 0 when not even one token fits."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if request_blocks(groups, demand, middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def check_decode_context(layers: Sequence[CacheLayer], ranks: int, tensor: int) -> None:
    """Refuse decode context parallelism that vLLM can't do. Raises InputError."""
    if ranks == 1:
        return
    field = "--decode-context-parallel-size"
    if tensor % ranks:
        raise InputError(f"{field}: found {ranks}, expected a divisor of the {tensor} tensor-parallel ranks")
    for layer in layers:
        if layer.family in ("sliding", "sliding_latent", "chunked"):
            raise InputError(f"{field}: found {ranks}, expected 1 for a model with windowed layers")
