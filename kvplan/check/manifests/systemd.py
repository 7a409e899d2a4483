"""systemd units and Podman's quadlets: ExecStart is no shell, its variables come from the unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvplan.check.manifests.finish import finish
from kvplan.check.manifests.reading import AcceleratorReading, FoundCommand
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import container_devices
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import Word
from kvplan.engines.commands.heads import Head, Shell, find_head, start_container
from kvplan.engines.commands.scripts import read_script_text
from kvplan.engines.commands.words import split_words

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass
class Unit:
    """The settings of a unit: each key with its values and their lines."""

    settings: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def last(self, key: str) -> tuple[str, int] | None:
        """The last value of a key."""
        found = self.settings.get(key)
        return found[-1] if found else None


def is_unit(text: str) -> bool:
    """Whether a text is a service unit or a quadlet."""
    return re.search(r"^\[(Service|Container)\]\s*$", text, re.MULTILINE) is not None


def read_unit(source: Source) -> Result:
    """The engine that a unit starts; what runs before and after it is no launch."""
    result = Result()
    unit = _settings(source.lines)
    environment, files = _environment(source, unit)
    starts = [entry for key in ("ExecStart", "Container.Exec") for entry in unit.settings.get(key, [])]
    if not starts and unit.last("Container.Image"):
        starts = [("", unit.settings["Container.Image"][-1][1])]
    for text, line in starts:
        result.commands += _start(source, unit, text, line, environment, files)
    return result


def _settings(lines: list[str]) -> Unit:
    unit, section = Unit(), ""
    index = 0
    while index < len(lines):
        row, line = lines[index].strip(), index + 1
        index += 1
        if not row or row[0] in "#;":
            continue
        if row.startswith("[") and row.endswith("]"):
            section = row[1:-1]
            continue
        key, equals, value = row.partition("=")
        rows = [value]
        while rows[-1].endswith("\\") and index < len(lines):
            rows.append(lines[index])
            index += 1
        if equals:
            name = f"Container.{key.strip()}" if section == "Container" else key.strip()
            unit.settings.setdefault(name, []).append(("\n".join(rows), line))
    return unit


def _environment(source: Source, unit: Unit) -> tuple[dict[str, Word], list[str]]:
    """The variables of the unit, and the files that may set more and are not here."""
    found: dict[str, Word] = {}
    for key in ("Environment", "Container.Environment"):
        for text, line in unit.settings.get(key, []):
            for word in split_words(text, line):
                name, equals, value = word.text.partition("=")
                if equals:
                    found[name] = Word(value, line=word.line)
    missing = []
    for key in ("EnvironmentFile", "Container.EnvironmentFile"):
        for text, _ in unit.settings.get(key, []):
            path = text.strip().removeprefix("-")
            held = source.repository_file(path)
            if held is None:
                missing.append(path)
                continue
            for row in held.split("\n"):
                name, equals, value = row.strip().partition("=")
                if equals and not name.startswith(("#", ";")):
                    found[name] = Word(value.strip().strip("\"'"))
    return {**found, **{name: word for name, word in source.overrides.items() if name not in found}}, missing


def _filled(word: Word, environment: Mapping[str, Word]) -> list[Word]:
    """systemd's own expansion: `${X}` inside a word, `$X` alone split at spaces."""
    alone = re.fullmatch(r"\$([A-Za-z_]\w*)", word.text)
    if alone:
        found = environment.get(alone.group(1))
        if found is None:
            return [Word(word.text, (alone.group(1),), line=word.line, alone=True)]
        return [Word(part, line=word.line) for part in found.text.split()]
    unknown: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if name is None:
            return "$"
        if name not in environment:
            unknown.append(name)
            return match.group(0)
        return environment[name].text

    text = _VARIABLE.sub(value, word.text)
    return [Word(text, tuple(unknown), line=word.line)]


def _start(
    source: Source, unit: Unit, text: str, line: int, environment: dict[str, Word], files: list[str]
) -> list[FoundCommand]:
    raw = split_words(text.lstrip("@-:+!"), line)
    image = unit.last("Container.Image")
    plain = [part for word in raw for part in _filled(word, environment)]
    head = start_container(image[0].strip(), None, plain, environment) if image else find_head(plain)
    heads: list[tuple[Head, int, str]] = []
    if isinstance(head, Head):
        heads.append((head, next((word.line for word in plain if word.line), line), ""))
    elif isinstance(head, Shell):
        reading = read_script_text(
            head.script.text.replace("$$", "$"),
            environment=environment,
            overrides=source.overrides,
            closed=not files,
            positional=head.arguments[1:],
            read_file=source.repository_file,
            line=head.script.line or line,
            name=source.name,
        )
        heads += [(launch.head, launch.run.line, launch.run.condition) for launch in reading.launches]
    found = []
    for item, at, condition in heads:
        devices = container_devices(item.container_options) or _quadlet_devices(unit)
        command = finish(
            source,
            item,
            place="Container" if image else "ExecStart",
            path="Container" if image else "Service.ExecStart",
            line=at,
            environment=environment,
            accelerator=devices,
            condition=condition,
        )
        found.append(_files_noted(command, files, [name for word in plain for name in word.unknown]))
    return found


def _quadlet_devices(unit: Unit) -> AcceleratorReading | None:
    device = unit.last("Container.AddDevice")
    if device is None:
        return None
    return container_devices([("--device", Word(device[0].strip()))])


def _files_noted(found: FoundCommand, files: list[str], unset: list[str]) -> FoundCommand:
    notes = [*found.not_knowable]
    for path in files:
        named = f": {', '.join(dict.fromkeys(unset))} at least" if unset else ""
        more = " and any variable of the engine's own" if found.command.engine in ("llama.cpp", "ollama") else ""
        notes.append(f"what {path} sets{named}{more}")
    return replace(found, not_knowable=tuple(notes))
