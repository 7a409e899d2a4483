"""What an expectation is about: a model, and a launch command from the file itself or from a manifest beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.check.expectations import Placed
from kvplan.check.inputs import Inputs
from kvplan.check.manifests import Finding, FoundCommand, ManifestReading, read_manifest
from kvplan.check.manifests.findings import find_mistakes
from kvplan.check.manifests.scripts import read_shell
from kvplan.check.manifests.source import Source, open_source, script_text
from kvplan.check.request import Given
from kvplan.engines.commands.flags import load_table, version_number
from kvplan.errors import InputError, did_you_mean, show
from kvplan.memory.weight_formats import weight_methods
from kvplan.spec.model import WeightQuantization
from kvplan.spec.resolve import SUFFIXES, LoadedModel, registry, resolve_model
from kvplan.units import MAX_TOKENS

if TYPE_CHECKING:
    from kvplan.engines.base import EngineAnswer
    from kvplan.estimator import Estimate
    from kvplan.memory.budget import Budget

_PLAIN = ("BF16", "F16", "FP16", "F32")


@dataclass(frozen=True)
class Subject:
    """One thing to ask about. `engine` is None for the analytic answer, `place` "" where the expectation names it all.

    `lines` maps the engine's flags to their lines in `file`; `gpus` is the number of devices, None where nothing says.
    `larger_weights` says why the weights may be smaller than they are counted: a failure then proves nothing.
    `weights` is the method of `kvplan.memory.weight_formats` that the launch command tells, "" where none.
    """

    placed: Placed
    place: str
    file: Path
    line: int
    model: str | None
    engine: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 1
    gpu: str | None = None
    gpus: int | None = None
    notes: tuple[str, ...] = ()
    found: FoundCommand | None = None
    larger_weights: str = ""
    weights: str = ""


class Reader:
    """Turns expectations into subjects; manifests and models are read once.

    `plans` and `estimates` hold answers that several expectations share.
    """

    def __init__(self, given: Given, inputs: Inputs) -> None:
        self.given, self.inputs = given, inputs
        self._manifests: dict[tuple[Path, tuple[tuple[str, str], ...]], ManifestReading] = {}
        self._models: dict[tuple[str, str, Path], LoadedModel] = {}
        self.plans: dict[tuple[Any, ...], tuple[EngineAnswer, Budget | None]] = {}
        self.estimates: dict[tuple[Any, ...], Estimate] = {}
        self._sources: dict[tuple[Path, tuple[tuple[str, str], ...]], Source] = {}

    def subjects(self, placed: Placed) -> tuple[list[Subject], list[Finding]]:
        """What one expectation is about, and what is wrong in the launch commands already.

        Raises InputError for a manifest that can't be read or starts no engine, and where `at` picks none.
        """
        asked = placed.asked
        if asked.command is not None:
            return self._from_command(placed)
        if asked.manifest is not None:
            return self._from_manifest(placed)
        hardware = asked.hardware
        gpus = hardware.count if hardware else None
        settings = dict(asked.flags)
        if asked.engine is not None and gpus:
            from kvplan.served import with_ranks

            settings = with_ranks(settings, gpus)
        subject = Subject(
            placed, "", placed.file, placed.line, asked.model, asked.engine, settings,
            gpu=hardware.gpu if hardware else self.given.gpu, gpus=gpus,
        )  # fmt: skip
        if asked.engine is not None:
            from kvplan.engines.native import parallel_from

            parallel = parallel_from(settings)
            subject = replace(subject, ranks=parallel.tensor * parallel.pipeline * parallel.data)
        return [subject], []

    def manifest(self, path: Path, variables: Mapping[str, str]) -> ManifestReading:
        """The reading of one manifest, once for each set of variables."""
        key = (path, tuple(sorted(variables.items())))
        if key not in self._manifests:
            self._manifests[key] = read_manifest(path, variables=variables)
            self.inputs.add(path, *map(Path, self._manifests[key].files))
        return self._manifests[key]

    def _from_manifest(self, placed: Placed) -> tuple[list[Subject], list[Finding]]:
        asked = placed.asked
        assert asked.manifest is not None
        path = self.inputs.inside(asked.manifest, placed, "manifest")
        reading = self.manifest(path, {**self.given.variables, **asked.set})
        commands = list(reading.engines)
        if not commands:
            hints = f" (only {reading.hints[0]})" if reading.hints else ""
            raise InputError(f"{path}: found no command that starts an engine{hints}, expected one")
        if asked.at is not None:
            picked = [found for found in commands if asked.at in found.place or asked.at == str(found.line)]
            if not picked:
                places = [found.place for found in commands]
                raise InputError(
                    f"{placed.file}: line {placed.key_lines['at']}: at: found {show(asked.at)}, expected a part of "
                    f"{', '.join(places[:6])}{did_you_mean(asked.at, places)}"
                )
            commands = picked
        places_left = {found.place for found in commands}
        findings = [
            item for item in reading.findings if not item.place or item.place in places_left or asked.at is None
        ]
        return self._subjects(placed, commands, path, findings)

    def _from_command(self, placed: Placed) -> tuple[list[Subject], list[Finding]]:
        node = placed.command_node
        assert node is not None
        source = self._source(placed.file, {**self.given.variables, **placed.asked.set})
        text, first = script_text(node, source.lines)
        result = read_shell(source, text, first)
        self.inputs.add(*map(Path, source.read))
        if not result.commands:
            raise InputError(
                f"{placed.file}: line {first}: command: found {show(node.text)}, expected a command that starts an "
                "engine, such as vllm serve MODEL"
            )
        many = len(result.commands) > 1
        commands = [replace(found, place=found.place if many else "") for found in result.commands]
        findings = [*result.findings, *find_mistakes(source, commands)]
        return self._subjects(placed, commands, placed.file, findings)

    def _subjects(
        self, placed: Placed, commands: list[FoundCommand], path: Path, findings: list[Finding]
    ) -> tuple[list[Subject], list[Finding]]:
        subjects = [self._subject(placed, found, path) for found in commands]
        return subjects, [*findings, *(item for subject in subjects for item in _gone(subject))]

    def _source(self, path: Path, variables: Mapping[str, str]) -> Source:
        key = (path, tuple(sorted(variables.items())))
        if key not in self._sources:
            self._sources[key] = open_source(path, variables)
        return self._sources[key]

    def _subject(self, placed: Placed, found: FoundCommand, path: Path) -> Subject:
        asked, command, notes = placed.asked, found.command, list[str]()
        model = asked.model or self.given.model or command.model
        if model is None and command.hint is not None and command.hint.model is not None:
            model = command.hint.model
            notes.append(f"the model is taken to be {command.hint.text}: name it with model: to be sure")
        hardware = asked.hardware
        gpu = hardware.gpu if hardware else self.given.gpu or found.accelerator.name
        gpus = (hardware.count if hardware else None) or found.accelerator.count
        unknown = sorted(flag for flag, value in command.flags.items() if value is None)
        if unknown:
            notes.append(f"{', '.join(unknown)}: the value isn't in the file, so the engine's default is taken")
        told = (*command.not_knowable, *found.not_knowable)
        notes += [f"not knowable from the file: {item}" for item in told if not _answered(item, gpu, asked.engine)]
        return Subject(
            placed, found.place, path, found.line, model, _engine(placed, found), command.settings(),
            dict(command.lines), command.ranks, gpu, gpus, tuple(notes), found,
            _larger_weights(asked.model, found), _stored(found),
        )  # fmt: skip

    def load(self, subject: Subject) -> LoadedModel:
        """The model of a subject. Raises InputError without one and UnsupportedArchitectureError."""
        if subject.model is None:
            hint = subject.found.command.model_hint if subject.found else None
            what = f"only {show(hint)}" if hint else "no model"
            raise InputError(
                f"model: found {what} in the launch command, expected model: in the expectation, or --model"
            )
        placed = subject.placed
        key = (subject.model, subject.weights, placed.file.parent)
        if key not in self._models:
            loaded = self._resolve(subject.model, placed)
            if subject.weights and loaded.tensors is None and loaded.spec.quantization is None:
                loaded = LoadedModel(replace(loaded.spec, quantization=WeightQuantization(subject.weights)))
            self._models[key] = loaded
        return self._models[key]

    def _resolve(self, name: str, placed: Placed) -> LoadedModel:
        folder = placed.file.parent
        local = name.endswith(SUFFIXES) or name.startswith(("./", "../", "/")) or (folder / name).exists()
        if local:
            path = self.inputs.inside(name, placed, "model")
            self.inputs.add_model(path)
            return resolve_model(path, model_dir=self.given.model_dir)
        known = registry(self.given.model_dir)
        if self.given.hub and not known.knows(name):
            return resolve_model(name, hub=True)
        return LoadedModel(known.find(name))


def _engine(placed: Placed, found: FoundCommand) -> str:
    """The engine with its version. Raises InputError where the expectation names another engine than the command."""
    from kvplan.engines.registry import canonical_engine

    command, asked = found.command, placed.asked.engine
    version = command.version
    if asked is not None:
        name, _, own = asked.partition("@")
        if canonical_engine(name) != canonical_engine(command.engine):
            raise InputError(
                f"{placed.file}: line {placed.key_lines['engine']}: engine: found {show(asked)} beside a command of "
                f"{command.engine}, expected one engine"
            )
        version = own or version
    return f"{command.engine}@{version}" if version else command.engine


def _gone(subject: Subject) -> list[Finding]:
    """Flags that the release of the expectation has no more, where the command itself tells no release."""
    found, asked = subject.found, subject.placed.asked.engine
    if found is None or found.command.version is not None or asked is None or "@" not in asked:
        return []
    command, number = found.command, version_number(asked.partition("@")[2])
    flags = load_table(command.engine).flags
    said = []
    for name in (*command.flags, *command.ignored):
        flag = flags.get(name)
        if flag is not None and not flag.alive(number):
            spelt = f"--{name.replace('_', '-')}"
            text = f"{spelt} is no argument of {asked}, so the process exits at once"
            said.append(Finding("removed-flag", "error", text, command.lines.get(name, found.line), found.place, name))
    return said


def _stored(found: FoundCommand) -> str:
    """The method of the weights that a GGUF file's name or an 8-bit flag tells, "" where none that is known."""
    hint = found.command.hint
    if found.command.engine in ("vllm", "sglang") and found.command.flags.get("quantization") == "fp8":
        return "fp8"  # a 16-bit checkpoint is stored in 8 bits while it is loaded
    method = f"gguf-{hint.weights.lower().removeprefix('ud-')}" if hint is not None and hint.weights else ""
    return method if method in weight_methods() else ""


