"""Commands in the README and docs: those shown with output print it, all others exist with their options."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import command

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import console  # type: ignore[import-not-found]  # noqa: E402

DOCUMENTS = console.documents()
SHOWN = [path for path in DOCUMENTS if console.FENCE.search(path.read_text("utf-8"))]
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_what_is_shown_is_what_is_printed(path: Path) -> None:
    text = path.read_text("utf-8")
    assert console.renewed(text) == text, "run python docs/console.py --update and read the difference"


def test_a_changed_output_is_noticed() -> None:
    shown = "```console\n$ kvplan techniques demo mla\nan old answer\n```"
    assert "an old answer" not in console.renewed(shown)
    assert "one latent and one rotary key" in console.renewed(shown)


def test_commands_of_a_fence_share_a_folder_and_leave_the_repository_alone() -> None:
    shown = "```console\n$ kvplan estimate llama-3.1-8b --json > kept.json\n$ kvplan report kept.json\n```"
    assert console.renewed(shown) == shown.replace("\n```", "\nkept.html\n```")
    assert console.run("kvplan report kept.json")[0] == 2
    assert not list(ROOT.glob("kept.*"))


def named() -> Iterator[tuple[str, str]]:
    """Every command line that a document names, in fences, indented or inline."""
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        fences = "\n".join(body for kind, body in FENCES.findall(text) if kind != "console")
        prose = FENCES.sub("", text)
        found = re.findall(r"(?:^|&& |\| )[ \t-]*(kvplan [a-z].*)$", fences.replace("\\\n", " "), flags=re.MULTILINE)
        found += re.findall(r"^    (kvplan [a-z].*)$", prose, flags=re.MULTILINE)
        found += re.findall(r"`(kvplan [a-z][^`]*)`", prose.replace("\n", " "))
        for line in found:
            yield path.name, " ".join(line.split())


@cache
def root() -> Any:
    return command()


@pytest.mark.parametrize(("name", "line"), sorted(set(named())))
def test_each_command_exists_with_its_options(name: str, line: str) -> None:
    words = shlex.split(line.partition(" | ")[0].replace("...", ""), comments=True)[1:]
    found, used = root(), 0
    while hasattr(found, "commands") and used < len(words) and words[used] in found.commands:
        found, used = found.commands[words[used]], used + 1
    assert used, f"{name}: {line}"
    assert not hasattr(found, "commands") or used == len(words), f"{name}: {line}"
    known = {spelling for param in getattr(found, "params", ()) for spelling in param.opts} | {"--help"}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert given <= known, f"{name}: {line}"
