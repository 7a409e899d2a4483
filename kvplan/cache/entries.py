"""How many entries a layer holds after n tokens: windows, chunks, compression ratios, budgets, extra tokens."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvplan.cache.formats import least
from kvplan.record import record
from kvplan.units import tokens


@record
class EntryLaw:
    """entries(n) = min(min(n, window) // ratio, limit) + constant: non-decreasing in n by construction.

    `window` caps tokens, `ratio` tokens make one entry, `limit` caps entries (a budget or a top-k), `constant` are
    entries that are there from the start (meta tokens, encoder tokens). A law with `grows` False ignores n. With
    `started` an entry is there from its first token on (Quest's page summaries): the division rounds up.
    """

    window: int | None = None
    ratio: int = 1
    limit: int | None = None
    constant: int = 0
    grows: bool = True
    started: bool = False

    def count(self, n: Any) -> Any:
        """Entries after `n` tokens; `n` is an integer or a numpy array of integers."""
        if not self.grows:
            return self.constant
        held = n if self.window is None else least(n, self.window)
        if self.ratio != 1:
            held = (held + self.ratio - 1 if self.started else held) // self.ratio
        if self.limit is not None:
            held = least(held, self.limit)
        return held + self.constant

    def slope(self, n: int) -> Fraction:
        """Entries that one more token adds at `n` tokens, averaged over the compression ratio."""
        full = self.window is not None and n >= self.window
        if not self.grows or full or (self.limit is not None and n // self.ratio >= self.limit):
            return Fraction(0)
        return Fraction(1, self.ratio)

    def text(self, n: int) -> str:
        """count(n) as a formula with its numbers."""
        if not self.grows:
            return tokens(self.constant)
        text = tokens(n) if self.window is None else f"min({tokens(n)}, {tokens(self.window)})"
        if self.ratio != 1:
            text = f"{'ceil' if self.started else 'floor'}({text} / {self.ratio})"
        if self.limit is not None:
            text = f"min({text}, {tokens(self.limit)})"
        return f"({text} + {self.constant})" if self.constant else text
