"""Shell scripts, Slurm batch scripts, and the commands inside them: what they start on which devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan.check.manifests.devices import from_name, read_gpu_spec
from kvplan.check.manifests.finish import finish, with_pulled_model
from kvplan.check.manifests.reading import AcceleratorReading, FoundCommand, Surroundings
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import Word
from kvplan.engines.commands.images import Image, find_image, pinned_version
from kvplan.engines.commands.scripts import Launch, ScriptReading, read_script_text

_DIRECTIVE = re.compile(r"#SBATCH\s+--?([\w-]+)(?:[=\s]+(\S+))?")
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus"}


@dataclass(frozen=True)
class Carrier:
    """What a script's carrier says for all that it starts."""

    accelerator: AcceleratorReading | None = None
    replicas: int | Mapping[str, int] | None = 1
    nodes: int = 1
    version_text: str = ""
    place: str = ""
    path: str = ""
    image_environment: Mapping[str, Word] | None = None
    closed: bool = False


def read_shell(source: Source, text: str, line: int = 1, carrier: Carrier | None = None) -> Result:
    """Every engine that a script starts. `line` is the number of its first line in the file."""
    carrier = carrier or Carrier()
    found = read_script_text(
        text,
        environment=carrier.image_environment,
        overrides=source.overrides,
        closed=carrier.closed,
        read_file=source.repository_file,
        line=line,
        name=source.name,
    )
    return _placed(source, found, text, carrier)


