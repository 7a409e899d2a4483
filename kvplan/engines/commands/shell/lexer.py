"""Shell text as tokens: words with their quotes and expansions kept apart, operators, comments dropped.

Only what launch scripts are made of is understood (POSIX sh and the bash forms in common use); nothing is ever run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvplan.errors import InputError

MAX_SCRIPT = 1 << 20
MAX_TOKENS = 200_000
MAX_NESTING = 24

_OPERATORS = ("&&", "||", ";;", "<<-", "<<<", "<<", ">>", ">&", "<&", "&>", "|&", ";", "&", "|", "<", ">", "(", ")")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_SPECIAL = "@*#?$!-0123456789"
_BRACED = re.compile(r"(#?)([A-Za-z_]\w*|[@*#?$!0-9-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_OPERATION = re.compile(r"(:?[-=?+]|%%?|##?|/{1,2}|\^{1,2}|,{1,2}|:)(.*)", re.DOTALL)
_RUN = re.compile(r"[^\\'\"$`<>\s;&|()]+")
_QUOTED_RUN = re.compile(r"[^\\'\"$`]+")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r"}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word. `kind` is text, variable, command or arithmetic; `text` its content or the variable's name.

    `source` is how it is written. A variable may have an `operation` such as `:-` with an `argument`, and an `index`.
    """

    kind: str
    text: str
    quoted: bool = False
    source: str = ""
    operation: str = ""
    argument: tuple[Part, ...] = ()
    index: str = ""
    length: bool = False


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word of a script before expansion; `line` counts from 1."""

    parts: tuple[Part, ...]
    line: int

    @property
    def literal(self) -> str | None:
        """The word's text when nothing in it needs expansion."""
        return "".join(part.text for part in self.parts) if all(part.kind == "text" for part in self.parts) else None

    @property
    def keyword(self) -> str | None:
        """The word's text when it is bare, so that it may be a reserved word."""
        if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].quoted:
            return self.parts[0].text
        return None


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is word, operator, newline, array (`text` its name, `append` for +=) or heredoc (`text` its body)."""

    kind: str
    text: str
    line: int
    word: ShellWord | None = None
    items: tuple[ShellWord, ...] = ()
    append: bool = False
    parts: tuple[Part, ...] = field(default=())


def tokenize(text: str, line: int = 1, name: str = "script") -> list[Token]:
    """Split a script into tokens. `line` is the number of its first line.

    Raises InputError for a quote, bracket or brace that isn't closed, and for a script too large to read.
    """
    if len(text) > MAX_SCRIPT:
        raise InputError(f"{name}: found a script of {len(text):,} characters, expected at most {MAX_SCRIPT:,}")
    return _Lexer(text.replace("\r\n", "\n"), line, name).tokens()


def word_parts(
    text: str, line: int = 1, name: str = "script", quoted: bool = False, depth: int = 0
) -> tuple[Part, ...]:
    """The parts of one stretch of text such as the argument of `${X:-...}`."""
    lexer = _Lexer(text, line, name, depth)
    return tuple(lexer.until_end(quoted))


class _Lexer:
    def __init__(self, text: str, line: int, name: str, depth: int = 0) -> None:
        self.text, self.at, self.line, self.name, self.depth = text, 0, line, name, depth
        if depth > MAX_NESTING:
            raise self.error("expansions nested too deep", f"at most {MAX_NESTING} levels")
        self.out: list[Token] = []
        self.waiting: list[tuple[str, bool, bool]] = []

    def error(self, found: str, expected: str) -> InputError:
        return InputError(f"{self.name}: line {self.line}: found {found}, expected {expected}")

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    # --- tokens --------------------------------------------------------------------------------------------------

    def tokens(self) -> list[Token]:
        while self.at < len(self.text):
            if len(self.out) > MAX_TOKENS:
                raise self.error("too many words", f"at most {MAX_TOKENS:,}")
            char = self.peek()
            if char == "\n":
                self._newline()
            elif char in " \t\r":
                self.at += 1
            elif self.peek(2) == "\\\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif not self._operator() and not self._array():
                self._word()
        return self.out

    def _newline(self) -> None:
        self.out.append(Token("newline", "\n", self.line))
        self.at, self.line = self.at + 1, self.line + 1
        for delimiter, strip, plain in self.waiting:
            self._heredoc(delimiter, strip, plain)
        self.waiting = []

    def _heredoc(self, delimiter: str, strip: bool, plain: bool) -> None:
        first, lines = self.line, []
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            row = self.text[self.at : end]
            self.at, self.line = end + 1, self.line + 1
            row = row.lstrip("\t") if strip else row
            if row == delimiter:
                break
            lines.append(row)
        body = "\n".join(lines) + "\n" if lines else ""
        parts = (Part("text", body, True),) if plain else word_parts(body, first, self.name, True, self.depth + 1)
        self.out.append(Token("heredoc", body, first, parts=parts))

    def _operator(self) -> bool:
        for operator in _OPERATORS:
            if not self.text.startswith(operator, self.at):
                continue
            if operator in ("<", ">") and self.peek(2) in ("<(", ">("):
                return False
            if operator == "(" and self.peek(2) == "((":
                start = self.line
                self._bracketed(")", "((")
                self.out.append(Token("operator", "((", start))
                return True
            self.at += len(operator)
            self.out.append(Token("operator", operator, self.line))
            if operator in ("<<", "<<-"):
                self._delimiter(operator == "<<-")
            return True
        return False

    def _delimiter(self, strip: bool) -> None:
        match = re.compile(r"[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|<>()'\"]+))").match(self.text, self.at)
        if match is None:
            return
        quoted = match.group(1) is not None or match.group(2) is not None or "\\" in match.group(0)
        word = next(group for group in match.groups() if group is not None)
        self.waiting.append((word, strip, quoted))
        self.at = match.end()

    def _array(self) -> bool:
        match = _ARRAY.match(self.text, self.at)
        if match is None:
            return False
        start, self.at = self.line, match.end()
        items: list[ShellWord] = []
        while True:
            if self.at >= len(self.text):
                raise self.error(f"the array {match.group(1)} without an end", "a closing bracket")
            char = self.peek()
            if char == ")":
                self.at += 1
                break
            if char == "\n":
                self.at, self.line = self.at + 1, self.line + 1
            elif char in " \t\r":
                self.at += 1
            elif self.peek(2) == "\\\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in ";&|<>(":
                self.at += 1
            else:
                items.append(self._shell_word())
        self.out.append(Token("array", match.group(1), start, items=tuple(items), append=bool(match.group(2))))
        return True

    def _word(self) -> None:
        word = self._shell_word()
        if self.peek() in ("<", ">") and (word.keyword or "").isdecimal():
            return  # the number of a file descriptor, as in 2>&1
        self.out.append(Token("word", word.literal or "", word.line, word=word))

    # --- words ---------------------------------------------------------------------------------------------------

    def _shell_word(self) -> ShellWord:
        start, before = self.line, self.at
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\r\n;&|)":
                break
            if char in "<>" and self.peek(2) not in ("<(", ">("):
                break
            if char == "(" and not self._extended(parts):
                break
            self._piece(parts, quoted=False)
        if self.at == before:
            self.at += 1
        return ShellWord(tuple(_joined(parts)), start)

    def _extended(self, parts: list[Part]) -> bool:
        """`f(` ends a word; in `@(a|b)` and `x=$(...)`-like remains the bracket belongs to it."""
        return bool(parts) and parts[-1].kind == "text" and parts[-1].text[-1:] in "@?!+*" and not parts[-1].quoted

    def until_end(self, quoted: bool) -> list[Part]:
        parts: list[Part] = []
        while self.at < len(self.text):
            self._piece(parts, quoted)
        return _joined(parts)

    def _piece(self, parts: list[Part], quoted: bool) -> None:
        """Read one character or one construct."""
        char = self.peek()
        if char == "\\":
            self._escape(parts, quoted)
        elif char == "'" and not quoted:
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise self.error("a single quote that isn't closed", "a closing '")
            self._text(parts, self.text[self.at + 1 : end], True)
            self.at = end + 1
        elif char == '"' and not quoted:
            self._double(parts)
        elif char == "$":
            self._dollar(parts, quoted)
        elif char == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise self.error("a backquote that isn't closed", "a closing `")
            source = self.text[self.at : end + 1]
            parts.append(Part("command", source[1:-1], quoted, source))
            self.line += source.count("\n")
            self.at = end + 1
        elif self.peek(2) in ("<(", ">(") and not quoted:
            self.at += 1
            source = self._bracketed(")", "(")
            parts.append(Part("command", source, True, source))
        else:
            run = (_QUOTED_RUN if quoted else _RUN).match(self.text, self.at)
            text = run.group(0) if run else char
            self._text(parts, text, quoted)
            self.at += len(text)

    def _text(self, parts: list[Part], text: str, quoted: bool) -> None:
        self.line += text.count("\n")
        parts.append(Part("text", text, quoted))

    def _escape(self, parts: list[Part], quoted: bool) -> None:
        pair = self.peek(2)
        self.at += 2
        if pair == "\\\n":
            self.line += 1
        elif quoted and pair[1:] not in ('"', "\\", "$", "`"):
            self._text(parts, pair, True)
        else:
            self._text(parts, pair[1:], True)

    def _double(self, parts: list[Part]) -> None:
        opened = self.line
        self.at += 1
        parts.append(Part("text", "", True))
        while self.peek() != '"':
            if self.at >= len(self.text):
                self.line = opened
                raise self.error("a double quote that isn't closed", 'a closing "')
            if self.peek() == "'":
                self._text(parts, "'", True)
                self.at += 1
            else:
                self._piece(parts, True)
        self.at += 1

    def _dollar(self, parts: list[Part], quoted: bool) -> None:
        if self.peek(3) == "$((":
            self.at += 1
            source = self._bracketed(")", "((")
            parts.append(Part("arithmetic", source[2:-2], quoted, f"${source}"))
        elif self.peek(2) == "$(":
            self.at += 1
            source = self._bracketed(")", "(")
            parts.append(Part("command", source[1:-1], quoted, f"${source}"))
        elif self.peek(2) == "${":
            self.at += 1
            source = self._bracketed("}", "{", '"`' if quoted else "'\"`")
            parts.append(self._braced(source, quoted))
        elif self.peek(2) == "$'" and not quoted:
            self.at += 2
            self._ansi(parts)
        else:
            match = _NAME.match(self.text, self.at + 1)
            name = match.group(0) if match else self.peek(2)[1:]
            if match or (name and name in _SPECIAL):
                parts.append(Part("variable", name, quoted, f"${name}"))
                self.at += 1 + len(name)
            else:
                self._text(parts, "$", quoted)
                self.at += 1

    def _braced(self, source: str, quoted: bool) -> Part:
        match = _BRACED.fullmatch(source[1:-1])
        if match is None:
            return Part("command", source, quoted, f"${source}")
        length, name, index, rest = match.groups()
        operation = _OPERATION.fullmatch(rest) if rest else None
        if rest and operation is None:
            return Part("command", source, quoted, f"${source}")
        argument: tuple[Part, ...] = ()
        if operation:
            argument = word_parts(operation.group(2), self.line, self.name, quoted, self.depth + 1)
        symbol = operation.group(1) if operation else ""
        return Part("variable", name, quoted, f"${source}", symbol, argument, index or "", bool(length))

    def _ansi(self, parts: list[Part]) -> None:
        text = ""
        while self.peek() != "'":
            if self.at >= len(self.text):
                raise self.error("a single quote that isn't closed", "a closing '")
            if self.peek() == "\\":
                text += _ESCAPES.get(self.peek(2)[1:], self.peek(2))
                self.at += 2
            else:
                text += self.peek()
                self.at += 1
        self.at += 1
        self._text(parts, text, True)

    def _bracketed(self, close: str, opened: str, quotes: str = "'\"`") -> str:
        """The text from here to the bracket that closes it, `quotes` respected."""
        start, first = self.at, self.line
        opening = opened[0]
        depth, self.at = len(opened), self.at + len(opened)
        while depth:
            if self.at >= len(self.text):
                self.line = first
                raise self.error(f"{opened!r} that isn't closed", f"a closing {close * len(opened)}")
            char = self.peek()
            if char == "\\":
                self.line += self.peek(2).count("\n")
                self.at += 2
                continue
            if char in quotes:
                self._skip_quoted(char)
                continue
            depth += (char == opening) - (char == close)
            self.line += char == "\n"
            self.at += 1
        return self.text[start : self.at]

    def _skip_quoted(self, quote: str) -> None:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != quote:
            end += 2 if self.text[end] == "\\" and quote != "'" else 1
        if end >= len(self.text):
            raise self.error(f"the quote {quote} that isn't closed", f"a closing {quote}")
        self.line += self.text.count("\n", self.at, end)
        self.at = end + 1


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbouring pieces of text as one, kept apart where one is quoted and the other is not."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if part.kind == "text" and last is not None and last.kind == "text" and last.quoted == part.quoted:
            out[-1] = Part("text", last.text + part.text, part.quoted)
        else:
            out.append(part)
    return out
