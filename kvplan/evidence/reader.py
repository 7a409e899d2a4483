"""Start-up logs of any engine, read line by line into runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import IO, Any

from kvplan.evidence.flags import read_flags
from kvplan.evidence.patterns import LinePattern, catalog
from kvplan.evidence.runs import Event, Figure, LogRun
from kvplan.evidence.scan import Scanner, opened
from kvplan.units import GIB, KIB, MIB

MOST_FIGURES = 256
MOST_EVENTS = 64
MOST_RUNS = 1000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_SIZES = {"gib": GIB, "mib": MIB, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_JSON_KEYS = ("log", "message", "msg", "text", "event", "body")
_FAMILY = {"llama.cpp", "ollama", "ik_llama.cpp"}


@dataclass
class _Draft:
    """A run in the making."""

    engine: str
    first_line: int
    last_line: int
    version: str | None = None
    figures: list[Figure] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    flag_lines: dict[str, int] = field(default_factory=dict)
    refusals: list[Event] = field(default_factory=list)
    troubles: list[Event] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, Figure] = field(default_factory=dict)
    started: set[tuple[str, str | None]] = field(default_factory=set)
    result: bool = False

    def add(self, figure: Figure) -> None:
        count = self.counts.get(figure.name, 0)
        self.counts[figure.name] = count + 1
        if count < MOST_FIGURES:
            self.figures.append(figure)
        else:
            self.beyond[figure.name] = figure  # of a counter the last value is the one that counts

    def set_flag(self, name: str, value: Any, line: int) -> None:
        self.flags[name] = value
        self.flag_lines[name] = line

    def done(self) -> LogRun:
        return LogRun(
            self.engine, self.version, (*self.figures, *self.beyond.values()), self.flags, self.flag_lines,
            tuple(self.refusals), tuple(self.troubles), self.first_line, self.last_line, tuple(self.cut),
        )  # fmt: skip


def read_log(stream: IO[bytes]) -> tuple[LogRun, ...]:
    """Every start of an engine that the log tells of, oldest first; () where it tells of none.

    Reads bytes of any size, gzip or not, in constant memory. No figure is made up: one that is cut off is left out.
    A stream that fails on the way is read up to there, and its last line told as cut. Raises InputError when it can't
    be read at all.
    """
    formats = catalog()
    scanner = Scanner(opened(stream), formats.anchors, formats.watched)
    reader = _Reader(scanner)
    for number, line, ended in scanner:
        reader.take(number, plain(line), ended)
    if scanner.broken and reader.drafts:
        reader.drafts[-1].cut.append(scanner.lines)
    return tuple(draft.done() for draft in reader.drafts if draft.figures or draft.refusals or draft.flags)


def read_lines(lines: Iterable[str]) -> tuple[LogRun, ...]:
    """`read_log` of text already at hand."""
    import io

    return read_log(io.BytesIO("\n".join([*lines, ""]).encode()))


def plain(line: bytes) -> str:
    """A line as text: no colours, and the message alone where the line is a JSON record, be it one within another."""
    text = line.decode("utf-8", errors="replace")
    for _ in range(3):
        inner = _unwrapped(text)
        if inner is None:
            break
        text = inner
    return _ANSI.sub("", text) if "\x1b" in text else text


def _unwrapped(text: str) -> str | None:
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin or '"' not in text[begin : begin + 80] or text[end + 1 :].strip():
        return None
    try:
        data = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    return next((data[key] for key in _JSON_KEYS if isinstance(data.get(key), str)), None)


class _Reader:
    """Puts lines into runs."""

    def __init__(self, scanner: Scanner) -> None:
        self.drafts: list[_Draft] = []
        self._scanner = scanner
        self._formats = catalog()

    def take(self, number: int, text: str, ended: bool) -> None:
        for pattern in self._formats.of_line(text):
            matches = [] if pattern.match is None else list(pattern.match.finditer(text))
            if pattern.match is not None and not matches and not (pattern.refusal or pattern.flags):
                continue
            rank = self._rank(pattern.engine, text)
            draft = self._draft(pattern, rank, number)
            if draft is None:
                continue
            draft.last_line = number
            self._note(draft, pattern, number)
            for match in matches:
                if not ended and match.end() == len(text) and (text[-1].isdigit() or _has_text(match)):
                    draft.cut.append(number)
                    continue
                self._figures(draft, pattern, match, number, rank)
            if pattern.flags:
                for name, value in read_flags(draft.engine, text).items():
                    draft.set_flag(name, value, number)

    def _rank(self, engine: str, text: str) -> str | None:
        for pattern in self._formats.ranks.get(engine, ()):
            if (match := pattern.search(text, 0, 300)) is not None:
                return match.group("rank").lstrip("_")
        return None

    def _draft(self, pattern: LinePattern, rank: str | None, number: int) -> _Draft | None:
        """The run the line belongs to, a new one when it tells of a start; None for another engine's trouble."""
        current = self.drafts[-1] if self.drafts else None
        same = current is not None and (current.engine == pattern.engine or {current.engine, pattern.engine} <= _FAMILY)
        if not same and pattern.trouble:  # several engines print alike: the current one's own format reads it
            return None
        fresh = not same
        if current is not None and same and pattern.starts:
            again = (pattern.starts, rank) in current.started
            fresh = again and (current.result or pattern.starts == "server")
        if fresh and len(self.drafts) < MOST_RUNS:
            draft = _Draft(pattern.engine, number, number)
            if same and current is not None and pattern.starts == "engine":
                draft.engine, draft.version = current.engine, current.version
            self.drafts.append(draft)
            current = draft
        if current is not None:
            if pattern.engine in ("ollama", "ik_llama.cpp"):
                current.engine = pattern.engine
            if pattern.starts:
                current.started.add((pattern.starts, rank))
            self._scanner.engine = current.engine
            if not pattern.trouble:
                self._scanner.wake(start=pattern.starts is not None)
        return current

    @staticmethod
    def _note(draft: _Draft, pattern: LinePattern, number: int) -> None:
        draft.result = draft.result or pattern.result
        if pattern.refusal and len(draft.refusals) < MOST_EVENTS:
            draft.refusals.append(Event(pattern.refusal, number))
        if pattern.trouble and len(draft.troubles) < MOST_EVENTS:
            draft.troubles.append(Event(pattern.trouble, number))

    def _figures(
        self, draft: _Draft, pattern: LinePattern, match: re.Match[str], number: int, rank: str | None
    ) -> None:
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        device = groups.pop("device__text", None)
        index = groups.pop("device__index", None)
        for group, text in groups.items():
            name, _, unit = group.partition("__")
            value, half = _value(text, unit, pattern.decimals)
            if value is None:
                continue
            if unit == "flag":
                draft.set_flag(name, value, number)
            elif name == "version":
                draft.version = str(value)
            draft.add(Figure(name, value, _UNITS.get(unit, unit), half, number, rank, device or index, pattern.seen))


