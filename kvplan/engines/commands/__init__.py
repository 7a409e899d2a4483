"""Launch commands of the engines, read as the engines would: `vllm serve ...`, `llama-server ...` and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvplan.engines.commands.build import Builder, ollama_hint
from kvplan.engines.commands.heads import Head
from kvplan.engines.commands.images import catalog
from kvplan.engines.commands.launch import LaunchCommand
from kvplan.engines.commands.options_files import ReadFile
from kvplan.engines.commands.scripts import ScriptReading, read_script_text
from kvplan.engines.commands.words import Word, as_words
from kvplan.errors import InputError, show

__all__ = ["LaunchCommand", "Word", "build_command", "parse_command"]


def build_command(
    head: Head,
    *,
    env: Mapping[str, Word] | None = None,
    version: str | None = None,
    read_file: ReadFile | None = None,
) -> LaunchCommand:
    """The launch command of a head that was found in a larger file; what the engine would refuse is listed in it."""
    return Builder(head, env or {}, version, read_file).build()


def parse_command(
    text_or_words: str | Sequence[str | Word],
    *,
    env: Mapping[str, str] | None = None,
    version: str | None = None,
    read_file: ReadFile | None = None,
) -> LaunchCommand:
    """Read one launch command as its engine's own parser would.

    Text is split as a shell would, with `env` as the variables; words are taken as they are. `version` is the engine's
    (default: the image's tag, where the command runs a container). `read_file` gives the text of an options file, or
    None. Raises InputError when the text starts no engine or more than one, for a quote that isn't closed, and for a
    value that the engine would refuse.
    """
    variables = {name: Word(value) for name, value in (env or {}).items()}
    text = text_or_words if isinstance(text_or_words, str) else None
    if text is None:
        text = " ".join(_quoted(word) for word in as_words(text_or_words))
    reading = read_script_text(text, environment=variables, read_file=read_file, positional=(), name="--command")
    run = _ollama_run(reading)
    if run is not None:
        return run
    if len(reading.launches) != 1:
        raise _no_single_launch(text, len(reading.launches))
    launch = reading.launches[0]

    def read(path: str) -> str | None:
        written = reading.files.get(path)
        return written.text if written is not None else (read_file(path) if read_file is not None else None)

    command = build_command(launch.head, env=launch.run.environment, version=version, read_file=read)
    if command.refused:
        raise InputError(command.refused[0].removeprefix("line 1: "))
    return command


def _ollama_run(reading: ScriptReading) -> LaunchCommand | None:
    """`ollama run NAME` alone, as a server that loads NAME; None for anything else."""
    runs = [run for run in reading.other if [word.text for word in run.words[:2]] == ["ollama", "run"]]
    if reading.launches or len(runs) != 1 or len(reading.pulled) != 1:
        return None
    command = build_command(Head("ollama", (), ("ollama", "run"), False), env=runs[0].environment)
    hint = ollama_hint(reading.pulled[0])
    return replace(command, hint=hint, model_hint=hint.text)


def _no_single_launch(text: str, count: int) -> InputError:
    known = catalog()["programs"].items()
    started = [" ".join((name, *(() if entry.get("default") else entry.get("serve", ())))) for name, entry in known]
    programs = ", ".join((*started, "ollama run", "python -m sglang.launch_server"))
    if count:
        return InputError(f"--command: found {count} commands that start an engine in {show(text)}, expected one")
    return InputError(f"--command: found {show(text)}, expected a command that starts an engine: {programs}")


def _quoted(word: Word) -> str:
    if word.unknown:
        return f'"{word.text}"'
    inner = word.text.replace("'", "'\\''")
    return f"'{inner}'"
