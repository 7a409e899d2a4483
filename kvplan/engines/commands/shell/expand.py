"""Expansion of words with the variables that a script or its carrier sets. What nothing sets stays, and is named."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvplan.engines.commands.shell.lexer import Part, ShellWord
from kvplan.engines.commands.words import Word

MAX_TEXT = 1 << 18
MAX_FIELDS = 4_000
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class Variables:
    """What is set: a name has one word, or several as an array. `positional` is None where the arguments aren't known.

    `closed` says that the environment is stated in full (a container), so that a fallback is no assumption.
    """

    values: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    overrides: dict[str, Word] = field(default_factory=dict)
    positional: tuple[Word, ...] | None = None
    closed: bool = False

    def copy(self) -> Variables:
        return Variables(
            dict(self.values), set(self.arrays), set(self.exported), self.overrides, self.positional, self.closed
        )

    def assign(self, name: str, words: Sequence[Word], array: bool = False) -> None:
        """Set a variable; one that can't be resolved takes the user's value where there is one."""
        if any(word.unknown for word in words) and name in self.overrides:
            words, array = (self.overrides[name],), False
        self.values[name] = tuple(words)
        (self.arrays.add if array else self.arrays.discard)(name)

    def get(self, name: str) -> tuple[Word, ...] | None:
        found = self.values.get(name)
        return (self.overrides[name],) if found is None and name in self.overrides else found

    def environment(self) -> dict[str, Word]:
        """What a started program inherits."""
        return {name: self.values[name][0] for name in self.exported if self.values.get(name)}


class _Fields:
    """Collects the fields that one word expands to."""

    def __init__(self, line: int) -> None:
        self.line, self.done = line, list[Word]()
        self.text, self.begun = "", False
        self.unknown: list[str] = []
        self.assumed: list[str] = []
        self.opaque = 0

    def add(self, text: str, quoted: bool = True) -> None:
        self.begun = self.begun or quoted or bool(text)
        self.text = (self.text + text)[:MAX_TEXT]

    def mark(self, word: Word) -> None:
        self.unknown += word.unknown
        self.assumed += word.assumed

    def end(self, alone: bool = False) -> None:
        if self.begun and len(self.done) < MAX_FIELDS:
            names = tuple(dict.fromkeys(self.unknown))
            self.done.append(
                Word(self.text, names, tuple(dict.fromkeys(self.assumed)), self.line, alone and bool(names))
            )
        self.text, self.begun, self.unknown, self.assumed = "", False, [], []


def expand(word: ShellWord, variables: Variables, *, split: bool = True) -> list[Word]:
    """The arguments `word` becomes: none, one, or several. With `split` off it stays one, as in an assignment."""
    fields = _Fields(word.line)
    bare = len(word.parts) == 1 and word.parts[0].kind != "text" and not word.parts[0].quoted
    for part in word.parts:
        if part.kind == "text":
            fields.add(part.text, part.quoted or bool(part.text))
            continue
        values = _values(part, variables)
        spread = part.kind == "variable" and (part.index == "@" or part.text == "@") and not part.length
        if not split or (part.quoted and not spread):
            for number, value in enumerate(values):
                fields.add((" " if number else "") + value.text)
                fields.mark(value)
        elif part.quoted:
            _spread(fields, values)
        else:
            _split(fields, values)
    if not split:
        fields.begun = True
    spread_alone = len(word.parts) <= 2 and any(part.text == "@" for part in word.parts)
    fields.end(alone=bare or spread_alone)
    return fields.done


def _spread(fields: _Fields, values: Sequence[Word]) -> None:
    if not values:
        fields.begun = bool(fields.text)
    for number, value in enumerate(values):
        if number:
            fields.end()
        fields.add(value.text)
        fields.mark(value)


def _split(fields: _Fields, values: Sequence[Word]) -> None:
    for number, value in enumerate(values):
        if number:
            fields.end()
        if value.unknown:
            fields.add(value.text)
            fields.mark(value)
            continue
        pieces = value.text.split()
        if value.text[:1].isspace():
            fields.end()
        for index, piece in enumerate(pieces):
            if index:
                fields.end()
            fields.add(piece, quoted=False)
            fields.assumed += value.assumed
        if pieces and value.text[-1:].isspace():
            fields.end()


def joined(parts: Iterable[Part], variables: Variables, line: int = 0) -> Word:
    """The parts as one word, as in a here-document."""
    words = expand(ShellWord(tuple(parts), line), variables, split=False)
    return words[0] if words else Word("", line=line)


def _values(part: Part, variables: Variables) -> tuple[Word, ...]:
    if part.kind == "arithmetic":
        number = arithmetic(part.text, variables)
        return (Word(str(number)),) if number is not None else (Word(part.source, (part.source,)),)
    if part.kind == "command":
        return (Word(part.source, (part.source,)),)
    return _variable(part, variables)


def _variable(part: Part, variables: Variables) -> tuple[Word, ...]:
    name = part.text
    unknown = (Word(part.source, (name if name not in "@*#?$!-" else part.source,)),)
    found = _lookup(part, variables)
    if part.length:
        return (Word(str(len(found) if part.index else len(found[0].text))),) if found else unknown
    symbol = part.operation
    if symbol in (":-", "-", ":=", "="):
        return _fallback(part, variables, found)
    if symbol in (":+", "+"):
        present = found is not None and (symbol == "+" or any(word.text for word in found))
        return (joined(part.argument, variables),) if present else ()
    if found is None:
        empty = variables.closed and name not in "@*#?$!-0123456789" and symbol not in (":?", "?")
        return unknown if not empty or symbol == "" else ()
    if not symbol or symbol in (":?", "?"):
        return found
    return tuple(_changed(word, symbol, part, variables) for word in found)


def _lookup(part: Part, variables: Variables) -> tuple[Word, ...] | None:
    name = part.text
    if name in ("@", "*"):
        return variables.positional
    if name == "#":
        return None if variables.positional is None else (Word(str(len(variables.positional))),)
    if name.isdecimal():
        if variables.positional is None or name == "0":
            return None
        return variables.positional[int(name) - 1 : int(name)] or (Word(""),)
    found = variables.get(name)
    if found is None or part.index in ("@", "*"):
        return found
    if part.index:
        return (
            found[int(part.index) : int(part.index) + 1] or None
            if part.index.isdecimal() and len(part.index) < 6
            else None
        )
    return found[:1] if name in variables.arrays else found


def _fallback(part: Part, variables: Variables, found: tuple[Word, ...] | None) -> tuple[Word, ...]:
    if found is not None and (part.operation in ("-", "=") or any(word.text or word.unknown for word in found)):
        return found
    value = joined(part.argument, variables)
    if not variables.closed and found is None and part.text not in "@*0123456789":
        value = Word(value.text, value.unknown, (*value.assumed, part.text), value.line)
    if part.operation in (":=", "="):
        variables.assign(part.text, (value,))
    return (value,)


def _changed(word: Word, symbol: str, part: Part, variables: Variables) -> Word:
    """The word after `%`, `#`, `/`, case changes and substrings; unresolved where the rule isn't plain text."""
    argument = joined(part.argument, variables)
    if word.unknown or argument.unknown:
        return Word(part.source, (part.text,))
    text, pattern = word.text, argument.text
    if symbol in ("%", "%%", "#", "##"):
        text = _trimmed(text, pattern, symbol)
    elif symbol in ("/", "//"):
        old, _, new = pattern.partition("/")
        text = text.replace(old, new, -1 if symbol == "//" else 1) if old else text
    elif symbol[0] in "^,":
        change = str.upper if symbol[0] == "^" else str.lower
        text = change(text) if len(symbol) == 2 else change(text[:1]) + text[1:]
    elif symbol == ":":
        match = re.fullmatch(r"\s*(\d{1,6})(?::(\d{1,6}))?", pattern)
        if match is None:
            return Word(part.source, (part.text,))
        start = int(match.group(1))
        text = text[start : start + int(match.group(2))] if match.group(2) else text[start:]
    return Word(text, (), word.assumed, word.line)


