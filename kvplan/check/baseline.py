"""Figures that must not get worse: read from a file, written by `--update-baseline`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvplan.check.metrics import METRICS, plain
from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import read_json_object, write_text_atomic
from kvplan.record import record

SCHEMA_VERSION = 1
_KIND = "kvplan-check-baseline"


@record
class Entry:
    """The figures of one subject, and the settings they were made with."""

    figures: Mapping[str, float]
    settings: Mapping[str, Any]


@record
class Baseline:
    """All entries of a baseline file."""

    path: Path
    entries: Mapping[str, Entry]

    def entry(self, name: str) -> Entry:
        """The entry of one subject. Raises InputError where there is none."""
        if name not in self.entries:
            raise InputError(
                f"{self.path}: found no entry {show(name, 200)}, expected one: run again with --update-baseline"
                f"{did_you_mean(name, self.entries)}"
            )
        return self.entries[name]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline. Raises InputError for another schema version and for what isn't one."""
    document = read_json_object(path)
    version = document.get("schema_version")
    if document.get("kind") != _KIND:
        raise InputError(f"{path}: found no baseline of kvplan check, expected one that --update-baseline wrote")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version: found {show(version)}, expected {SCHEMA_VERSION}: write it anew with "
            "--update-baseline"
        )
    entries = document.get("entries")
    if not isinstance(entries, dict):
        raise InputError(f"{path}: entries: found {show(entries)}, expected a mapping of names to figures")
    return Baseline(path, {name: _entry(path, name, entry) for name, entry in entries.items()})


def _entry(path: Path, name: str, entry: Any) -> Entry:
    figures = entry.get("figures") if isinstance(entry, dict) else None
    settings = entry.get("settings", {}) if isinstance(entry, dict) else None
    if not isinstance(figures, dict) or not isinstance(settings, dict):
        raise InputError(f"{path}: entries.{name}: found {show(entry)}, expected figures and settings")
    for figure, value in figures.items():
        if figure not in METRICS:
            raise InputError(
                f"{path}: entries.{name}: found the unknown figure {show(figure)}{did_you_mean(figure, METRICS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{path}: entries.{name}.{figure}: found {show(value)}, expected a number")
    return Entry(figures, settings)


def write_baseline(path: Path, entries: Iterable[tuple[str, Entry]]) -> int:
    """Write a baseline with sorted names, so that a change of one figure is a change of one line; returns how many."""
    listed = {
        name: {
            "figures": {figure: plain(value) for figure, value in entry.figures.items()},
            "settings": dict(entry.settings),
        }
        for name, entry in sorted(entries)
    }
    document = {"kind": _KIND, "schema_version": SCHEMA_VERSION, "entries": listed}
    write_text_atomic(path, json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    return len(listed)
