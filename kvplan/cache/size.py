"""The formula: the needed bytes of one sequence, summed over a model's layers, with the derivation of each part.

    needed = growing + state + cross
    growing = sum over parts of  owning layers x entries(n) x entry bytes
    read per decode step = the same sum over reading layers and entries read

*Needed* is what the mathematics asks for one sequence whose n tokens are stored: the whole model, every KV head once,
no page rounding, no tokens in flight, no draft layers unless drafting is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from kvplan.cache.layout import LayerContext, Part, Role, layer_parts
from kvplan.cache.precision import Precision
from kvplan.cache.shard import shard_layer
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.spec.layers import LAYER_BY_KIND, Layer, SharedCache
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import counted


@record
class Group:
    """Equal parts of equal layers: `owners` layers store the part, `readers` layers load it in a decode step."""

    block: str
    kind: str
    part: Part
    owners: int
    readers: int
    draft: bool = False

    @property
    def label(self) -> str:
        """The block's name, marked where its layers are draft (MTP) layers of the same geometry as the stack's."""
        return f"draft {self.block}" if self.draft and not self.block.startswith("draft") else self.block

    def stored_bytes(self, n: Any) -> Any:
        """Bytes all owning layers hold for one sequence of `n` tokens (an integer or a numpy array)."""
        return self.owners * self.part.stored_bytes(n)

    def read_bytes(self, n: Any) -> Any:
        """Bytes all reading layers load in one decode step at `n` tokens (an integer or a numpy array)."""
        return self.readers * self.part.read_bytes(n)

    def formula(self, n: int) -> str:
        """stored_bytes(n) with its numbers filled in."""
        text = self.part.stored.text(n)
        entries = "" if self.part.role == "state" else f" x {text} {'entry' if text == '1' else 'entries'}"
        if not self.owners:
            return f"0, read again by {counted(self.readers, 'layer')}{entries} x {self.part.entry_formula}"
        return f"{counted(self.owners, 'layer')}{entries} x {self.part.entry_formula}"


@record
class CachePlan:
    """A model's cache under given dtypes, ready to be asked for any context length."""

    spec: ModelSpec
    precision: Precision
    groups: tuple[Group, ...]
    total_layers: int

    def _sum(self, n: Any, role: Role) -> Any:
        return sum(group.stored_bytes(n) for group in self.groups if group.part.role == role)

    def growing_bytes(self, n: Any) -> Any:
        """Bytes that depend on the context: K and V, latents, index keys, compressed entries, windows."""
        return self._sum(n, "growing")

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of recurrent, convolution and compressor state of one sequence."""
        return int(self._sum(1, "state"))

    @cached_property
    def cross_bytes(self) -> int:
        """Bytes of cross attention over the encoder's tokens; text does not grow them."""
        return int(self._sum(1, "cross"))

    def needed_bytes(self, n: Any) -> Any:
        """growing + state + cross of one sequence of `n` stored tokens (an integer or a numpy array)."""
        return self.growing_bytes(n) + self.state_bytes + self.cross_bytes

    def read_bytes(self, n: Any) -> Any:
        """Bytes one decode step of one sequence loads; sharing a cache between layers does not shrink it."""
        return sum(group.read_bytes(n) for group in self.groups)

    def marginal_bytes(self, n: int) -> Fraction:
        """Bytes that one more token adds at `n` tokens, averaged over compression ratios."""
        return sum((group.owners * group.part.slope(n) for group in self.groups), Fraction(0))

    def growing_layers(self, n: int) -> int:
        """How many layers still grow past `n` tokens."""
        grown = {
            (group.label, group.owners): group.owners
            for group in self.groups
            if group.owners and group.part.role == "growing" and group.part.slope(n) > 0
        }
        return sum(grown.values())

    def longest_context(self, budget: int, limit: int) -> int:
        """The most tokens of one sequence that `budget` bytes hold, at most `limit`; 0 when not even one fits."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed_bytes(middle) <= budget:
                low = middle
            else:
                high = middle - 1
        return low

    def kept_reasons(self) -> list[str]:
        """Why parts did not take the asked dtype, one sentence each, without repeats."""
        reasons = [f"{group.label}: {group.part.kept}" for group in self.groups if group.part.kept]
        return list(dict.fromkeys(reasons))


def plan_cache(
    spec: ModelSpec,
    precision: Precision,
    *,
    encoder_tokens: int | None = None,
    drafting: bool = False,
    ranks: int = 1,
) -> CachePlan:
    """Lay out the cache of `spec`. `encoder_tokens` feed cross attention where the checkpoint fixes none.

    With `drafting` the model's draft (MTP) layers count too; with `ranks` the plan is that of one tensor-parallel
    rank. Raises InputError for skip entries that name no layer.
    """
    groups: list[Group] = []
    for name, count, skipped in _skip_split(spec, precision):
        context = LayerContext(precision, spec.meta_tokens, encoder_tokens, skipped)
        groups.extend(_groups(spec, name, count, context, ranks))
    layers = spec.layer_count
    for name, count in spec.draft_counts.items() if drafting else ():
        context = LayerContext(precision, spec.meta_tokens, encoder_tokens)
        groups.extend(replace(group, draft=True) for group in _groups(spec, name, count, context, ranks))
        layers += count
    return CachePlan(spec, precision, tuple(groups), layers)


def _groups(spec: ModelSpec, name: str, count: int, context: LayerContext, ranks: int) -> Iterator[Group]:
    for branch in branches(spec.blocks[name]):
        if isinstance(branch, SharedCache):
            yield from _borrowed(spec, name, branch, count, context, ranks)
        else:
            for part in layer_parts(shard_layer(branch, ranks), context):
                borrowed = part.role == "growing" and not part.stored.grows
                owners = 0 if borrowed else count
                yield Group(name, branch.kind, part, owners, count)


def _borrowed(
    spec: ModelSpec, name: str, layer: SharedCache, count: int, context: LayerContext, ranks: int
) -> Iterator[Group]:
    """A sharing layer loads its owner's K and V again and stores nothing; it reuses the owner's selection."""
    for branch in branches(spec.blocks[layer.owner]):
        for part in () if isinstance(branch, SharedCache) else layer_parts(shard_layer(branch, ranks), context):
            if part.role == "growing" and part.name != "index keys":
                yield Group(name, layer.kind, part, 0, count)


def _skip_split(spec: ModelSpec, precision: Precision) -> list[tuple[str, int, bool]]:
    """Blocks with their layer counts, those that `skip` leaves in 16 bits apart."""
    if not precision.skip:
        return [(name, count, False) for name, count in spec.counts.items()]
    numbers = {entry for entry in precision.skip if isinstance(entry, int)}
    names = {entry for entry in precision.skip if isinstance(entry, str)}
    for entry in names:
        if entry not in spec.blocks and entry not in LAYER_BY_KIND:
            choices = (*LAYER_BY_KIND, *spec.blocks)
            raise InputError(
                f"--kv-cache-dtype-skip-layers: found {show(entry)}, expected layer numbers or a layer kind such as "
                f"sliding_window{did_you_mean(entry, choices)}"
            )
    for number in numbers:
        if not 0 <= number < spec.layer_count:
            raise InputError(
                f"--kv-cache-dtype-skip-layers: found layer {number}, expected 0 to {spec.layer_count - 1}"
            )
    split: dict[tuple[str, bool], int] = {}
    for index, name in enumerate(spec.sequence()):
        skipped = index in numbers or name in names or _has_kind(spec.blocks[name], names)
        split[name, skipped] = split.get((name, skipped), 0) + 1
    return [(name, count, skipped) for (name, skipped), count in split.items()]


def _has_kind(layer: Layer, names: set[str]) -> bool:
    return layer.kind in names or any(branch.kind in names for branch in branches(layer))
