"""Where results lie: a locked folder, one file a finished part, and one file of all when the last is in.

folder/study.json     which study this is
folder/parts/*        finished parts, each renamed into place when it is whole
folder/results.csv    (or .parquet) all parts in order; the parts go when it is there
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from kvplan.errors import InputError
from kvplan.files import read_json_object, write_atomic, write_text_atomic
from kvplan.planner.sweep.grid import Columns
from kvplan.planner.sweep.study import Study

Kind = Literal["csv", "parquet"]


def encode(columns: Columns, names: tuple[str, ...], kind: Kind) -> bytes:
    """One part as bytes: CSV lines without a header, or a Parquet file."""
    if kind == "parquet":
        return _parquet(columns, names)
    texts = [_texts(columns[name]) for name in names]
    return ("\n".join(map(",".join, zip(*texts, strict=True))) + "\n").encode()


def _texts(column: list[Any]) -> list[str]:
    """A column as CSV fields; equal values that follow each other are written once."""
    if column and type(column[0]) is int and type(column[-1]) is int:
        return [str(value) if type(value) is int else _text(value) for value in column]
    known: dict[Any, str] = {}
    found = []
    for value in column:
        key = (type(value), value)
        text = known.get(key)
        if text is None:
            text = known[key] = _text(value)
        found.append(text)
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, float) else str(value)
    if any(mark in text for mark in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "--format: found no pyarrow for parquet, expected it installed: pip install 'kvplan-llm[sweep]'"
        ) from None
    return pyarrow


def _parquet(columns: Columns, names: tuple[str, ...]) -> bytes:
    arrow = _arrow()
    arrays = [arrow.array(_typed(columns[name])) for name in names]
    stream = io.BytesIO()
    arrow.parquet.write_table(arrow.table(arrays, list(names)), stream)
    return stream.getvalue()


def _typed(column: list[Any]) -> list[Any]:
    """Values of one type, or text where a column mixes them or a number needs more than 64 bits."""
    kinds = {type(value) for value in column if value is not None}
    wide = any(type(value) is int and abs(value) >= 1 << 63 for value in column) if int in kinds else False
    if wide or (len(kinds) > 1 and kinds != {int, float}):
        return [None if value is None else str(value) for value in column]
    return column


class Store:
    """The folder of one sweep, locked while it is open. Raises InputError where it can't be used."""

    def __init__(self, folder: Path, study: Study, names: tuple[str, ...], kind: Kind) -> None:
        self.folder, self.study, self.names, self.kind = folder, study, names, kind
        self.results = folder / f"results.{kind}"
        self._parts = folder / "parts"
        if kind == "parquet":
            _arrow()
        try:
            self._parts.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("a")
        except OSError as error:
            raise InputError(f"{folder}: can't be written ({error.strerror}), expected a writable folder") from None
        _lock(self._lock, folder)
        try:
            self._claim()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back."""
        self._lock.close()

    def _claim(self) -> None:
        path, digest = self.folder / "study.json", self.study.digest(self.kind)
        if not path.exists():
            document = {"digest": digest, "command": self.study.command, "cells": self.study.cells}
            write_text_atomic(path, json.dumps(document, indent=2) + "\n")
        elif read_json_object(path).get("digest") != digest:
            raise InputError(
                f"{self.folder}: found the results of another study, expected an empty folder or that of this study"
            )

    def missing(self) -> list[int]:
        """Parts that aren't there yet."""
        if self.results.exists():
            return []
        there = {path.name for path in self._parts.iterdir()}
        return [number for number in range(self.study.parts) if self._name(number) not in there]

    def _name(self, number: int) -> str:
        return f"{number:09d}.{self.kind}"

    def put(self, number: int, data: bytes) -> None:
        """Keep one finished part."""
        write_atomic(self._parts / self._name(number), lambda temporary: temporary.write_bytes(data))

    def finish(self) -> Path:
        """Join all parts in order, and drop them."""
        if not self.results.exists():
            write_atomic(self.results, self._join)
        shutil.rmtree(self._parts, ignore_errors=True)
        return self.results

    def _join(self, temporary: Path) -> None:
        paths = (self._parts / self._name(number) for number in range(self.study.parts))
        if self.kind == "parquet":
            self._join_parquet(temporary, paths)
            return
        with temporary.open("wb") as stream:
            stream.write((",".join(self.names) + "\n").encode())
            for path in paths:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, stream)

    def _join_parquet(self, temporary: Path, paths: Iterator[Path]) -> None:
        arrow = _arrow()
        tables = [arrow.parquet.read_table(path) for path in paths]
        # A column that is empty in one part has no type there; the others' is taken.
        schema = arrow.unify_schemas([table.schema for table in tables], promote_options="permissive")
        with arrow.parquet.ParquetWriter(temporary, schema) as writer:
            for table in tables:
                writer.write_table(table.cast(schema))


def _lock(stream: IO[str], folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks there
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise InputError(f"{folder}: found another sweep at work in it, expected one at a time") from None
