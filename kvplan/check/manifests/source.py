"""The file that is read and its surroundings: lines, the user's values, and other files of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvplan.engines.commands import Word
from kvplan.errors import InputError
from kvplan.files import YamlNode, read_text

MAX_FILE = 4 << 20
MAX_REPOSITORY_DEPTH = 40


@dataclass
class Source:
    """One file: its text, the values the user sets with `--set`, and where its repository begins.

    `read` are the other files that were looked for in the repository, present or not.
    """

    path: Path
    text: str
    variables: Mapping[str, str] = field(default_factory=dict)
    root: Path = field(default_factory=Path)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        self.overrides = {name: Word(value) for name, value in self.variables.items()}

    @property
    def name(self) -> str:
        return str(self.path)

    def repository_file(self, reference: str) -> str | None:
        """The text of a file beside this one or in its repository; None for one that isn't there or lies outside."""
        if not reference or "\0" in reference or len(reference) > 1000:
            return None
        name = Path(reference)
        candidates = [name] if name.is_absolute() else [self.path.parent / name, self.root / name]
        for candidate in candidates:
            try:
                real = candidate.resolve()
                if not real.is_relative_to(self.root):
                    continue
                self.read.add(str(real))
                if real.is_file():
                    return read_text(real, MAX_FILE)
            except (OSError, ValueError, RuntimeError, InputError):
                continue
        return None

    def locate(self, needles: tuple[str, ...], first: int, last: int) -> int:
        """The first line from `first` to `last` that holds one of `needles`; `first` where none does."""
        for needle in needles:
            if not needle:
                continue
            for number in range(max(first, 1), min(last, len(self.lines)) + 1):
                if needle in self.lines[number - 1]:
                    return number
        return first


def open_source(path: Path, variables: Mapping[str, str]) -> Source:
    """Read one file. Its repository is the nearest folder above with a `.git`, else the file's own folder."""
    text = read_text(path, MAX_FILE).replace("\r\n", "\n")
    return Source(path, text, dict(variables), repository_of(path.resolve().parent))


def repository_of(folder: Path) -> Path:
    """The nearest folder at or above `folder` with a `.git`, else `folder` itself."""
    for number, parent in enumerate((folder, *folder.parents)):
        if (parent / ".git").exists():
            return parent
        if number > MAX_REPOSITORY_DEPTH:
            break
    return folder


def script_text(node: YamlNode, lines: list[str]) -> tuple[str, int]:
    """The text of a scalar and the line of its first character, so that places inside it are right.

    A literal block keeps its lines. In a folded or quoted scalar over several lines the breaks are spaces, so they are
    given back as continuations, when that makes no difference to the text.
    """
    text = node.text
    if node.style == "|":
        return text, node.line + 1
    if node.end_line <= node.line:
        return text, node.line
    first = node.line + 1 if node.style == ">" else node.line
    rows = lines[first - 1 : max(node.end_line, first)]
    if not rows:
        return text, node.line
    if node.style != ">":
        rows = [rows[0][node.column - 1 :], *rows[1:]]
    if node.style in ("'", '"'):
        rows[0] = rows[0][1:]
        rows[-1] = rows[-1].rstrip().removesuffix(node.style)
    same = "".join(" ".join(rows).split()) == "".join(text.split())
    if not same:
        return text, first
    return " \\\n".join(row.strip() if row.strip() else " " for row in rows), first
