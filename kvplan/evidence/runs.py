"""What a log tells: figures with the line each stands in, the settings, and how the start went."""

from __future__ import annotations

from typing import Any

from kvplan.record import record


@record
class Figure:
    """One printed figure. `value` is bytes, a count, a ratio or text, by `unit`; `half` is half a unit of its last
    printed digit, so that the true value lies in value +- half. `rank` and `device` as the line names them."""

    name: str
    value: int | float | str
    unit: str
    half: float
    line: int
    rank: str | None
    device: str | None
    seen: str


@record
class Event:
    """A refusal or trouble the log tells of: its kind, and the line."""

    kind: str
    line: int


@record
class LogRun:
    """One start of one engine, lines `first_line` to `last_line`. `flags` are its settings under the engine's own
    names, `flag_lines` where they stand. `cut` are lines that end in the middle of a figure, which isn't taken."""

    engine: str
    version: str | None
    figures: tuple[Figure, ...]
    flags: dict[str, Any]
    flag_lines: dict[str, int]
    refusals: tuple[Event, ...]
    troubles: tuple[Event, ...]
    first_line: int
    last_line: int
    cut: tuple[int, ...] = ()

    def all(self, name: str) -> tuple[Figure, ...]:
        """Every figure of that name, in the order of the log."""
        return tuple(figure for figure in self.figures if figure.name == name)

    def first(self, name: str) -> Figure | None:
        """The first figure of that name, None where the log has none."""
        found = self.all(name)
        return found[0] if found else None

    def last(self, name: str) -> Figure | None:
        """The last figure of that name, None where the log has none."""
        found = self.all(name)
        return found[-1] if found else None

    def number(self, name: str) -> int | None:
        """The last count or size of that name, None where the log has none."""
        figure = self.last(name)
        return int(figure.value) if figure is not None and not isinstance(figure.value, str) else None

    def least(self, name: str) -> Figure | None:
        """The smallest figure of that name: the poorest rank's."""
        found = [figure for figure in self.all(name) if not isinstance(figure.value, str)]
        return min(found, key=lambda figure: float(figure.value), default=None)

    def refused(self, kind: str | None = None) -> Event | None:
        """The first refusal, or the first of one kind."""
        return next((event for event in self.refusals if kind in (None, event.kind)), None)
