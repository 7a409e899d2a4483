"""What `kvplan estimate` does once its options are read: load, ask, print, return the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cli.common import print_json
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.spec.resolve import LoadedModel


class Source(NamedTuple):
    """Which model, and how it may be found."""

    model: str | None
    model_dir: Path | None
    hub: bool
    assume_dense: bool

    def load(self, model: str | None = None) -> LoadedModel:
        """The model named on the command line, or else `model`. Raises InputError for none."""
        from kvplan.spec.resolve import resolve_model

        name = self.model if self.model is not None else model
        if name is None:
            raise InputError("MODEL: found nothing, expected a name of `kvplan models list`, a config.json or a folder")
        return resolve_model(name, model_dir=self.model_dir, hub=self.hub, assume_dense=self.assume_dense)


class Where(NamedTuple):
    """Which engine on which device, and where its flags come from besides the options."""

    engine: str | None
    command: str | None
    config: Path | None
    gpu: str | None
    num_gpus: int
    available_memory: str | None


class Output(NamedTuple):
    """What is printed."""

    as_json: bool
    explain: bool
    matrix: tuple[str, str] | None
    layouts: bool


def plain(source: Source, asked: Mapping[str, Any], output: Output) -> int:
    """The analytic answer."""
    if output.matrix is not None or output.layouts:
        return _tables(source.load(), None, None, {}, asked, output)
    from kvplan.estimator import estimate

    answer = estimate(source.load(), **asked)
    if output.as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.estimate import print_estimate

        print_estimate(answer, explain=output.explain)
    return answer.exit_code


def served(source: Source, where: Where, own: Mapping[str, Any], asked: dict[str, Any], output: Output) -> int:
    """The answer of an engine's model. Flags: the command's, then the file's, then the options', later ones winning."""
    from kvplan.engines.native import native_settings
    from kvplan.served import (
        analytic_dtype,
        available_memory,
        estimate_served,
        read_engine_config,
        with_ranks,
    )  # fmt: skip

    engine, settings, model, notes = where.engine, dict[str, Any](), None, tuple[str, ...]()
    if where.command is not None:
        engine, settings, model, notes = _from_command(where.command, engine)
    assert engine is not None
    if where.config is not None:
        settings |= {
            name.lstrip("-").replace("-", "_"): value for name, value in read_engine_config(where.config).items()
        }
    settings |= native_settings(engine, own)
    settings = with_ranks(settings, where.num_gpus)
    loaded = source.load(model)
    asked["kv_cache_dtype"] = analytic_dtype(settings, asked["kv_cache_dtype"])
    if output.matrix is not None or output.layouts:
        return _tables(loaded, engine, where, settings, asked, output)
    answer = estimate_served(
        loaded, engine=engine, gpu=where.gpu, settings=settings, notes=notes,
        available_bytes=available_memory(where.available_memory), **asked,
    )  # fmt: skip
    if output.as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.served import print_served

        print_served(answer, explain=output.explain)
    return answer.exit_code


def _from_command(text: str, engine: str | None) -> tuple[str, dict[str, Any], str | None, tuple[str, ...]]:
    """Engine, flags and model of a launch command, and what it said that isn't used."""
    from kvplan.engines.commands import parse_command
    from kvplan.engines.registry import canonical_engine

    read = parse_command(text, version=engine.partition("@")[2] or None if engine else None)
    if engine is not None and canonical_engine(engine.partition("@")[0]) != canonical_engine(read.engine):
        raise InputError(f"--engine: found {engine} beside a command of {read.engine}, expected one engine")
    version = engine.partition("@")[2] if engine else read.version
    notes = list(read.warnings)
    if read.ignored:
        notes.append(f"flags without effect on the cache are ignored: {', '.join(read.ignored)}")
    if read.unknown:
        notes.append(f"flags that {read.engine} doesn't have are ignored: {', '.join(read.unknown)}")
    model = read.model
    if model is None and read.hint is not None and read.hint.model is not None:
        model = read.hint.model
        notes.append(f"the model is taken to be {read.hint.text}: give MODEL to be sure")
    return f"{read.engine}@{version}" if version else read.engine, read.settings(), model, tuple(notes)


def _tables(
    loaded: LoadedModel, engine: str | None, where: Where | None, settings: Mapping[str, Any],
    asked: Mapping[str, Any], output: Output,
) -> int:  # fmt: skip
    """The matrix of contexts and batches, or the rows of layouts."""
    from kvplan.answers.tables import layouts, matrix
    from kvplan.report.tables import print_layouts, print_matrix
    from kvplan.served import available_memory

    gpu = where.gpu if where is not None else asked.get("gpu")
    count = where.num_gpus if where is not None else asked.get("num_gpus", 1)
    memory = available_memory(where.available_memory) if where is not None else ()
    if output.layouts:
        rows = layouts(loaded, engine, gpu, count, settings, asked)
        print_json(rows.to_dict()) if output.as_json else print_layouts(rows)
        return 0 if any(row.starts for row in rows.rows) else 1
    assert output.matrix is not None
    grid = matrix(loaded, output.matrix, engine, gpu, count, settings, asked, memory)
    print_json(grid.to_dict()) if output.as_json else print_matrix(grid)
    return 0
