"""The files that a check reads: kept within the repository, and known by their contents."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import InputError, show

if TYPE_CHECKING:
    from kvplan.check.expectations import Placed

MAX_HASHED = 16 << 20


class Inputs:
    """Every file that an answer depends on."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()

    def add(self, *paths: Path) -> None:
        """Note files, present or not."""
        self.paths.update(path.absolute() for path in paths)

    def add_model(self, path: Path) -> None:
        """Note a model file, and what lies beside a config.json, since tensor headers are read there too."""
        folder = path if path.is_dir() else path.parent
        self.add(path)
        if path.is_dir() or path.name == "config.json":
            self.add(*(item for item in folder.iterdir() if item.is_file()), folder)

    def inside(self, name: str, placed: Placed, key: str) -> Path:
        """A file of the repository, named from the folder of the expectations. Raises InputError for one outside."""
        from kvplan.check.manifests.source import repository_of

        where = f"{placed.file}: line {placed.key_lines.get(key, placed.line)}: {key}"
        if "\0" in name:
            raise InputError(f"{where}: found {show(name)}, expected a path")
        path = Path(os.path.normpath(placed.file.parent / name))
        try:
            real = Path(os.path.realpath(path))
            root = repository_of(placed.file.resolve().parent)
        except (OSError, ValueError, RuntimeError):
            raise InputError(f"{where}: found {show(name)}, expected a path") from None
        if not real.is_relative_to(root):
            raise InputError(
                f"{where}: found {show(name)}, which lies outside the repository, expected a path inside it"
            )
        if not real.exists():
            raise InputError(f"{where}: found no file {show(name)} beside {placed.file.name}, expected one")
        return path


def fingerprint(path: Path) -> str:
    """What tells two states of a file or folder apart: its contents; size, time and beginning where it is large."""
    try:
        if path.is_dir():
            return f"folder {sorted(item.name for item in path.iterdir())}"
        size = path.stat().st_size
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            digest.update(stream.read(MAX_HASHED))
    except (OSError, ValueError):
        return "absent"
    more = f" {size} {path.stat().st_mtime_ns}" if size > MAX_HASHED else ""
    return f"{digest.hexdigest()}{more}"
