"""Paging: blocks instead of contiguous reservations. What is rounded up, what is wasted, how many blocks fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from kvplan.cache.layout import Part
from kvplan.cache.techniques.base import Technique
from kvplan.errors import InputError
from kvplan.record import record

TECHNIQUE = Technique(
    number=10,
    name="paging",
    title="Paging",
    term="slots",
    stored="ceil(resident / block) blocks a sequence and group instead of a contiguous reservation of the longest",
    read="unchanged",
    computed="unchanged",
    needs_training=False,
    kinds=("full_attention", "sliding_window", "chunked_attention", "latent_attention", "compressed_sparse"),
    untouched="bytes a token; recurrent state, which is one page a sequence",
    metadata="a block table of 4 bytes a block",
    quality="none: exact",
    kernel="paged attention; small blocks cost kernel bandwidth, 2.3 TB/s at 1 token and 5.3 at 128 on B200",
    headline="8 GiB at 320 KiB a token: 26,214 tokens by division, 26,208 in blocks of 16",
    source="arXiv 2309.06180; FlashAttention pull request 2104; arithmetic",
    option="--block-size 16",
)

TABLE_ENTRY_BYTES = 4


def blocks(tokens: int, block: int) -> int:
    """Blocks that `tokens` tokens take: ceil(tokens / block)."""
    return -(-tokens // block)


def window_blocks(window: int, block: int, in_flight: int = 0, max_len: int | None = None) -> int:
    """Blocks a window group may hold: its last window - 1 tokens and those in flight, one more for misalignment.

    vLLM 0.33 SlidingWindowSpec.max_admission_blocks_per_request; `max_len` caps the tokens.
    """
    tokens = window - 1 + in_flight
    return blocks(tokens if max_len is None else min(tokens, max_len), block) + 1


def resident_blocks(part: Part, n: int, block: int, scattered: bool = False) -> int:
    """Blocks of `block` tokens one layer's growing part holds at n tokens: its window first, then its budget.

    A full window may straddle one block more. With `scattered` kept tokens each may hold a block of their own.
    """
    law = part.stored
    always = law.constant * law.ratio
    if not law.grows:
        return blocks(always, block)
    held = n if law.window is None else min(n, law.window)
    budget = held if law.limit is None else law.limit * law.ratio
    if budget < held:
        kept = budget + always
        return min(blocks(held + always, block), kept) if scattered else blocks(kept, block)
    if law.window is not None and n > law.window:
        return min(blocks(n + always, block), window_blocks(law.window + always, block))
    return blocks(held + always, block)


def paged_entries(part: Part, n: int, block: int, scattered: bool = False) -> int:
    """Entries of one layer's part with every block counted whole; state and encoder parts are not paged.

    Raises InputError when compressed entries don't fill whole blocks.
    """
    if part.role != "growing":
        return int(part.stored.count(n))
    if block % part.stored.ratio:
        fitting = -(-block // part.stored.ratio) * part.stored.ratio
        raise InputError(
            f"--block-size: found {block}, expected a multiple of the {part.stored.ratio} tokens that make one entry "
            f"of {part.name}; nearest: {fitting}"
        )
    return resident_blocks(part, n, block, scattered) * (block // part.stored.ratio)


def aligned_page(entries: int, entry_bytes: int, align: int) -> int:
    """Bytes of a page of `entries` entries rounded up to `align` (576 in DeepSeek V4's pool)."""
    return -(-entries * entry_bytes // align) * align


def padded_cells(tokens: int, multiple: int = 256) -> int:
    """llama.cpp's cells: tokens rounded up to `multiple`."""
    return -(-tokens // multiple) * multiple


def window_cells(context: int, window: int, streams: int, ubatch: int) -> int:
    """llama.cpp's cells of a window cache: min(context, window x streams + ubatch), padded to 256.

    Source: ggml-org/llama.cpp src/llama-kv-cache-iswa.cpp.
    """
    return padded_cells(min(context, window * streams + ubatch))


@record
class PaddedGroups:
    """Layers in groups of equal size: the number of groups and of padding layers, which are billed and hold nothing."""

    groups: int
    padding: int


def padded_groups(layers: int, group: int) -> PaddedGroups:
    """vLLM's grouping: `layers` layers of one kind in groups of `group` (hybrid_kv_cache_manager.md)."""
    groups = -(-layers // group)
    return PaddedGroups(groups, groups * group - layers)


@record
class Capacity:
    """What a pool holds: whole blocks, the tokens in them, and the tokens plain division promises."""

    blocks: int
    tokens: int
    tokens_by_division: int

    def concurrency(self, length: int, block: int) -> Fraction:
        """Requests of `length` tokens that fit, as an exact ratio."""
        return Fraction(self.blocks, blocks(length, block))


def capacity(pool_bytes: int, token_bytes: int, block: int) -> Capacity:
    """Blocks of `block` tokens in `pool_bytes` at `token_bytes` a token of all layers, a null block included."""
    count = pool_bytes // (block * token_bytes)
    return Capacity(count, count * block, pool_bytes // token_bytes)


@record
class Waste:
    """Slots allocated and not used: tokens, and their share of what is allocated."""

    tokens: Fraction
    share: Fraction


def expected_waste(block: int, mean_tokens: int, groups: int = 1) -> Waste:
    """Mean internal waste when lengths are spread evenly modulo the block: (block - 1) / 2 a sequence and group."""
    return _waste(groups * Fraction(block - 1, 2), mean_tokens)


def worst_waste(block: int, mean_tokens: int, groups: int = 1) -> Waste:
    """Internal waste when each last block holds one token: block - 1 a sequence and group."""
    return _waste(Fraction(groups * (block - 1)), mean_tokens)


def exact_waste(lengths: Sequence[int], block: int) -> Waste:
    """Internal waste of sequences of these lengths in one group."""
    return _waste(Fraction(sum(blocks(n, block) * block - n for n in lengths)), sum(lengths))


def reservation_waste(lengths: Sequence[int], max_len: int) -> Waste:
    """Waste of the baseline that paging replaces: each sequence reserves `max_len` contiguous tokens."""
    return _waste(Fraction(sum(max_len - n for n in lengths)), sum(lengths))


def _waste(tokens: Fraction, used: int) -> Waste:
    return Waste(tokens, tokens / (used + tokens))


def block_table_bytes(tokens: int, block: int, groups: int = 1) -> int:
    """Bytes of one sequence's block tables."""
    return groups * blocks(tokens, block) * TABLE_ENTRY_BYTES


class BlockPool:
    """Free blocks in the order they come back; a table maps each sequence to its blocks."""

    def __init__(self, count: int) -> None:
        self._free = deque(range(count))
        self.tables: dict[str, tuple[int, ...]] = {}

    def allocate(self, sequence: str, count: int) -> tuple[int, ...]:
        """Give `count` blocks to `sequence`, longest free first. Raises InputError when too few are free."""
        if count > len(self._free):
            raise InputError(f"blocks: found {len(self._free)} free, expected {count} for {sequence}")
        taken = tuple(self._free.popleft() for _ in range(count))
        self.tables[sequence] = (*self.tables.get(sequence, ()), *taken)
        return taken

    def release(self, sequence: str) -> None:
        """Take the blocks of `sequence` back."""
        self._free.extend(self.tables.pop(sequence))

    @property
    def free(self) -> tuple[int, ...]:
        """Free blocks, the next one first."""
        return tuple(self._free)
