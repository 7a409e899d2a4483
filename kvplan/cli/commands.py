"""The table of commands. A command's module is imported, and its options are read, only when it is named."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer

EXIT_CODES = (
    "Exit codes: 0 answered and fits; 1 does not fit; 2 usage, bad input or unknown model; "
    "3 architecture not supported."
)

_OF_LOOKING_UP = "Exit codes: 0 answered; 2 usage, bad input or unknown name."
_OF_CHECKS = "Exit codes: 0 nothing to object to; 1 something is; 2 usage, bad input or not to be judged"
#: the exit codes of commands that don't ask what fits
_OTHER_CODES = {
    "audit": f"{_OF_CHECKS}.",
    "check": f"{_OF_CHECKS}; 3 architecture not supported.",
    "doctor": "Exit codes: 0 kvplan can answer; 2 its data is damaged.",
    "evidence": f"{_OF_CHECKS}.",
    "gpus": _OF_LOOKING_UP,
    "models": f"{_OF_CHECKS}; 3 architecture not supported.",
    "report": _OF_LOOKING_UP,
    "techniques": _OF_LOOKING_UP,
    "validate": f"{_OF_CHECKS}; 130 interrupted.",
}

ASK, TIME, PROVE, KNOW, SHARE = "Ask", "Over time", "Prove", "Look up", "Share"


class Entry(NamedTuple):
    """Where a command is: a function, or a typer app named `app` where it has subcommands; and its panel in --help."""

    module: str
    attribute: str
    panel: str
    settings: dict[str, Any] | None = None


# Words that kvplan has no option for may be the engine's own flags; `estimate` refuses them where no engine is named.
_FOREIGN_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}

TABLE: dict[str, Entry] = {
    "estimate": Entry("estimate", "estimate", ASK, _FOREIGN_FLAGS),
    "explain": Entry("explain", "explain", ASK),
    "compare": Entry("compare", "compare", ASK),
    "advise": Entry("advise", "advise", ASK),
    "plan": Entry("plan", "plan", ASK),
    "sweep": Entry("sweep", "sweep", ASK),
    "simulate": Entry("simulate", "simulate", TIME),
    "replay": Entry("replay", "replay", TIME),
    "validate": Entry("validate", "validate", PROVE),
    "audit": Entry("audit", "audit", PROVE),
    "evidence": Entry("evidence", "app", PROVE),
    "check": Entry("check", "check", PROVE),
    "models": Entry("models", "app", KNOW),
    "gpus": Entry("gpus", "app", KNOW),
    "techniques": Entry("techniques", "app", KNOW),
    "doctor": Entry("doctor", "doctor", KNOW),
    "report": Entry("report", "report", SHARE),
    "serve": Entry("serve", "serve", SHARE),
    "mcp": Entry("mcp", "mcp", SHARE),
}


class Commands(MutableMapping[str, Any]):
    """The commands of the table by name, each built once, when it is asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _build(name, TABLE[name])
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLE)

    def __len__(self) -> int:
        return len(TABLE)

    def __contains__(self, name: object) -> bool:
        return name in TABLE


def _build(name: str, entry: Entry) -> Any:
    found = getattr(import_module(f"kvplan.cli.{entry.module}"), entry.attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name, context_settings=entry.settings)(found)
        found = single
    else:
        found._add_completion = False
    command: Any = typer.main.get_command(found)
    command.name, command.rich_help_panel = name, entry.panel
    for each in (command, *getattr(command, "commands", {}).values()):
        each.epilog = _OTHER_CODES.get(name, EXIT_CODES)
    return command
