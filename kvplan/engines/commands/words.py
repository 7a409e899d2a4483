"""The words of a command line, each with what could not be resolved in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Word:
    """One argument as the program would see it.

    `unknown` names what stands in `text` unresolved, as it was written. `assumed` names the variables whose fallback
    was taken because nothing sets them. `alone` marks a word that is one unquoted expansion and so may be any number
    of arguments. `line` counts from 1 in the file the word was read from, 0 where there is none.
    """

    text: str
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    line: int = 0
    alone: bool = False

    def with_text(self, text: str) -> Word:
        """The same word with another text, such as the part after `=`."""
        return Word(text, self.unknown if _holds(text) else (), self.assumed, self.line)


def _holds(text: str) -> bool:
    return "$" in text or "`" in text or "{{" in text or "%" in text


def as_words(items: Iterable[str | Word]) -> list[Word]:
    """Plain strings as words; `$(...)`, `${...}` and `$NAME` that still stand in them are unresolved."""
    return [item if isinstance(item, Word) else Word(item) for item in items]


def split_words(text: str, line: int = 0) -> list[Word]:
    """Words as a program without a shell splits them: quotes and backslashes count, nothing is expanded.

    Each word knows its line when `line`, that of the first character, is given. Raises InputError for an open quote.
    """
    words: list[Word] = []
    current: list[str] | None = None
    start, index = line, 0
    while index < len(text):
        char = text[index]
        step = 1
        if char.isspace():
            if current is not None:
                words.append(Word("".join(current), line=start))
                current = None
        elif char == "\\" and text[index + 1 : index + 2] == "\n":
            step = 2
        else:
            if current is None:
                current, start = [], line
            piece, step = _piece(text, index, line)
            current.append(piece)
        line += text.count("\n", index, index + step) if line else 0
        index += step
    if current is not None:
        words.append(Word("".join(current), line=start))
    return words


def _piece(text: str, index: int, line: int) -> tuple[str, int]:
    """One character, escape or quoted stretch of a word, and its length in `text`."""
    char = text[index]
    if char == "\\":
        return text[index + 1 : index + 2], 2
    if char not in "'\"":
        return char, 1
    piece, end = [], index + 1
    while end < len(text) and text[end] != char:
        if char == '"' and text[end] == "\\" and text[end + 1 : end + 2] in ('"', "\\", "$", "`"):
            end += 1
        piece.append(text[end])
        end += 1
    if end >= len(text):
        where = f"line {line}: " if line else ""
        raise InputError(f"{where}found a quote {char} that isn't closed, expected a closing {char}")
    return "".join(piece), end + 1 - index
