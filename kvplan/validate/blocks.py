"""The book-keeping of a paged pool: free blocks, reference counts, shared prefixes, one table a request. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvplan.errors import KvplanError

NULL = -1


class PoolExhausted(Exception):
    """No free block is left. What the caller had taken for the request is still its own, to be released."""


class BlockPool:
    """`count` blocks with reference counts. A block is free, or held by as many tables as it counts.

    `shared` is the number of blocks that more than one table holds now.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = deque(range(count))
        self._references = [0] * count
        self.shared = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, the one that has been free the longest. Raises PoolExhausted."""
        if not self._free:
            raise PoolExhausted
        block = self._free.popleft()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Count one more holder of a block that is held."""
        assert self._references[block] > 0, f"block {block} is free and can't be shared"
        self._references[block] += 1
        self.shared += self._references[block] == 2

    def release(self, block: int) -> bool:
        """Count one holder less; True when the block became free."""
        assert self._references[block] > 0, f"block {block} is free and can't be released"
        self._references[block] -= 1
        self.shared -= self._references[block] == 1
        if self._references[block]:
            return False
        self._free.append(block)
        return True

    def holders(self, block: int) -> int:
        return self._references[block]


@dataclass
class Table:
    """One request's blocks in one group, by position; NULL where the window has left a block behind.

    `marks` is what each block holds, so that the device can be asked whether it still does.
    """

    blocks: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    first: int = 0


class GroupTables:
    """The tables of one group over one pool.

    `window` is how many tokens stay (None: all). `write` is told each block that was taken and the mark to put there.
    """

    def __init__(
        self, count: int, block_tokens: int, window: int | None, write: Callable[[list[int], list[int]], None]
    ) -> None:
        self.pool = BlockPool(count)
        self.block_tokens = block_tokens
        self.window = window
        self.tables: dict[int, Table] = {}
        self._write = write
        self._prefixes: dict[tuple[int, int], int] = {}
        self._prefix_of: dict[int, tuple[int, int]] = {}

    def grow(
        self, request: int, tokens: int, mark: Callable[[int], int], prefix: tuple[int, int] | None = None
    ) -> None:
        """Let `request` hold `tokens` tokens, block by block as they are written.

        `mark(position)` is what the block at that position holds. With `prefix` = (name, blocks) the first blocks are
        shared with every request of that prefix. A block that the window has left is given back before the next one
        is taken. Raises PoolExhausted; the request then holds what it got.
        """
        table = self.tables.setdefault(request, Table())
        taken: list[int] = []
        try:
            while len(table.blocks) * self.block_tokens < tokens:
                position = len(table.blocks)
                self._leave(table, position * self.block_tokens)
                shared = (prefix[0], position) if prefix is not None and position < prefix[1] else None
                known = None if shared is None else self._prefixes.get(shared)
                if known is not None:
                    self.pool.share(known)
                    block = known
                else:
                    block = self.pool.take()
                    taken.append(position)
                    if shared is not None:
                        self._prefixes[shared] = block
                        self._prefix_of[block] = shared
                table.blocks.append(block)
                table.marks.append(mark(position))
        finally:
            if taken:
                # A ring may have used one block twice: the later mark is the one that counts.
                latest = {table.blocks[at]: table.marks[at] for at in taken if table.blocks[at] != NULL}
                if latest:
                    self._write(list(latest), list(latest.values()))

    def _leave(self, table: Table, position: int) -> None:
        """Release blocks that no token of the window ending at `position` lies in."""
        if self.window is None:
            return
        oldest = position - self.window + 1
        while (table.first + 1) * self.block_tokens <= oldest:
            self._drop(table, table.first)
            table.first += 1

    def _drop(self, table: Table, position: int) -> None:
        block = table.blocks[position]
        table.blocks[position] = NULL
        if block != NULL and self.pool.release(block):
            shared = self._prefix_of.pop(block, None)
            if shared is not None:
                del self._prefixes[shared]

    def free(self, request: int) -> None:
        """Give back what `request` holds, the tail first."""
        table = self.tables.pop(request)
        for position in reversed(range(len(table.blocks))):
            self._drop(table, position)

    def held(self, request: int) -> list[tuple[int, int]]:
        """(block, mark) of every block that `request` holds."""
        table = self.tables[request]
        return [(block, mark) for block, mark in zip(table.blocks, table.marks, strict=True) if block != NULL]

    @property
    def used(self) -> int:
        return self.pool.count - self.pool.free


class IntegrityError(KvplanError):
    """The book-keeping contradicts itself."""


def check_integrity(tables: GroupTables) -> None:
    """Every block is free or held, by exactly as many tables as it counts. Raises IntegrityError."""
    held: dict[int, int] = {}
    for table in tables.tables.values():
        for block in table.blocks:
            if block != NULL:
                held[block] = held.get(block, 0) + 1
    pool = tables.pool
    wrong = [block for block in range(pool.count) if pool.holders(block) != held.get(block, 0)]
    if wrong:
        raise IntegrityError(
            f"blocks: block {wrong[0]} counts {pool.holders(wrong[0])} holders, expected {held.get(wrong[0], 0)}"
        )
    if pool.free + len(held) != pool.count:
        raise IntegrityError(f"blocks: found {pool.free} free and {len(held)} held, expected {pool.count} in all")
