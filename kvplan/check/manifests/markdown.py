"""Markdown: the commands in fenced blocks. Prose, output, requests and Python calls start nothing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import Carrier, read_shell
from kvplan.check.manifests.source import Source
from kvplan.errors import InputError

_FENCE = re.compile(r"^( {0,3}|\s*(?:[-*+]|\d+\.)?\s+)(`{3,}|~{3,})\s*([\w+.-]*)")
_PROMPT = re.compile(r"^\s*(?:[\w.-]+@[\w.-]+(?::[^$#]*)?\s*[$#]|[$%]|\([\w.-]+\)\s*[$#])\s+")
_CONTINUED = re.compile(r"^\s*>\s?")
_SHELLS = frozenset({
    "", "bash", "sh", "shell", "zsh", "console", "terminal", "shell-session", "sh-session", "bash-session",
    "shellsession", "text", "fish", "ksh", "cmd", "commandline", "command",
})  # fmt: skip
_PYTHON_CALL = re.compile(r"\b(LLM|AsyncLLM|AsyncEngineArgs|EngineArgs|Engine)\s*\([^)]*?model\w*\s*=\s*[\"']([^\"']+)")


@dataclass(frozen=True)
class Fence:
    """One fenced block: its language, its text, and the line of its first row."""

    language: str
    rows: tuple[str, ...]
    line: int


def fences(lines: list[str]) -> Iterator[Fence]:
    """The fenced blocks of a Markdown text."""
    index = 0
    while index < len(lines):
        match = _FENCE.match(lines[index])
        index += 1
        if match is None:
            continue
        indent, mark, language = len(match.group(1)), match.group(2), match.group(3).lower()
        start, rows = index, []
        while index < len(lines) and not re.match(rf"^\s*{re.escape(mark[0])}{{{len(mark)},}}\s*$", lines[index]):
            row = lines[index]
            rows.append(row[indent:] if row[:indent].isspace() else row)
            index += 1
        index += 1
        yield Fence(language, tuple(rows), start + 1)


def commands_only(rows: tuple[str, ...]) -> list[str]:
    """The rows with prompts taken off; where there are prompts, printed output becomes empty rows."""
    if not any(_PROMPT.match(row) for row in rows):
        return list(rows)
    out: list[str] = []
    going = False
    for row in rows:
        if _PROMPT.match(row):
            text = _PROMPT.sub("", row)
        elif going:
            text = _CONTINUED.sub("", row)
        else:
            text = ""
        out.append(text)
        going = text.rstrip().endswith("\\")
    return out


def _read_rows(source: Source, rows: list[str], line: int, carrier: Carrier) -> Result:
    """The commands of a block; when the whole is no script, as with printed output, each command by itself."""
    try:
        return read_shell(source, "\n".join(rows), line, carrier)
    except InputError:
        result = Result()
        start = 0
        for index, row in enumerate(rows):
            if row.rstrip().endswith("\\"):
                continue
            with contextlib.suppress(InputError):
                result.add(read_shell(source, "\n".join(rows[start : index + 1]), line + start, carrier))
            start = index + 1
        return result


def read_markdown(source: Source) -> Result:
    """Every engine that the fenced commands start, each block on its own."""
    from kvplan.check.manifests.yaml_files import read_yaml_text

    result = Result()
    for fence in fences(source.lines):
        name = f"{fence.language or 'plain'} fence"
        try:
            if fence.language in _SHELLS:
                rows = commands_only(fence.rows)
                result.add(_read_rows(source, rows, fence.line, Carrier(place=f"{name} at line {fence.line}")))
            elif fence.language in ("yaml", "yml"):
                result.add(read_yaml_text(source, "\n".join(fence.rows), fence.line - 1))
            elif fence.language in ("python", "py"):
                result.hints += [
                    f"line {fence.line}: a Python call starts {match.group(2)}"
                    for match in _PYTHON_CALL.finditer("\n".join(fence.rows)[:100_000])
                ]
        except InputError as error:
            # A snippet need not be complete: what can't be read is said, the others are still read.
            result.notes.append(f"what the {name} at line {fence.line} holds: {error}")
    return result
