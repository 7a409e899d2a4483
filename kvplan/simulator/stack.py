"""LRU for all capacities at once: how deep in the recency order each id lies (Mattson's stack distances)."""

from __future__ import annotations

from collections.abc import Sequence


class RecencyStack:
    """Ids ordered by last touch. An LRU cache of C ids holds exactly those of depth at most C.

    Each touch takes the next slot; a Fenwick tree counts the slots whose id has been touched again since. The slots are
    renumbered when most are dead, so memory follows the distinct ids and not the length of the trace.
    """

    def __init__(self, slots: int = 1 << 16) -> None:
        self._slot: dict[int, int] = {}
        self._size = slots
        self._dead = [0] * (slots + 1)
        self._next = 0
        self._deaths = 0

    def __len__(self) -> int:
        return len(self._slot)

    def leading_depths(self, keys: Sequence[int]) -> list[int]:
        """Depth (1 = most recent) of each id of the longest leading run of ids ever touched."""
        depths = []
        dead, slots, top, deaths = self._dead, self._slot, self._next, self._deaths
        for key in keys:
            slot = slots.get(key)
            if slot is None:
                break
            before, index = 0, slot + 1
            while index:
                before += dead[index]
                index &= index - 1
            depths.append(top - slot - deaths + before)
        return depths

    def touch(self, keys: Sequence[int]) -> None:
        """Make each id in turn the most recent one."""
        if self._next + len(keys) > self._size:
            self._renumber(len(keys))
        slots, dead, size, top = self._slot, self._dead, self._size, self._next
        for key in keys:
            slot = slots.get(key)
            if slot is not None:
                index = slot + 1
                while index <= size:
                    dead[index] += 1
                    index += index & -index
                self._deaths += 1
            slots[key] = top
            top += 1
        self._next = top

    def _renumber(self, room: int) -> None:
        alive = sorted(self._slot, key=self._slot.__getitem__)
        self._slot = {key: slot for slot, key in enumerate(alive)}
        self._size = max(self._size, 2 * (len(alive) + room))
        self._dead = [0] * (self._size + 1)
        self._next, self._deaths = len(alive), 0
