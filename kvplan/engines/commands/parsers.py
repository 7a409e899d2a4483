"""Command lines as each engine's own parser reads them: argparse (vLLM, SGLang, LMDeploy), click, and llama.cpp's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.engines.commands.flags import MANY, VALUELESS, Flag, Table
from kvplan.engines.commands.words import Word

Version = tuple[int, ...] | None
_NEGATIVE = re.compile(r"-(?:\d+|\d*\.\d+)")
_LEVEL = re.compile(r"-O=?(.+)")
# vLLM's -O is a level of its own since 0.12; before, it was the compilation config.
_LEVEL_FLAG_SINCE = (0, 12)


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it was given: its words, whether its negated spelling was used, and where it stands."""

    flag: Flag
    words: tuple[Word, ...]
    negated: bool
    spelling: str
    line: int


@dataclass
class Parsed:
    """What a parser made of the words: flags in order, words without a flag, and what it would refuse."""

    given: list[Given] = field(default_factory=list)
    positionals: list[Word] = field(default_factory=list)
    unknown: list[Word] = field(default_factory=list)
    opaque: list[Word] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse(table: Table, version: Version, words: Sequence[Word], *, positional: bool) -> Parsed:
    """Read `words` with the parser of `table`. `positional` says whether a word without a flag may be the model."""
    if table.style == "plain":
        return _plain(table, version, words)
    reader = _Argparse(table, version, positional)
    reader.read(_flexible(list(words)) if table.engine == "vllm" else list(words))
    return reader.parsed


def _flexible(words: list[Word]) -> list[Word]:
    """vLLM's rewriting before argparse: underscores in names become dashes, dotted keys become JSON, -O3 a level."""
    dotted: dict[str, tuple[dict[str, object], Word]] = {}
    out: list[Word] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name, equals, value = word.text.partition("=")
        if not name.startswith("--") or " " in name:
            out.append(word)
            continue
        head, dot, rest = name[2:].partition(".")
        head = head.replace("_", "-")
        if not dot:
            out.append(Word(f"--{head}{equals}{value}", word.unknown, word.assumed, word.line, word.alone))
            continue
        given = word.with_text(value)
        if not equals:
            given = words[index] if index < len(words) else Word("", line=word.line)
            index += 1
        tree, first = dotted.setdefault(head, ({}, word))
        _put(tree, rest, given)
        if given.unknown:
            dotted[head] = tree, Word(first.text, (*first.unknown, *given.unknown), line=first.line)
    for head, (tree, word) in dotted.items():
        out.append(Word(f"--{head}", line=word.line))
        out.append(Word(json.dumps(tree), word.unknown, line=word.line))
    return out


def _put(tree: dict[str, object], path: str, word: Word) -> None:
    keys = path.split(".")[:20]
    listed = keys[-1].endswith("+")
    keys[-1] = keys[-1].removesuffix("+")
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = {}
            tree[key] = below
        tree = below
    if listed:
        before = tree.get(keys[-1])
        tree[keys[-1]] = [*(before if isinstance(before, list) else []), *map(_loose, word.text.split(","))]
    else:
        tree[keys[-1]] = _loose(word.text)


def _loose(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, (int, float, bool, str)) or value is None else text


