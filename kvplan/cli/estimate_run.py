"""What `kvplan estimate` does once its options are read: load, ask, print, return the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cli.common import print_json
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engines.commands import LaunchCommand
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

    engine, settings, notes, read = where.engine, dict[str, Any](), tuple[str, ...](), None
    if where.command is not None:
        read, notes = _from_command(where.command, engine, source.model)
        engine, settings = _named(read, engine), read.settings()
    assert engine is not None
    if where.config is not None:
        settings |= {
            name.lstrip("-").replace("-", "_"): value for name, value in read_engine_config(where.config).items()
        }
    settings |= native_settings(engine, own)
    settings = with_ranks(settings, where.num_gpus)
    loaded = source.load(None if read is None else read.model or (read.hint.model if read.hint else None))
    if read is not None:
        loaded, unsized = _stored(loaded, _weights(read, loaded))
        notes += unsized
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


def _from_command(text: str, engine: str | None, model: str | None) -> tuple[LaunchCommand, tuple[str, ...]]:
    """A launch command, and what to say of it: what it said that isn't used, and a model that is guessed."""
    from kvplan.engines.commands import parse_command
    from kvplan.engines.registry import canonical_engine

    read = parse_command(text, version=engine.partition("@")[2] or None if engine else None)
    if engine is not None and canonical_engine(engine.partition("@")[0]) != canonical_engine(read.engine):
        raise InputError(f"--engine: found {engine} beside a command of {read.engine}, expected one engine")
    notes = list(read.warnings)
    if read.ignored:
        notes.append(f"flags without effect on the cache are ignored: {', '.join(read.ignored)}")
    said = tuple(note.partition(" is no argument of ")[0] for note in read.warnings)
    unsaid = [word for word in read.raw_unknown if word.partition("=")[0] not in said]
    if unsaid:
        notes.append(f"{read.engine} has no use for these, they are ignored: {', '.join(unsaid)}")
    if model is None and read.model is None and read.hint is not None and read.hint.model is not None:
        notes.append(f"the model is taken to be {read.hint.text}: give MODEL to be sure")
    return read, tuple(notes)


def _named(read: LaunchCommand, engine: str | None) -> str:
    """The command's engine with its version, `engine`'s where that has one."""
    version = engine.partition("@")[2] if engine else read.version
    return f"{read.engine}@{version}" if version else read.engine


#: What Ollama's library stores a model in whose name tells no format, unless the model has a format of its own.
_OLLAMA_WEIGHTS = "Q4_K_M"
_PLAIN_WEIGHTS = ("BF16", "F16", "FP16")


def _weights(read: LaunchCommand, loaded: LoadedModel) -> str | None:
    """The GGUF type that the command's file or name tells; Ollama's own one where its name tells none."""
    if read.hint is None or read.engine not in ("llama.cpp", "ollama"):
        return None
    own = loaded.spec.quantization
    usual = _OLLAMA_WEIGHTS if read.engine == "ollama" and (own is None or own.method != "mxfp4") else None
    return read.hint.weights or usual


def _stored(loaded: LoadedModel, weights: str | None) -> tuple[LoadedModel, tuple[str, ...]]:
    """The model with its weights stored as a GGUF file's name says, and what to say where their size isn't known.

    The headers of a GGUF file that was read are exact and stay.
    """
    from dataclasses import replace

    from kvplan.memory.weight_formats import weight_methods
    from kvplan.spec.model import WeightQuantization

    own = loaded.spec.quantization
    if weights is None or (own is not None and own.method.startswith("gguf")):
        return loaded, ()
    method = f"gguf-{weights.lower().removeprefix('ud-')}"
    if method in weight_methods():
        stored: WeightQuantization | None = WeightQuantization(method)
    elif weights.upper() in _PLAIN_WEIGHTS:
        stored = None
    elif own is not None and own.method == weights.lower().removesuffix("_moe"):
        return loaded, ()
    else:
        return loaded, (f"the size of {weights} weights isn't known: they are counted as the checkpoint stores them",)
    return replace(loaded, spec=replace(loaded.spec, quantization=stored), tensors=None), ()


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
