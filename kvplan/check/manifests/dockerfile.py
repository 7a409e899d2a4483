"""Dockerfiles: the engine that the last stage's ENTRYPOINT and CMD start."""

from __future__ import annotations

import json
import re

from kvplan.check.manifests.finish import finish
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import Carrier, read_shell
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import Word
from kvplan.engines.commands.heads import Head, Shell, start_container
from kvplan.engines.commands.images import pinned_version

_INSTRUCTION = re.compile(r"\s*(FROM|ENTRYPOINT|CMD|ENV|ARG)\s+(.*)", re.IGNORECASE | re.DOTALL)


def read_dockerfile(source: Source) -> Result:
    """The launch command of an image that is built here."""
    image, environment = "", dict[str, Word]()
    entrypoint: tuple[list[Word] | str, int] | None = None
    command: tuple[list[Word] | str, int] | None = None
    for text, line in _instructions(source.lines):
        match = _INSTRUCTION.fullmatch(text)
        if match is None:
            continue
        word, rest = match.group(1).upper(), match.group(2).strip()
        if word == "FROM":
            image, environment, entrypoint, command = rest.split()[0] if rest else "", {}, None, None
        elif word in ("ENV", "ARG"):
            environment |= _pairs(rest, line)
        elif word == "ENTRYPOINT":
            entrypoint, command = (_form(rest, line), line), None
        else:
            command = _form(rest, line), line
    return _start(source, image, environment, entrypoint, command)


def _instructions(lines: list[str]) -> list[tuple[str, int]]:
    found, index = [], 0
    while index < len(lines):
        row, line = lines[index], index + 1
        index += 1
        if not row.strip() or row.strip().startswith("#"):
            continue
        rows = [row]
        while rows[-1].rstrip().endswith("\\") and index < len(lines):
            rows.append(lines[index])
            index += 1
        found.append(("\n".join(rows), line))
    return found


def _pairs(text: str, line: int) -> dict[str, Word]:
    found = {}
    for part in re.findall(r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)", text):
        found[part[0]] = Word(part[1].strip("\"'"), line=line)
    if not found and len(text.split(None, 1)) == 2:
        name, value = text.split(None, 1)
        found[name] = Word(value.strip(), line=line)
    return found


def _form(text: str, line: int) -> list[Word] | str:
    """The exec form as words, the shell form as text."""
    try:
        words = json.loads(text.replace("\\\n", " "))
    except (ValueError, RecursionError):
        return text
    return [Word(str(word), line=line) for word in words] if isinstance(words, list) else text


def _start(
    source: Source,
    image: str,
    environment: dict[str, Word],
    entrypoint: tuple[list[Word] | str, int] | None,
    command: tuple[list[Word] | str, int] | None,
) -> Result:
    for form in (entrypoint, command):
        if form is not None and isinstance(form[0], str):
            carrier = Carrier(place="ENTRYPOINT" if form is entrypoint else "CMD", image_environment=environment)
            return read_shell(source, form[0], form[1], carrier)
    first = entrypoint[0] if entrypoint and not isinstance(entrypoint[0], str) else None
    rest = command[0] if command and not isinstance(command[0], str) else []
    line = (entrypoint or command or ([], 0))[1]
    if not line:
        return Result()
    head = start_container(image, first, rest, environment)
    if isinstance(head, Shell):
        carrier = Carrier(place="CMD", image_environment={**environment, **head.environment}, closed=False)
        return read_shell(source, head.script.text, line, carrier)
    if not isinstance(head, Head):
        return Result()
    version = pinned_version(source.text, head.engine)
    place = "ENTRYPOINT" if entrypoint else "CMD"
    found = finish(source, head, place=place, path=place, line=line, environment=environment, version=version)
    return Result([found])
