"""The flags an engine's command line takes, as data: one table an engine, with the releases that have each flag.

Kinds of value: `int`, `float`, `word`; `tokens` and `tokens_or_auto` (vLLM's whole numbers with k, K and the like);
`int_or_word`; `json`, `json_or_word`; `ints`, `floats`, `words` (as many as follow); `two_words`; `boolean` (of a
variable); `optional_word` (the bare flag means yes); `switch` (no value) and `toggle` (no value, --no-NAME is its
opposite).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvplan.errors import InputError, did_you_mean, show

KINDS = frozenset({
    "int", "float", "word", "tokens", "tokens_or_auto", "int_or_word", "json", "json_or_word", "ints", "floats",
    "words", "two_words", "boolean", "optional_word", "switch", "toggle",
})  # fmt: skip
VALUELESS = frozenset({"switch", "toggle"})
MANY = frozenset({"ints", "floats", "words"})
ENGINES = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", "lmdeploy", "ollama")
_COLUMNS = frozenset({"names", "negated", "env", "kind", "capacity", "after", "until"})
_NUMBERS = re.compile(r"[bv]?([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})")


def version_number(text: str | None) -> tuple[int, ...] | None:
    """`v0.24.0`, `b11549` or `1.2.0rc4` as numbers; None for text that holds no version."""
    match = _NUMBERS.match(text.strip()) if text and len(text) <= 60 else None
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag under the engine's own long name in snake_case.

    `names` are all its spellings with their dashes, `negated` those that switch it off, `env` the variable that sets
    it. `after` is the newest release read that lacks it at the start of its life, `until` the oldest at the end.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    negated: tuple[str, ...] = ()
    env: str | None = None
    capacity: bool = False
    after: tuple[int, ...] | None = None
    until: tuple[int, ...] | None = None
    until_text: str | None = None

    def alive(self, version: tuple[int, ...] | None) -> bool:
        """Whether the flag may exist in `version` (None: unknown, so it may)."""
        if version is None:
            return True
        return (self.after is None or version > self.after) and (self.until is None or version < self.until)


@dataclass(frozen=True)
class Table:
    """One engine's command line. `style` is how its parser works, `options` which keys of an options file count."""

    engine: str
    style: Literal["argparse", "click", "plain", "environment"]
    newest: str
    flags: Mapping[str, Flag]
    options: Mapping[str, bool] = field(default_factory=dict)
    spellings: Mapping[str, tuple[tuple[Flag, bool], ...]] = field(default_factory=dict)

    def find(self, spelling: str, version: tuple[int, ...] | None) -> tuple[Flag, bool] | None:
        """The flag with exactly that spelling in `version`, and whether the spelling is the negated one."""
        found = [pair for pair in self.spellings.get(spelling, ()) if pair[0].alive(version)]
        return found[0] if found else None

    def begins(self, beginning: str, version: tuple[int, ...] | None) -> list[tuple[Flag, bool]]:
        """Every flag with a long spelling that begins so, each once: more than one means the beginning is ambiguous.

        Without a version the newest release decides, and then any.
        """
        number = version or version_number(self.newest)
        found: dict[tuple[str, bool], tuple[Flag, bool]] = {}
        for spelling, pairs in self.spellings.items():
            if spelling.startswith("--") and spelling.startswith(beginning):
                for flag, negated in pairs:
                    if flag.alive(number):
                        found[flag.name, negated] = flag, negated
        return list(found.values())

    def removed(self, spelling: str, version: tuple[int, ...] | None) -> Flag | None:
        """The flag that had that spelling in a release before `version`."""
        for flag, _ in self.spellings.get(spelling, ()):
            if version is not None and flag.until is not None and version >= flag.until:
                return flag
        return None

    def nearest(self, spelling: str, version: tuple[int, ...] | None) -> str | None:
        """The long spelling in `version` that `spelling` most likely meant, None when nothing is close."""
        import difflib

        alive = [name for name, pairs in self.spellings.items() if any(flag.alive(version) for flag, _ in pairs)]
        close = difflib.get_close_matches(spelling, [name for name in alive if name.startswith("--")], 1, 0.75)
        return close[0] if close else None


def _file(engine: str) -> Path:
    return Path(__file__).with_name(engine.replace(".", "_").replace("-", "_") + ".yaml")


def _yaml(path: Path) -> Any:
    import yaml

    # The tables ship with kvplan and validate() holds them in the tests, so the strict reader is saved here.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 (a SafeLoader either way)


@cache
def load_table(engine: str) -> Table:
    """The command line of one engine of ENGINES. Raises InputError for another name."""
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES)
        raise InputError(f"--engine: found {show(engine)}, expected one of {', '.join(ENGINES)}{hint}")
    return _table(_yaml(_file(engine)))


def _table(data: Mapping[str, Any]) -> Table:
    style = data["style"]
    flags = {name: _flag(name, row, style) for name, row in data["flags"].items()}
    spellings: dict[str, list[tuple[Flag, bool]]] = {}
    for flag in flags.values():
        for spelling in flag.names:
            # The flag that is called so comes before one that has it as another spelling.
            place = 0 if spelling == flag.names[0] else len(spellings.get(spelling, []))
            spellings.setdefault(spelling, []).insert(place, (flag, False))
        for spelling in flag.negated:
            spellings.setdefault(spelling, []).append((flag, True))
    frozen = {spelling: tuple(pairs) for spelling, pairs in spellings.items()}
    return Table(data["engine"], style, str(data["newest"]), flags, data.get("options", {}), frozen)


def _flag(name: str, row: Mapping[str, Any], style: str) -> Flag:
    own = f"--{name}" if style == "click" else f"--{name.replace('_', '-')}"
    negated = [str(word) for word in row.get("negated", ())]
    if row["kind"] == "toggle":
        negated.insert(0, f"--no-{name.replace('_', '-')}")
    until = row.get("until")
    return Flag(
        name=name,
        kind=row["kind"],
        names=() if style == "environment" else (own, *map(str, row.get("names", ()))),
        negated=tuple(negated),
        env=row.get("env"),
        capacity=bool(row.get("capacity", False)),
        after=version_number(str(row["after"])) if "after" in row else None,
        until=version_number(str(until)) if until is not None else None,
        until_text=None if until is None else str(until),
    )


def validate(engine: str) -> None:
    """Hold the table of one engine to its form. Raises InputError naming the flag and the column at fault."""
    from kvplan.files import read_yaml

    path = _file(engine)
    data = read_yaml(path)
    for name, row in data["flags"].items():
        where = f"{path.name}: {name}"
        for column in row:
            if column not in _COLUMNS:
                raise InputError(
                    f"{where}: found the column {show(column)}, expected one of {', '.join(sorted(_COLUMNS))}"
                )
        if row.get("kind") not in KINDS:
            raise InputError(f"{where}: found kind {show(row.get('kind'))}, expected one of {', '.join(sorted(KINDS))}")
        for column in ("after", "until"):
            if column in row and version_number(str(row[column])) is None:
                raise InputError(f"{where}.{column}: found {show(row[column])}, expected a version")
        _words(row.get("names", ()), f"{where}.names")
        _words(row.get("negated", ()), f"{where}.negated")


def _words(words: Iterable[Any], where: str) -> None:
    for word in words:
        if not isinstance(word, str) or not word.startswith("-"):
            raise InputError(f"{where}: found {show(word)}, expected spellings with their dashes")