def _larger_weights(model: str | None, found: FoundCommand) -> str:
    """Weights that the command stores narrower than the model's own checkpoint, in words; "" where it doesn't."""
    command, hint = found.command, found.command.hint
    stored = hint.weights if hint is not None else None
    if _stored(found) or stored in _PLAIN or (model or "").endswith(SUFFIXES):
        return ""
    if stored is None and command.engine in ("llama.cpp", "ollama") and hint is not None:
        stored = "weights of a GGUF file"
    if stored is None and isinstance(command.flags.get("quantization"), str):
        stored = f"--quantization {command.flags['quantization']}"
    if stored is None:
        return ""
    return (
        f"model: found {stored} in the launch command, whose size isn't known here, and with the checkpoint's own "
        "weights it doesn't hold, expected model: with the .gguf file or the config.json of what is served"
    )


def _answered(item: str, gpu: str | None, engine: str | None) -> bool:
    """Whether the expectation tells what the file leaves open."""
    return ("GPU" in item and gpu is not None) or ("engine version" in item and "@" in (engine or ""))


def context_of(subject: Subject, loaded: LoadedModel, length: int | None) -> int:
    """The length at which analytic figures are asked for."""
    asked = subject.placed.asked
    return length or asked.ctx or loaded.spec.max_context or min(32768, MAX_TOKENS)
