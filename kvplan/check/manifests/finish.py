"""From a head in a carrier to a FoundCommand: the command, its devices, its slots and what can't be known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvplan.check.manifests.devices import visible_devices
from kvplan.check.manifests.reading import AcceleratorReading, FoundCommand, Surroundings
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import LaunchCommand, Word, build_command
from kvplan.engines.commands.heads import Head
from kvplan.engines.commands.hints import hint_from_file, hint_from_ollama

ReadFile = Callable[[str], "str | None"]


def finish(
    source: Source,
    head: Head,
    *,
    place: str,
    path: str,
    line: int,
    environment: Mapping[str, Word] | None = None,
    read_file: ReadFile | None = None,
    version: str | None = None,
    accelerator: AcceleratorReading | None = None,
    replicas: int | Mapping[str, int] | None = 1,
    nodes: int = 1,
    group: str = "",
    condition: str = "",
    downloads: Mapping[str, str] | None = None,
    surroundings: Surroundings | None = None,
) -> FoundCommand:
    """Build the command of `head` and put it in its place."""
    command = build_command(head, env=environment, version=version, read_file=read_file or source.repository_file)
    command = _downloaded(command, head, downloads or {})
    notes: list[str] = []
    reading = _devices(command, accelerator)
    if reading.name is None:
        notes.append("GPU model" if reading.count is not None else "GPU model and count")
    elif reading.certainty.startswith("inferred: "):
        notes.append(f"exact device: {reading.certainty.removeprefix('inferred: ')}")
    if command.hint is not None and command.hint.weights and command.engine == "llama.cpp":
        notes.append("true weights: a name is a hint, the GGUF header decides")
    if command.engine == "ollama" and command.flags.get("context_length") is None:
        notes.append("context length: not set, and Ollama picks 4k, 32k or 256k by the memory it finds")
    if command.version is None:
        moving = head.image is not None and head.image.moving
        notes.append(
            f"engine version behind the image {head.image.reference}" if moving and head.image else "engine version"
        )
    if command.assumed:
        notes.append(f"whether {', '.join(command.assumed)} is set by the caller: its fallback was taken")
    per_slot, total = _slots(command)
    return FoundCommand(
        place=place,
        path=path,
        line=line,
        command=command,
        accelerator=reading,
        replicas=replicas,
        nodes=nodes,
        group=group or f"{place} line {line}",
        image=head.image.reference if head.image else None,
        context_per_slot=per_slot,
        context_total=total,
        not_knowable=tuple(notes),
        condition=condition,
        surroundings=surroundings or Surroundings(),
    )


def _devices(command: LaunchCommand, stated: AcceleratorReading | None) -> AcceleratorReading:
    """What the carrier says; where it says no count, the variable that picks devices."""
    picked = visible_devices(command.environment)
    reading = stated or AcceleratorReading()
    if picked is None:
        if reading.count is None and command.ranks > 1:
            return replace(reading, certainty=f"{reading.certainty}; at least {command.ranks} by the ranks it starts")
        return reading
    name, ids = picked
    said = f"{name}={','.join(ids)}"
    if reading.stated_as is None:
        return replace(reading, count=len(ids), stated_as=said, devices=ids)
    shown = reading.stated_as if name in reading.stated_as else f"{reading.stated_as}; {said}"
    return replace(reading, count=reading.count or len(ids), stated_as=shown, devices=reading.devices or ids)


def _slots(command: LaunchCommand) -> tuple[int | None, int | None]:
    """Tokens for one slot (llama.cpp splits its context) and for all of them (Ollama multiplies it)."""
    flags = command.flags
    if command.engine == "llama.cpp":
        context, slots = flags.get("ctx_size"), flags.get("parallel")
        if isinstance(context, int) and isinstance(slots, int) and slots > 0 and context > 0:
            return context if flags.get("kv_unified") is True else context // slots, None
    if command.engine == "ollama":
        context, slots = flags.get("context_length"), flags.get("num_parallel", 1)
        if isinstance(context, int) and isinstance(slots, int) and slots > 0:
            return None, context * slots
    return None, None


def _downloaded(command: LaunchCommand, head: Head, downloads: Mapping[str, str]) -> LaunchCommand:
    """The model behind a folder that the same file downloads it into."""
    if command.model is not None or not downloads:
        return command
    texts = [word.text for word in head.arguments]
    for text in texts:
        value = (text.partition("=")[2] if text.startswith("-") else text).rstrip("/")
        if value in downloads:
            notes = tuple(note for note in command.not_knowable if not note.startswith("model:"))
            return replace(command, model=downloads[value], model_hint=None, hint=None, not_knowable=notes)
    return command


def with_model_path(command: LaunchCommand, path: str, model: str) -> LaunchCommand:
    """A command whose model is a mount path, with the model that the carrier mounts there."""
    notes = tuple(note for note in command.not_knowable if not note.startswith("model:"))
    if "/" in model and not model.startswith(("/", ".")) and "://" not in model:
        return replace(command, model=model, model_hint=None, hint=None, not_knowable=notes)
    hint = hint_from_file(model)
    said = f"model: {model} is stored elsewhere, what lies there is not in the file"
    return replace(command, model=None, model_hint=hint.text, hint=hint, not_knowable=(*notes, said))


def with_pulled_model(found: FoundCommand, names: list[str]) -> FoundCommand:
    """An Ollama server with the model that a client in the same file pulls: a hint, clients may load any other."""
    if not names or found.command.model_hint is not None:
        return found
    hint = hint_from_ollama(names[0])
    said = "which models clients will load: the pull only stores one, any request may load another"
    own = "a request may send its own num_ctx"
    changed = found.with_command(model_hint=hint.text, hint=hint)
    return replace(changed, not_knowable=(*changed.not_knowable, said, own))