class _Argparse:
    """Python's argparse and, with exact names only, click."""

    def __init__(self, table: Table, version: Version, positional: bool) -> None:
        self.table, self.version, self.positional = table, version, positional
        self.parsed = Parsed()
        self.exact = table.style == "click"
        self._seen: dict[str, str] = {}
        self._names: dict[str, tuple[Flag, bool] | None] = {}

    def read(self, words: list[Word]) -> None:
        index = 0
        while index < len(words):
            word = words[index]
            if word.text == "--" and not self.exact:
                self.parsed.positionals += words[index + 1 :]
                return
            index = self._flag(words, index) if self._looks_like_flag(word) else self._other(word, index)

    def _looks_like_flag(self, word: Word) -> bool:
        text = word.text
        if len(text) < 2 or text[0] != "-" or _NEGATIVE.fullmatch(text):
            return False
        # argparse takes a word with a space for no flag, unless what stands before = is one.
        name = text.partition("=")[0]
        return " " not in text or self.exact or self._find(name) is not None

    def _find(self, name: str) -> tuple[Flag, bool] | None:
        if name not in self._names:
            self._names[name] = self._look_up(name)
        return self._names[name]

    def _look_up(self, name: str) -> tuple[Flag, bool] | None:
        exact = self.table.find(name, self.version)
        if exact or self.exact or not name.startswith("--"):
            return exact
        matches = self.table.begins(name, self.version)
        if len(matches) > 1:
            listed = ", ".join(flag.names[0] for flag, _ in matches[:4])
            self.parsed.refused.append((f"{name} is ambiguous: it could be {listed}", 0))
        return matches[0] if len(matches) == 1 else None

    def _flag(self, words: list[Word], index: int) -> int:
        word = words[index]
        name, equals, rest = word.text.partition("=")
        if word.alone:
            self.parsed.opaque.append(word)
            return index + 1
        level = _LEVEL.fullmatch(word.text) if self.table.engine == "vllm" else None
        if level or (word.text == "-O" and self.table.engine == "vllm"):
            return self._level(words, index, level.group(1) if level else None)
        found = self._find(name)
        if found is None:
            self.parsed.unknown.append(word)
            return index + 1 + (0 if equals else self._stray(words, index + 1))
        flag, negated = found
        if flag.kind in VALUELESS:
            if equals:
                self.parsed.refused.append((f"{name} takes no value, found {rest!r}", word.line))
            self._keep(Given(flag, (), negated, name, word.line))
            return index + 1
        return self._with_value(words, index, flag, word.with_text(rest) if equals else None, name)

    def _with_value(self, words: list[Word], index: int, flag: Flag, attached: Word | None, name: str) -> int:
        line = words[index].line
        if attached is not None:
            self._keep(Given(flag, (attached,), False, name, line))
            return index + 1
        end = index + 1
        most = len(words) if flag.kind in MANY else end + 1
        while end < min(most, len(words)) and not self._looks_like_flag(words[end]):
            end += 1
        values = tuple(words[index + 1 : end])
        if not values and flag.kind != "optional_word":
            self.parsed.refused.append((f"{name} expects a value and has none", line))
        else:
            self._keep(Given(flag, values, False, name, line))
        return end

    def _keep(self, given: Given) -> None:
        first = self._seen.get(given.flag.name)
        if first is not None:
            self.parsed.notes.append(f"{first} is given more than once: the last one counts")
        self._seen[given.flag.name] = given.spelling
        self.parsed.given.append(given)

    def _level(self, words: list[Word], index: int, attached: str | None) -> int:
        word = words[index]
        if attached is None and index + 1 < len(words):
            index += 1
            attached = words[index].text
        old = self.version is not None and self.version < _LEVEL_FLAG_SINCE
        name = "compilation_config" if old or not (attached or "").isdecimal() else "optimization_level"
        flag = self.table.flags[name]
        text = json.dumps({"level": int(attached)}) if old and attached and attached.isdecimal() else (attached or "")
        self._keep(Given(flag, (Word(text, line=word.line),), False, "-O", word.line))
        return index + 1

    def _other(self, word: Word, index: int) -> int:
        if self.positional and not self.parsed.positionals and not word.text.startswith("-"):
            self.parsed.positionals.append(word)
        elif word.alone:
            self.parsed.opaque.append(word)
        else:
            self.parsed.unknown.append(word)
        return index + 1

    def _stray(self, words: list[Word], index: int) -> int:
        """How many words after an unknown flag are its values: those that can't be the model."""
        if index >= len(words) or self._looks_like_flag(words[index]) or words[index].alone:
            return 0
        waiting = self.positional and not self.parsed.positionals and "/" in words[index].text
        return 0 if waiting else 1


def _plain(table: Table, version: Version, words: Sequence[Word]) -> Parsed:
    """llama.cpp: whole names only, a value is always the next word, the last repetition counts."""
    parsed = Parsed()
    seen: set[str] = set()
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name = word.text.replace("_", "-") if word.text.startswith("--") else word.text
        found = table.find(name, version)
        if word.alone:
            parsed.opaque.append(word)
            continue
        if found is None:
            parsed.unknown.append(word)
            if index < len(words) and not words[index].text.startswith("-"):
                index += 1
            continue
        flag, negated = found
        take = {"switch": 0, "toggle": 0, "two_words": 2}.get(flag.kind, 1)
        if flag.kind == "optional_word" and (index >= len(words) or words[index].text.startswith("-")):
            parsed.notes.append(
                f"{name} without a value was a switch in older builds: newer ones expect on, off or auto"
            )
            take = 0
        values = tuple(words[index : index + take])
        index += take
        if len(values) < take:
            parsed.refused.append((f"{name} expects a value and has none", word.line))
            continue
        if flag.name in seen:
            parsed.notes.append(f"{name} is given more than once: the last one counts")
        seen.add(flag.name)
        parsed.given.append(Given(flag, values, negated, name, word.line))
    return parsed
