"""What was read from a deployment file: launch commands, their places, what can't be known, what is wrong already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvplan.engines.commands import LaunchCommand

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class AcceleratorReading:
    """What the file says about the devices of one replica.

    `name` is a name of `kvplan gpus list`; None where the file names none. `stated_as` quotes the file. `devices` are
    the ids, where it picks some of a machine's.
    """

    name: str | None = None
    count: int | None = None
    stated_as: str | None = None
    certainty: str = "unknown"
    devices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"name": self.name, "count": self.count, "stated_as": self.stated_as, "certainty": self.certainty}


@dataclass(frozen=True)
class Surroundings:
    """What stands around a launch that a check needs.

    `memory_limit` is the container's in bytes, `wide_shared_memory` whether /dev/shm is more than the default (None: it
    is the machine's own). Commands of the same `machine` run at the same time and may share devices; None where nothing
    is shared.
    """

    memory_limit: int | None = None
    wide_shared_memory: bool | None = None
    machine: str | None = None


@dataclass(frozen=True)
class FoundCommand:
    """One launch command in a file. `place` names it for people, `path` is a path expression, `line` counts from 1.

    `replicas` are engines, a number or {min, max}; `nodes` the machines of one engine; `group` names the engine when
    several commands form one. `context_per_slot` and `context_total` are in tokens where slots split or multiply one
    number. `condition` says under which undecided condition a script starts it.
    """

    place: str
    path: str
    line: int
    command: LaunchCommand
    accelerator: AcceleratorReading = field(default_factory=AcceleratorReading)
    replicas: int | Mapping[str, int] | None = 1
    nodes: int = 1
    group: str = ""
    image: str | None = None
    context_per_slot: int | None = None
    context_total: int | None = None
    not_knowable: tuple[str, ...] = ()
    condition: str = ""
    surroundings: Surroundings = field(default_factory=Surroundings)
    mistakes: tuple[str, ...] = ()

    def with_command(self, **changes: Any) -> FoundCommand:
        """The same place with parts of its command changed."""
        return replace(self, command=replace(self.command, **changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the place, then what the command says."""
        said = self.command.to_dict()
        return {
            "at": self.place,
            "path": self.path,
            "line": self.line,
            **said,
            "not_knowable": [*said["not_knowable"], *self.not_knowable],
            "accelerator": self.accelerator.to_dict(),
            "replicas": dict(self.replicas) if isinstance(self.replicas, Mapping) else self.replicas,
            "nodes": self.nodes,
            "group": self.group or self.place,
            "context_per_slot": self.context_per_slot,
            "context_total": self.context_total,
            "condition": self.condition or None,
        }


@dataclass(frozen=True)
class Finding:
    """Something to flag, certain from the file alone. `rule` is a stable name, `text` says what and why."""

    rule: str
    level: Level
    text: str
    line: int
    place: str = ""
    flag: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rule": self.rule,
            "level": self.level,
            "text": self.text,
            "line": self.line,
            "at": self.place or None,
            "flag": self.flag,
        }


@dataclass(frozen=True)
class ManifestReading:
    """All of one file. `kind` says what it is, `hints` are starts that are no launch command, such as a Python call.

    `files` are the other files of the repository that it depends on, present or not.
    """

    path: str
    kind: str
    commands: tuple[FoundCommand, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_knowable: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def engines(self) -> tuple[FoundCommand, ...]:
        """One command for each engine: those that form one engine together count once."""
        return tuple(unique_groups(self.commands))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `kvplan check --manifest FILE --list --json` prints them."""
        return {
            "file": self.path,
            "kind": self.kind,
            "launch_commands": len(self.commands),
            "commands": [command.to_dict() for command in self.commands],
            "findings": [finding.to_dict() for finding in self.findings],
            "not_knowable": list(self.not_knowable),
            "hints": list(self.hints),
        }


def unique_groups(commands: Sequence[FoundCommand]) -> list[FoundCommand]:
    """The first command of each group, in order."""
    seen: dict[str, FoundCommand] = {}
    for number, command in enumerate(commands):
        seen.setdefault(command.group or f"#{number}", command)
    return list(seen.values())
