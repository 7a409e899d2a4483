"""The engines that a script starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvplan.engines.commands.heads import Head, Shell, find_head
from kvplan.engines.commands.shell.expand import Variables
from kvplan.engines.commands.shell.interpret import Interpreter, Run
from kvplan.engines.commands.words import Word

MAX_NESTED = 5
ReadFile = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Launch:
    """One start of an engine in a script, with the command that starts it."""

    head: Head
    run: Run


@dataclass
class ScriptReading:
    """What a script does that matters here.

    `downloads` maps folders to the repository downloaded into them, `pulled` are names that an Ollama client pulls or
    runs, `other` the programs it starts besides, `missing` the files it reads settings from that are not here.
    """

    launches: list[Launch] = field(default_factory=list)
    downloads: dict[str, str] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    files: dict[str, Word] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    other: list[Run] = field(default_factory=list)


def read_script_text(
    text: str,
    *,
    environment: Mapping[str, Word] | None = None,
    overrides: Mapping[str, Word] | None = None,
    closed: bool = False,
    positional: Sequence[Word] | None = None,
    read_file: ReadFile | None = None,
    line: int = 1,
    name: str = "script",
) -> ScriptReading:
    """Find every engine that `text` starts.

    `environment` is exported to it; `closed` says that nothing else is. `overrides` fill what nothing else sets.
    Raises InputError for an open quote or a script too large or too deeply nested to read.
    """
    reading = ScriptReading()
    variables = Variables(
        {key: (word,) for key, word in (environment or {}).items()},
        set(),
        set(environment or {}),
        dict(overrides or {}),
        None if positional is None else tuple(positional),
        closed,
    )
    _follow(reading, text, variables, read_file, line, name, 0)
    return reading


def _follow(
    reading: ScriptReading,
    text: str,
    variables: Variables,
    read_file: ReadFile | None,
    line: int,
    name: str,
    depth: int,
) -> None:
    trace = Interpreter(variables, name, read_file).follow(text, line)
    reading.files |= trace.files
    reading.missing += trace.missing
    for run in trace.runs:
        _classify(reading, run, variables, read_file, name, depth)


def _classify(
    reading: ScriptReading, run: Run, variables: Variables, read_file: ReadFile | None, name: str, depth: int
) -> None:
    head = find_head(run.words)
    if isinstance(head, Head):
        environment = {**run.environment, **head.environment}
        reading.launches.append(Launch(replace(head, environment=environment), run))
    elif isinstance(head, Shell) and depth < MAX_NESTED and not head.script.alone:
        inner = variables.copy()
        inner.values |= {key: (word,) for key, word in {**run.environment, **head.environment}.items()}
        inner.exported |= set(run.environment) | set(head.environment)
        inner.positional = head.arguments[1:]
        before = len(reading.launches)
        _follow(reading, head.script.text, inner, read_file, head.script.line or run.line, name, depth + 1)
        found = [_reached_by(launch, run) for launch in reading.launches[before:]]
        reading.launches[before:] = found
    else:
        _other(reading, run)


def _reached_by(launch: Launch, run: Run) -> Launch:
    outer = launch.run
    repeats = None if outer.repeats is None or run.repeats is None else outer.repeats * run.repeats
    both = replace(
        outer,
        repeats=repeats,
        condition=outer.condition or run.condition,
        background=outer.background or run.background,
    )
    return replace(launch, run=both)


def _other(reading: ScriptReading, run: Run) -> None:
    words = [word.text for word in run.words]
    reading.other.append(run)
    program = words[0].rpartition("/")[2]
    if program == "ollama" and len(words) > 2 and words[1] in ("pull", "run"):
        reading.pulled += [word for word in words[2:3] if not word.startswith("-") and "$" not in word]
    elif program in ("hf", "huggingface-cli", "modelscope") and "download" in words[1:3]:
        rest = words[words.index("download") + 1 :]
        names = [word for word in rest if "/" in word and not word.startswith(("-", "/", ".", "~", "$"))]
        for flag in ("--local-dir", "--local_dir"):
            if flag in rest[:-1] and names:
                reading.downloads[rest[rest.index(flag) + 1].rstrip("/")] = names[0]
