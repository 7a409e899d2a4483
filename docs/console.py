"""Run the commands that the documents show, and hold what is shown against what is printed.

In a fence marked `console`, a line `$ kvplan ...` is run on a terminal of 80 columns without colours, and what follows
is its output. Each fence has a folder of its own that looks like the repository's root; what its commands write there
is gone after it. `| head -N`, `| grep WORD` and `| tail -N` cut an output, `> FILE` keeps it in the folder; `$ echo $?`
shows the exit code of the command before. `python docs/console.py --update` writes the outputs anew, without it they
are compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```console\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def documents() -> list[Path]:
    """The README and every Markdown file of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(block: str) -> Iterator[str]:
    """The command lines of a block, continued lines joined."""
    yield from re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, flags=re.MULTILINE)


def renewed(text: str) -> str:
    """A document with every output in it as it is now."""
    return FENCE.sub(lambda match: f"```console\n{_session(match[1])}```", text)


@cache
def _session(block: str) -> str:
    shown, code = [], 0
    with _folder() as folder:
        for line in commands(block):
            if line == "echo $?":
                output = f"{code}\n"
            else:
                code, output = _run(re.sub(r"\\\n\s*", "", line), folder)
            shown.append(f"$ {line}\n{output}")
    return "".join(shown)


def run(line: str) -> tuple[int, str]:
    """The exit code and the output of one line, stderr after stdout."""
    with _folder() as folder:
        return _run(line, folder)


def _run(line: str, folder: Path) -> tuple[int, str]:
    line, _, kept = line.partition(" > ")
    command, *cuts = (shlex.split(part) for part in line.split(" | "))
    if command[0] != "kvplan":
        raise ValueError(f"found {line}, expected a kvplan command")
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with _terminal(command, folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        from kvplan.cli.main import main

        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    for name, argument in cuts:
        lines = _cut(lines, name, argument)
    if kept:
        (folder / kept).write_text("".join(f"{line}\n" for line in lines), "utf-8")
        lines = []
    text = "\n".join([*lines, *err.getvalue().splitlines()]).strip("\n")
    return code, f"{text}\n" if text else ""


def _cut(lines: list[str], name: str, argument: str) -> list[str]:
    if name == "grep":
        return [line for line in lines if argument in line]
    count = int(argument.lstrip("-"))
    return lines[:count] if name == "head" else lines[-count:]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder with links to what lies in the repository's root."""
    with tempfile.TemporaryDirectory() as name:
        for item in ROOT.iterdir():
            if not item.name.startswith("."):
                (Path(name) / item.name).symlink_to(item, target_is_directory=item.is_dir())
        yield Path(name)


@contextlib.contextmanager
def _terminal(command: list[str], folder: Path) -> Iterator[None]:
    """The environment of a newcomer: no settings, 80 columns, the folder."""
    kept, argv, before = dict(os.environ), sys.argv, Path.cwd()
    for name in [name for name in os.environ if name.startswith(("KVPLAN_", "HF_"))]:
        del os.environ[name]
    os.environ.update(COLUMNS="80", NO_COLOR="1", TERM="dumb")
    sys.argv = command
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(kept)


def main() -> int:
    """Compare, or with --update rewrite."""
    stale = 0
    for path in documents():
        text = path.read_text("utf-8")
        new = renewed(text)
        if new != text:
            stale += 1
            if "--update" in sys.argv[1:]:
                path.write_text(new, "utf-8")
            print(f"{path.relative_to(ROOT)} was out of date", file=sys.stderr)
    return 1 if stale and "--update" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