def read_sbatch(source: Source) -> Result:
    """A Slurm script: its devices are the nodes times the devices of a node."""
    directives = _directives(source.lines)
    nodes = _number(directives.get("nodes"), 1)
    accelerator = _slurm_devices(directives, nodes)
    given = {
        "SLURM_NNODES": Word(str(nodes)),
        "SLURM_JOB_NUM_NODES": Word(str(nodes)),
        "SLURM_NTASKS": Word(directives.get("ntasks", str(nodes * _number(directives.get("ntasks-per-node"), 1)))),
    }
    if accelerator is not None and accelerator.count is not None:
        given["SLURM_GPUS_ON_NODE"] = Word(str(accelerator.count // max(nodes, 1)))
        given["SLURM_GPUS_PER_NODE"] = given["SLURM_GPUS_ON_NODE"]
    result = read_shell(source, source.text, 1, Carrier(accelerator, 1, nodes, image_environment=given))
    image = find_image(directives.get("container-image", ""))
    if image is not None and image.version is not None:
        result.commands = [with_version(found, image) for found in result.commands]
    return result


def with_version(found: FoundCommand, image: Image) -> FoundCommand:
    """A command without a version of its own, run inside the job's image."""
    if found.command.version is not None or found.command.engine != image.engine:
        return found
    notes = tuple(note for note in found.not_knowable if note != "engine version")
    changed = replace(found, not_knowable=notes, image=image.reference)
    return changed.with_command(version=image.version)


def _directives(lines: Sequence[str]) -> dict[str, str]:
    found = {}
    for row in lines[:200]:
        match = _DIRECTIVE.match(row.strip())
        if match:
            name = match.group(1)
            found[_SHORT.get(name, name)] = match.group(2) or ""
    return found


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 6 else default


def _slurm_devices(directives: Mapping[str, str], nodes: int) -> AcceleratorReading | None:
    for key in ("gres", "gpus-per-node", "gpus", "gpus-per-task"):
        text = directives.get(key)
        if not text or (key == "gres" and "gpu" not in text):
            continue
        spec = next((part for part in text.split(",") if part.startswith("gpu")), text).removeprefix("gpu").lstrip(":")
        name, count = read_gpu_spec(spec) if spec else (None, 1)
        factor = 1 if key == "gpus" else nodes
        if key == "gpus-per-task":
            factor = _number(directives.get("ntasks"), nodes * _number(directives.get("ntasks-per-node"), 1))
        total = (count or 1) * factor
        said = f"{key} {text} x nodes {nodes}" if nodes > 1 else f"{key} {text}"
        wanted = name or directives.get("constraint", "")
        return from_name(wanted, total, said) if wanted else AcceleratorReading(None, total, said)
    return None


def _placed(source: Source, found: ScriptReading, text: str, carrier: Carrier) -> Result:
    result = Result()
    result.notes += [f"what {name} sets: it is not here" for name in found.missing]
    for number, launch in enumerate(found.launches):
        result.commands.append(_launch(source, launch, found, text, carrier, number))
    result.commands = [
        with_pulled_model(item, found.pulled) if item.command.engine == "ollama" else item for item in result.commands
    ]
    if carrier.image_environment and "SLURM_NNODES" in carrier.image_environment:
        result.commands = _one_engine(result.commands, source)
    return result


def _one_engine(commands: list[FoundCommand], source: Source) -> list[FoundCommand]:
    """Starts of the same model with ranks of one group, as in a loop over nodes, are one engine."""
    joint = [found for found in commands if isinstance(found.command.flags.get("nnodes"), int)]
    if len(joint) < 2 or any(found.command.model != joint[0].command.model for found in joint):
        return commands
    return [replace(found, group=f"{source.path.name} engine") if found in joint else found for found in commands]


def _launch(
    source: Source, launch: Launch, found: ScriptReading, text: str, carrier: Carrier, number: int
) -> FoundCommand:
    head, run = launch.head, launch.run
    accelerator = container_devices(head.container_options) or carrier.accelerator
    repeats = run.repeats
    replicas = carrier.replicas
    if run.background and repeats is not None and repeats > 1:
        replicas = repeats * carrier.replicas if isinstance(carrier.replicas, int) else repeats
    written = found.files
    command = finish(
        source,
        head,
        place=f"{carrier.place} line {run.line}".strip() if not carrier.path else carrier.place,
        path=carrier.path or f"line {run.line}",
        line=run.line,
        environment=run.environment,
        read_file=lambda path: written[path].text if path in written else source.repository_file(path),
        version=None
        if head.image is not None and not head.image.moving
        else pinned_version(carrier.version_text or text, head.engine),
        accelerator=accelerator,
        replicas=replicas,
        nodes=carrier.nodes,
        group=f"{carrier.place} line {run.line} {number}".strip(),
        condition=run.condition,
        downloads=found.downloads,
        surroundings=_surroundings(head.container_options, run.background),
    )
    if repeats is None or (repeats > 1 and not run.background):
        notes = (*command.not_knowable, "how often a loop starts it")
        command = replace(command, not_knowable=notes if repeats is None else command.not_knowable)
    return command


def container_devices(options: Sequence[tuple[str, Word]]) -> AcceleratorReading | None:
    """What `docker run` says about devices: `--gpus`, `--device`, `--runtime`."""
    for name, word in sorted(options, key=lambda option: option[0] != "--gpus"):
        text = word.text.strip("\"'")
        if name == "--gpus":
            if text.startswith("device="):
                ids = tuple(part for part in text.removeprefix("device=").split(",") if part)
                return AcceleratorReading(None, len(ids), f'--gpus "{text}"', devices=ids)
            match = re.fullmatch(r"(?:count=)?(\d{1,4})", text)
            return AcceleratorReading(None, int(match.group(1)) if match else None, f"--gpus {text}")
        if name == "--device" and text.startswith(("/dev/kfd", "/dev/dri")):
            return AcceleratorReading(None, None, "--device /dev/kfd and /dev/dri", "unknown: AMD")
        if name == "--device" and text.startswith("nvidia.com/gpu="):
            part = text.removeprefix("nvidia.com/gpu=")
            return AcceleratorReading(None, None if part == "all" else 1, f"--device {text}")
        if name == "--runtime" and text in ("nvidia", "habana"):
            return AcceleratorReading(None, None, f"--runtime {text}")
    return None


def _surroundings(options: Sequence[tuple[str, Word]], background: bool) -> Surroundings:
    """A command in the background, or a detached container, runs beside what follows it."""
    beside = background or any(name in ("-d", "--detach") for name, _ in options)
    wide = any(name == "--shm-size" or (name == "--ipc" and word.text == "host") for name, word in options)
    return Surroundings(None, wide if options else None, "this machine" if beside else None)