def _has_text(match: re.Match[str]) -> bool:
    return any(name.endswith("__text") and text for name, text in match.groupdict().items())


_UNITS = {"gib": "bytes", "mib": "bytes", "size": "bytes", "flag": "setting"}


def _value(text: str, unit: str, decimals: int) -> tuple[int | float | str | None, float]:
    """A printed figure and half a unit of its last digit; (None, 0) for what is no figure after all."""
    if unit == "text":
        return text.strip(), 0
    if unit == "size":
        number, _, suffix = text.partition(" ")
        return _bytes(number, _SIZES[suffix], decimals)
    if unit in _SIZES:
        return _bytes(text, _SIZES[unit], decimals)
    if unit == "flag" and not re.fullmatch(r"[0-9,]{1,24}", text):
        word = text.strip()
        try:
            return float(word), 0
        except ValueError:
            return {"true": True, "false": False}.get(word, word), 0
    if unit == "ratio":
        exact = _fraction(text)
        digits = len(text.partition(".")[2])
        return (None, 0) if exact is None else (float(exact), 0.5 / 10**digits)
    digits_only = text.replace(",", "")
    if not re.fullmatch(r"-?[0-9]{1,18}", digits_only):
        return None, 0
    return int(digits_only), 0


def _fraction(text: str) -> Fraction | None:
    return Fraction(text) if re.fullmatch(r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?", text) else None


def _bytes(text: str, scale: int, decimals: int) -> tuple[int | None, float]:
    exact = _fraction(text)
    if exact is None:
        return None, 0
    digits = max(decimals, len(text.partition(".")[2]))
    return round(exact * scale), scale / 2 / 10**digits
