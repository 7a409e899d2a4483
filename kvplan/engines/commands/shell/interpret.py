"""Follows a script without running it: assignments in order, conditions that can be decided, commands as found."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvplan.engines.commands.shell.expand import MAX_FIELDS, Variables, expand, joined
from kvplan.engines.commands.shell.lexer import Part, ShellWord
from kvplan.engines.commands.shell.syntax import Case, Function, Group, If, Loop, Node, Simple, read_script
from kvplan.engines.commands.words import Word

MAX_COMMANDS = 20_000
MAX_CALLS = 6
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.DOTALL)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_RANGE = re.compile(r"\{(-?\d{1,4})\.\.(-?\d{1,4})\}")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b,
    "-lt": lambda a, b: a < b, "-ge": lambda a, b: a >= b, "-le": lambda a, b: a <= b,
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A command the script would run: its words, what it inherits, and how it is reached.

    `condition` says under which undecided condition, `repeats` how often a loop starts it (None: unknown).
    """

    words: tuple[Word, ...]
    line: int
    environment: dict[str, Word]
    background: bool = False
    condition: str = ""
    repeats: int | None = 1


@dataclass
class Trace:
    """Everything found: commands in order, files the script writes, files it reads settings from that are not here."""

    runs: list[Run] = field(default_factory=list)
    files: dict[str, Word] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


