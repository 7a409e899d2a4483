"""From a model to the pools of a run: which groups of layers there are, and how many blocks of each a budget buys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvplan.cache.layout import Part
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques.paging import resident_blocks
from kvplan.errors import InputError
from kvplan.spec.layers import SingleLayer
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import both, tokens
from kvplan.validate.tensors import Entry, entry_tensors

MAX_REQUESTS = 64


@dataclass(frozen=True)
class PoolGroup:
    """Layers whose blocks share one table.

    A block holds `block_tokens` tokens in `entries_per_block` entries; a state or encoder group has one a request.
    """

    name: str
    layer: SingleLayer
    part: Part
    layers: int
    block_tokens: int
    entries_per_block: int
    entry: Entry

    @property
    def grows(self) -> bool:
        return self.part.role == "growing"

    @property
    def window(self) -> int | None:
        """Tokens that stay, meta tokens included; None where all do."""
        law = self.part.stored
        return None if law.window is None else law.window + law.constant

    def blocks_for(self, length: int) -> int:
        """Blocks one request of `length` tokens holds at most, as the plan predicts it."""
        return resident_blocks(self.part, length, self.block_tokens) if self.grows else 1

    def bytes(self, blocks: int) -> int:
        """What `kvplan.cache` says `blocks` blocks cost over all layers of the group."""
        return int(self.layers * self.part.bytes(blocks * self.entries_per_block))


@dataclass(frozen=True)
class Case:
    """A model laid out for one run: its groups, the blocks of each, and requests of `length` tokens to fill them."""

    name: str
    spec: ModelSpec
    groups: tuple[PoolGroup, ...]
    blocks: tuple[int, ...]
    length: int
    requests: int
    note: str = ""

    @property
    def predicted_bytes(self) -> int:
        return sum(group.bytes(count) for group, count in zip(self.groups, self.blocks, strict=True))


def pool_groups(spec: ModelSpec, precision: Precision, block: int) -> tuple[PoolGroup, ...]:
    """The groups of `spec` in blocks of `block` tokens, more where that many don't make a whole entry."""
    groups = []
    for found in plan_cache(spec, precision).groups:
        if not found.owners:
            continue
        part = found.part
        layer = next(branch for branch in branches(spec.blocks[found.block]) if branch.kind == found.kind)
        ratio = part.stored.ratio
        span = -(-block // ratio) * ratio if part.role == "growing" else block
        entries = span // ratio if part.role == "growing" else part.stored.constant
        groups.append(
            PoolGroup(f"{found.block}: {part.name}", layer, part, found.owners, span, entries,
                      entry_tensors(layer, part))
        )  # fmt: skip
    return tuple(groups)


def lay_out(
    spec: ModelSpec,
    budget: int,
    *,
    kv_cache_dtype: str = "auto",
    block: int = 16,
    requests: int = 4,
    length: int | None = None,
    note: str = "",
) -> Case:
    """Buy blocks for equal requests with `budget` bytes: at least `requests` of them, as long as fits up to `length`.

    What is left over goes to the groups that grow without a bound. Raises InputError where not even one request of one
    block fits.
    """
    precision = resolve_precision(kv_cache_dtype, model_dtype=spec.dtype)
    groups = pool_groups(spec, precision, block)
    longest = length or min(spec.max_context or 8192, 8192)

    def cost(tokens_each: int, count: int) -> int:
        return sum(group.bytes(count * group.blocks_for(tokens_each)) for group in groups)

    count = requests
    while count > 1 and cost(block, count) > budget:
        count -= 1
    if cost(block, count) > budget:
        raise InputError(
            f"--pool: found {both(budget)}, but one request of {tokens(block)} tokens of {spec.id} takes "
            f"{both(cost(block, 1))}, expected a larger pool or a smaller model"
        )
    chosen = _longest(cost, count, budget, block, longest)
    while count < MAX_REQUESTS and cost(chosen, count + 1) <= budget:
        count += 1
    blocks = [count * group.blocks_for(chosen) for group in groups]
    _spread(groups, blocks, budget - cost(chosen, count))
    return Case(f"{spec.id} {precision.name}", spec, groups, tuple(blocks), chosen, count, note)


def _longest(cost: Callable[[int, int], int], count: int, budget: int, low: int, high: int) -> int:
    high = max(low, high)
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle, count) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _spread(groups: Sequence[PoolGroup], blocks: list[int], left: int) -> None:
    """Give what is left over to the unbounded groups, evenly in tokens."""
    growing = [index for index, group in enumerate(groups) if group.grows and group.window is None]
    if not growing:
        return
    span = max(groups[index].block_tokens for index in growing)
    step = sum(groups[index].bytes(span // groups[index].block_tokens) for index in growing)
    for index in growing:
        blocks[index] += left // step * (span // groups[index].block_tokens)


def shortened(spec: ModelSpec, keep: int) -> tuple[ModelSpec, str]:
    """`spec` with at most `keep` layers of each block, in order, and a sentence that says so (empty when unchanged).

    Layers that share another's cache keep their owner, since every block keeps a layer.
    """
    counts = {name: min(count, keep) for name, count in spec.counts.items()}
    if sum(counts.values()) == spec.layer_count:
        return spec, ""
    runs = tuple(f"{count} x {name}" for name, count in counts.items())
    note = f"{sum(counts.values())} of {spec.layer_count} layers"
    return replace(spec, layers=runs, draft_layers=()), note
