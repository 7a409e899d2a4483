"""The structure of a script: simple commands, and the ifs, loops, cases and functions around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kvplan.engines.commands.shell.lexer import MAX_NESTING, Part, ShellWord, Token, tokenize
from kvplan.errors import InputError

Node: TypeAlias = "Simple | If | Loop | Case | Function | Group"
_CLOSERS = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}"})
_REDIRECTS = frozenset({"<", ">", ">>", ">&", "<&", "&>", "<<<"})
_SEPARATORS = frozenset({";", "&", "|", "|&", "&&", "||"})


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=(...)` or `NAME+=(...)`."""

    name: str
    items: tuple[ShellWord, ...]
    append: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """Words up to a separator. `output` is where its output goes, `body` a here-document, `background` a closing `&`.

    `piped` says that it reads another command's output, `after` which of `&&` and `||` stands before it.
    """

    words: tuple[ShellWord, ...]
    arrays: tuple[Array, ...]
    line: int
    output: ShellWord | None = None
    body: tuple[Part, ...] | None = None
    background: bool = False
    piped: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """Branches in order, each with its condition (None: else)."""

    branches: tuple[tuple[tuple[Node, ...] | None, tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """for (with a variable and words), while or until."""

    kind: str
    variable: str
    words: tuple[ShellWord, ...]
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """`case WORD in` and its arms, each with its patterns."""

    subject: ShellWord | None
    arms: tuple[tuple[tuple[ShellWord, ...], tuple[Node, ...]], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is defined here."""

    name: str
    body: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces or a subshell."""

    body: tuple[Node, ...]
    line: int
    background: bool = field(default=False)


def read_script(text: str, line: int = 1, name: str = "script") -> tuple[Node, ...]:
    """The structure of `text`, tolerant of what isn't understood.

    Raises InputError for an open quote or bracket, and for nesting too deep.
    """
    parser = _Parser(tokenize(text, line, name), name)
    nodes: list[Node] = []
    while parser.more():
        nodes += parser.block(frozenset())
        if parser.more():
            parser.at += 1
    return tuple(nodes)


class _Parser:
    def __init__(self, tokens: Sequence[Token], name: str) -> None:
        self.tokens, self.at, self.name, self.depth = tokens, 0, name, 0

    def more(self) -> bool:
        return self.at < len(self.tokens)

    def token(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def keyword(self) -> str | None:
        token = self.token()
        return token.word.keyword if token is not None and token.word is not None else None

    def block(self, stops: frozenset[str]) -> list[Node]:
        """Commands up to one of the reserved words `stops`, or an operator that closes."""
        if self.depth > MAX_NESTING:
            token = self.token()
            where = f"line {token.line}" if token else "its end"
            raise InputError(
                f"{self.name}: {where}: found blocks nested deeper than {MAX_NESTING}, expected a flatter script"
            )
        self.depth += 1
        nodes: list[Node] = []
        while (token := self.token()) is not None:
            word = self.keyword()
            if word in stops or (word in _CLOSERS and stops):
                break
            if token.kind == "operator" and token.text in (")", ";;"):
                break
            if token.kind in ("newline", "heredoc") or (token.kind == "operator" and token.text in _SEPARATORS):
                self.at += 1
            else:
                nodes += self.command()
        self.depth -= 1
        return nodes

    def command(self) -> list[Node]:
        """One command, simple or compound. Always moves on."""
        before = self.at
        token = self.tokens[self.at]
        word = self.keyword()
        found: Node | None = None
        if word == "if":
            found = self._if(token.line)
        elif word in ("for", "select", "while", "until"):
            found = self._loop(word, token.line)
        elif word == "case":
            found = self._case(token.line)
        elif word == "function" or self._defines():
            found = self._function(token.line)
        elif word == "{" or (token.kind == "operator" and token.text == "("):
            found = self._group(token.line)
        elif token.kind in ("word", "array") or (token.kind == "operator" and token.text in _REDIRECTS):
            found = self._simple()
        if self.at == before:
            self.at += 1
        return [found] if found is not None else []

    def _skip(self, *words: str) -> bool:
        while (token := self.token()) is not None and (token.kind == "newline" or token.text == ";"):
            self.at += 1
        if self.keyword() in words:
            self.at += 1
            return True
        return False

    def _if(self, line: int) -> If:
        branches: list[tuple[tuple[Node, ...] | None, tuple[Node, ...]]] = []
        self.at += 1
        while True:
            condition = tuple(self.block(frozenset({"then", "fi"})))
            self._skip("then")
            body = tuple(self.block(frozenset({"elif", "else", "fi"})))
            branches.append((condition, body))
            word = self.keyword()
            self.at += word is not None and word in ("elif", "else", "fi")
            if word == "else":
                branches.append((None, tuple(self.block(frozenset({"fi"})))))
                self._skip("fi")
            if word != "elif":
                return If(tuple(branches), line)

    def _loop(self, kind: str, line: int) -> Loop:
        self.at += 1
        variable, words = "", []
        if kind in ("for", "select"):
            variable = self.keyword() or ""
            self.at += 1
            if self._skip("in"):
                while (token := self.token()) is not None and token.kind == "word":
                    if token.word is not None:
                        words.append(token.word)
                    self.at += 1
        else:
            self.block(frozenset({"do"}))
        self._skip("do")
        body = tuple(self.block(frozenset({"done"})))
        self._skip("done")
        return Loop(kind, variable, tuple(words), body, line)

    def _case(self, line: int) -> Case:
        self.at += 1
        token = self.token()
        subject = token.word if token is not None else None
        self.at += 1
        self._skip("in")
        arms = []
        while (token := self.token()) is not None:
            if self.keyword() == "esac":
                self.at += 1
                break
            if token.kind == "newline" or token.text in (";;", "(", ";", "|"):
                self.at += 1
                continue
            patterns = []
            while (token := self.token()) is not None and token.text != ")" and token.kind != "newline":
                if token.word is not None:
                    patterns.append(token.word)
                self.at += 1
            self.at += 1
            arms.append((tuple(patterns), tuple(self.block(frozenset({"esac"})))))
        return Case(subject, tuple(arms), line)

    def _defines(self) -> bool:
        after = self.tokens[self.at + 1 : self.at + 3]
        return self.keyword() is not None and [token.text for token in after] == ["(", ")"]

    def _function(self, line: int) -> Function | None:
        if self.keyword() == "function":
            self.at += 1
        name = self.keyword() or ""
        self.at += 1
        while (token := self.token()) is not None and (token.kind == "newline" or token.text in ("(", ")")):
            self.at += 1
        if self.keyword() != "{":
            return None
        group = self._group(line)
        return Function(name, group.body, line)

    def _group(self, line: int) -> Group:
        brace = self.keyword() == "{"
        self.at += 1
        body = tuple(self.block(frozenset({"}"}) if brace else frozenset()))
        if self.more():
            self.at += 1
        token = self.token()
        return Group(body, line, token is not None and token.text == "&")

    def _simple(self) -> Simple:
        words: list[ShellWord] = []
        arrays: list[Array] = []
        output: ShellWord | None = None
        opened = False
        line = self.tokens[self.at].line
        before = self.tokens[self.at - 1].text if self.at else ""
        while (token := self.token()) is not None:
            if token.kind == "array":
                arrays.append(Array(token.text, token.items, token.append))
            elif token.kind == "word" and token.word is not None:
                words.append(token.word)
            elif token.kind == "operator" and token.text in _REDIRECTS:
                output = self._redirect(token.text) or output
                continue
            elif token.kind == "operator" and token.text in ("<<", "<<-", "(("):
                opened = opened or token.text != "(("
            else:
                break
            self.at += 1
        token = self.token()
        return Simple(
            tuple(words),
            tuple(arrays),
            line,
            output,
            self._body() if opened else None,
            token is not None and token.text == "&",
            before in ("|", "|&"),
            before if before in ("&&", "||") else "",
        )

    def _redirect(self, operator: str) -> ShellWord | None:
        self.at += 1
        token = self.token()
        if token is None or token.word is None:
            return None
        self.at += 1
        return token.word if operator in (">", ">>") else None

    def _body(self) -> tuple[Part, ...] | None:
        """The here-document after the end of the line."""
        for token in self.tokens[self.at : self.at + 40]:
            if token.kind == "heredoc":
                return token.parts
            if token.kind == "word":
                break
        return None