class Interpreter:
    """Follows one script. `read_file` gives the text of a file that is sourced, or None."""

    def __init__(self, variables: Variables, name: str, read_file: Callable[[str], str | None] | None = None) -> None:
        self.variables, self.name, self.read_file = variables, name, read_file
        self.trace = Trace()
        self.functions: dict[str, Function] = {}
        self.called: set[str] = set()
        self.conditions: list[str] = []
        self.assuming: list[str] = []
        self.repeats: int | None = 1
        self.depth = 0
        self.test: bool | None = True
        self.tested = False

    def follow(self, text: str, line: int = 1) -> Trace:
        """Follow a whole script. Raises InputError for an open quote."""
        self.block(read_script(text, line, self.name))
        for function in list(self.functions.values()):
            if function.name not in self.called:
                self._call(function, None)
        return self.trace

    def block(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if len(self.trace.runs) >= MAX_COMMANDS:
                return
            match node:
                case Simple():
                    self._in_sequence(node)
                case If():
                    self._if(node)
                case Loop():
                    self._loop(node)
                case Case():
                    self._case(node)
                case Group():
                    self._group(node)
                case Function():
                    self.functions[node.name] = node

    # --- structure -----------------------------------------------------------------------------------------------

    def _in_sequence(self, node: Simple) -> None:
        """A command after && or || depends on a test before it, or on success, which is taken for granted."""
        if not node.after or (node.after == "&&" and not self.tested):
            self.tested = False
            self._simple(node)
            return
        if not self.tested:
            self._branches([(f"a failure before line {node.line}", lambda: self._simple(node))], complete=False)
            return
        wanted = node.after == "&&"
        if self.test is None:
            self._branches([(f"the test before line {node.line}", lambda: self._simple(node))], complete=False)
        elif self.test is wanted:
            self._simple(node)

    def _if(self, node: If) -> None:
        undecided: list[tuple[str, Callable[[], None]]] = []
        for condition, body in node.branches:
            truth, names = (True, []) if condition is None else self._truth(condition)
            if truth is False:
                continue

            def taken(body: Sequence[Node] = body, names: list[str] = names) -> None:
                before = self.assuming
                self.assuming = [*before, *names]
                self.block(body)
                self.assuming = before

            if truth is True and not undecided:
                taken()
                return
            undecided.append((f"the if at line {node.line}", taken))
            if truth is True:
                break
        complete = bool(node.branches) and node.branches[-1][0] is None
        self._branches(undecided, complete)

    def _branches(self, branches: Sequence[tuple[str, Callable[[], None]]], complete: bool) -> None:
        """Follow each branch on its own; a variable that ends up with different values is unknown after them."""
        if not branches:
            return
        before = self.variables
        ends = [] if complete else [before]
        for reason, follow in branches:
            self.variables = before.copy()
            self.conditions.append(reason)
            follow()
            self.conditions.pop()
            ends.append(self.variables)
        self.variables = _merged(ends)

    def _loop(self, node: Loop) -> None:
        values = [word for item in node.words for word in self._items(item)]
        known = node.kind == "for" and bool(values) and not any(word.unknown for word in values)
        repeats = self.repeats

        def body() -> None:
            if node.variable:
                single = len(values) == 1
                value = values[0] if single else Word(f"${node.variable}", (f"{node.variable} (a loop)",))
                self.variables.assign(node.variable, (value,))
            self.block(node.body)

        self.repeats = len(values) * repeats if known and repeats is not None else None
        if known:
            before = self.variables.copy()
            body()
            if len(values) > 1:
                self.variables = _merged([before, self.variables])
        else:
            self._branches([(f"the {node.kind} at line {node.line}", body)], complete=False)
        self.repeats = repeats

    def _items(self, word: ShellWord) -> list[Word]:
        match = _RANGE.fullmatch(word.literal or "")
        if match is None:
            return expand(word, self.variables)
        first, last = int(match.group(1)), int(match.group(2))
        return [
            Word(str(number))
            for number in range(first, last + 1 if first <= last else last - 1, 1 if first <= last else -1)
        ]

    def _case(self, node: Case) -> None:
        subject = joined(node.subject.parts, self.variables) if node.subject else Word("", ("",))
        arms = [([joined(pattern.parts, self.variables) for pattern in patterns], body) for patterns, body in node.arms]
        certain = not subject.unknown and not any(pattern.unknown for patterns, _ in arms for pattern in patterns)
        if certain:
            for patterns, body in arms:
                if any(fnmatch.fnmatchcase(subject.text[:2000], pattern.text[:200]) for pattern in patterns):
                    self.block(body)
                    return
            return
        reason = f"the case at line {node.line}"
        self._branches([(reason, lambda body=body: self.block(body)) for _, body in arms], complete=False)  # type: ignore[misc]

    def _group(self, node: Group) -> None:
        before = len(self.trace.runs)
        self.block(node.body)
        if node.background:
            self.trace.runs[before:] = [replace(run, background=True) for run in self.trace.runs[before:]]

    def _call(self, function: Function, arguments: tuple[Word, ...] | None) -> None:
        if self.depth >= MAX_CALLS:
            return
        before, self.variables.positional = self.variables.positional, arguments
        self.depth += 1
        self.called.add(function.name)
        self.block(function.body)
        self.depth -= 1
        self.variables.positional = before

    # --- commands ------------------------------------------------------------------------------------------------

    def _simple(self, node: Simple) -> None:
        words = list(node.words)
        prefix: dict[str, Word] = {}
        while words and (found := _assignment(words[0])):
            name, append, parts = found
            prefix[name] = self._value(name, append, parts, words[0].line)
            words.pop(0)
        command = [word for item in words for word in expand(item, self.variables)]
        for array in node.arrays:
            items = [word for item in array.items for word in expand(item, self.variables)]
            before = (self.variables.get(array.name) or ()) if array.append else ()
            self.variables.assign(array.name, (*before, *items)[:MAX_FIELDS], array=True)
        if not command:
            for name, word in prefix.items():
                self.variables.assign(name, (word,))
            return
        if command[0].text in ("[", "[[", "test"):
            self.test, _ = self._decide(command)
            self.tested = True
            return
        if not self._builtin(node, words, command):
            self._emit(node, command, prefix)
        self.test, self.tested = True, False

    def _value(self, name: str, append: bool, parts: tuple[Part, ...], line: int) -> Word:
        word = joined(parts, self.variables, line)
        if append and (before := self.variables.get(name)):
            joined_text = before[0].text + word.text
            word = Word(joined_text, (*before[0].unknown, *word.unknown), (*before[0].assumed, *word.assumed), line)
        if self.assuming:
            word = replace(word, assumed=(*word.assumed, *self.assuming))
        return word

    def _builtin(self, node: Simple, words: list[ShellWord], command: list[Word]) -> bool:
        name = command[0].text
        if name in _DECLARES:
            self._declare(name, words[1:])
        elif name == "unset":
            for word in command[1:]:
                self.variables.values.pop(word.text, None)
        elif name == "set" and len(command) > 1 and command[1].text == "--":
            self.variables.positional = tuple(command[2:])
        elif name == "shift" and self.variables.positional:
            self.variables.positional = self.variables.positional[1:]
        elif name in ("source", ".") and len(command) > 1:
            self._source(command[1])
        elif name == "read":
            for word in command[1:]:
                if word.text.isidentifier():
                    self.variables.assign(word.text, (Word(f"${word.text}", (word.text,)),))
        elif name == "eval":
            self._nested(" ".join(word.text for word in command[1:]), command)
        elif name in ("cat", "tee", "echo", "printf") and self._writes(node, command):
            pass
        elif name in self.functions:
            self._call(self.functions[name], tuple(command[1:]))
        else:
            return name in (
                ":",
                "shift",
                "set",
                "cd",
                "trap",
                "alias",
                "true",
                "false",
                "wait",
                "sleep",
                "exit",
                "return",
            )
        return True

    def _declare(self, command: str, words: Sequence[ShellWord]) -> None:
        for word in words:
            found = _assignment(word)
            if found:
                name, append, parts = found
                self.variables.assign(name, (self._value(name, append, parts, word.line),))
            else:
                name = word.literal or ""
            if command == "export" and name.isidentifier():
                self.variables.exported.add(name)

    def _source(self, word: Word) -> None:
        if word.text.endswith("/activate") or word.text in ("activate", "/etc/profile"):
            return
        text = None if word.unknown or self.read_file is None else self.read_file(word.text)
        if text is None:
            self.trace.missing.append(word.text)
        elif self.depth < MAX_CALLS:
            self._nested(text, [word])

    def _nested(self, text: str, words: Sequence[Word]) -> None:
        if self.depth >= MAX_CALLS or any(word.unknown and word.alone for word in words):
            return
        self.depth += 1
        self.block(read_script(text, words[0].line or 1, self.name))
        self.depth -= 1

    def _writes(self, node: Simple, command: list[Word]) -> bool:
        target = joined(node.output.parts, self.variables) if node.output else None
        if target is None and command[0].text == "tee" and len(command) > 1:
            target = command[-1]
        if target is None or target.unknown:
            return False
        if node.body is not None:
            self.trace.files[target.text] = joined(node.body, self.variables, node.line)
        elif command[0].text in ("echo", "printf"):
            self.trace.files[target.text] = Word(" ".join(word.text for word in command[1:]) + "\n")
        return True

    def _emit(self, node: Simple, command: list[Word], prefix: dict[str, Word]) -> None:
        environment = {**self.variables.environment(), **prefix}
        condition = self.conditions[-1] if self.conditions else ""
        line = next((word.line for word in command if word.line), node.line)
        self.trace.runs.append(Run(tuple(command), line, environment, node.background, condition, self.repeats))

    # --- tests ---------------------------------------------------------------------------------------------------

    def _truth(self, condition: Sequence[Node]) -> tuple[bool | None, list[str]]:
        """Whether a condition holds, None where only a run would tell, and the variables taken as unset for it."""
        if len(condition) == 1 and isinstance(condition[0], Simple):
            command = [word for item in condition[0].words for word in expand(item, self.variables)]
            if command and command[0].text in ("[", "[[", "test"):
                return self._decide(command)
        self.block(condition)
        return None, []

    def _decide(self, command: Sequence[Word]) -> tuple[bool | None, list[str]]:
        words = list(command[1:])
        if words and words[-1].text in ("]", "]]"):
            words.pop()
        negate = bool(words) and words[0].text == "!"
        words = words[1:] if negate else words
        truth, names = _expression(words, self.variables)
        return (None if truth is None else truth is not negate), names


def _expression(words: Sequence[Word], variables: Variables) -> tuple[bool | None, list[str]]:
    texts: list[str] = []
    unset: list[str] = []
    for word in words:
        # A plain variable that nothing sets is empty in a test, unless the caller sets it.
        missing = [
            name for name in word.unknown if word.text in (f"${name}", f"${{{name}}}") and variables.get(name) is None
        ]
        if word.unknown and not missing:
            return None, []
        if missing and any(name in "@*#?$!0123456789" for name in missing):
            return None, []
        unset += missing
        texts.append("" if missing else word.text)
    match texts:
        case ["-z" | "-n" as sign, text]:
            return (text == "") is (sign == "-z"), unset
        case [text]:
            return text != "", unset
        case [left, "=" | "==" | "!=" as sign, right]:
            same = fnmatch.fnmatchcase(left[:2000], right[:200])
            return same is (sign != "!="), unset
        case [left, sign, right] if sign in _COMPARISONS:
            numbers = [int(text) for text in (left, right) if text.removeprefix("-").isdecimal() and len(text) < 20]
            return (_COMPARISONS[sign](*numbers) if len(numbers) == 2 else None), unset
    return None, []


def _assignment(word: ShellWord) -> tuple[str, bool, tuple[Part, ...]] | None:
    """Name, whether it appends, and the parts of the value of a word of the form NAME=value."""
    first = word.parts[0] if word.parts else None
    if first is None or first.kind != "text" or first.quoted:
        return None
    match = _ASSIGNMENT.match(first.text)
    if match is None:
        return None
    rest = first.text[match.end() :]
    head = (Part("text", rest),) if rest else ()
    return match.group(1), bool(match.group(2)), (*head, *word.parts[1:])


def _merged(ends: Sequence[Variables]) -> Variables:
    """The state after alternatives: what they agree on, and unknown for the rest."""
    first = ends[0].copy()
    for name in {name for end in ends for name in end.values}:
        found = {end.values.get(name) for end in ends}
        if len(found) > 1:
            first.arrays.discard(name)
            first.assign(name, (Word(f"${name}", (name,), alone=True),))
        first.exported |= {name for end in ends for name in end.exported}
    return first