def _trimmed(text: str, pattern: str, symbol: str) -> str:
    sizes = range(len(text) + 1) if len(symbol) == 1 else range(len(text), -1, -1)
    if len(text) > 2000 or len(pattern) > 200:
        return text
    for size in sizes:
        piece = text[len(text) - size :] if symbol[0] == "%" else text[:size]
        if fnmatch.fnmatchcase(piece, pattern):
            return text[: len(text) - size] if symbol[0] == "%" else text[size:]
    return text


def arithmetic(text: str, variables: Variables) -> int | None:
    """The value of `$((text))` when it is whole numbers, known variables and + - * / %; None otherwise."""
    source = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text.strip())
    if len(source) > 200:
        return None
    try:
        tree = ast.parse(source, mode="eval")
        return _number(tree.body, variables, 0)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr, variables: Variables, depth: int) -> int:
    if depth > 40:
        raise ValueError
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _number(node.left, variables, depth + 1), _number(node.right, variables, depth + 1)
        result = _ARITHMETIC[type(node.op)](left, right)
        if abs(result) > 10**18:
            raise ValueError
        return result
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, variables, depth + 1)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        found = variables.get(node.id)
        if found and not found[0].unknown and len(found[0].text) < 20:
            return int(found[0].text)
    raise ValueError
