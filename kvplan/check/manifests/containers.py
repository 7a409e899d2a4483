"""A Kubernetes container: its environment, its words, and the engines it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvplan.check.manifests.source import Source, script_text
from kvplan.engines.commands import Word
from kvplan.engines.commands.heads import Head, Shell, start_container
from kvplan.engines.commands.images import find_image, pinned_version
from kvplan.engines.commands.scripts import ScriptReading, read_script_text
from kvplan.engines.commands.shell.interpret import Run
from kvplan.engines.commands.words import split_words
from kvplan.errors import InputError
from kvplan.files import YamlNode

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_SHELL_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_SCIENTIFIC = re.compile(r"[0-9]+(?:\.[0-9]+)?[eE]\+?[0-9]+")


@dataclass(frozen=True)
class ConfigMap:
    """The data of a ConfigMap in the same file: each key's node."""

    name: str
    data: Mapping[str, YamlNode]


@dataclass
class ContainerStart:
    """An engine that a container starts, with the line of the word that starts it."""

    head: Head
    line: int
    condition: str = ""
    repeats: int | None = 1
    version: str | None = None


@dataclass
class ContainerReading:
    """All that one container says."""

    starts: list[ContainerStart] = field(default_factory=list)
    environment: dict[str, Word] = field(default_factory=dict)
    mistakes: list[tuple[str, str, int]] = field(default_factory=list)
    downloads: dict[str, str] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)
    files: dict[str, Word] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_environment(
    container: YamlNode, maps: Mapping[str, ConfigMap], overrides: Mapping[str, Word], given: Mapping[str, Word]
) -> dict[str, Word]:
    """The variables of a container: `given` by its controller, then envFrom, then env, later ones winning."""
    environment = dict(given)
    for source in items_of(container.get("envFrom")):
        prefix = scalar_text(source.get("prefix"))
        reference = source.get("configMapRef")
        held = scalar_text(reference.get("name")) if reference else ""
        if held in maps:
            environment |= {prefix + key: Word(node.text, line=node.line) for key, node in maps[held].data.items()}
    for item in items_of(container.get("env")):
        name = scalar_text(item.get("name"))
        if not name:
            continue
        value = item.get("value")
        word = _expanded(value.text, value.line, environment) if value is not None else _from(item, maps, container)
        if word.unknown and name in overrides:
            word = overrides[name]
        environment[name] = word
    return environment


def _from(item: YamlNode, maps: Mapping[str, ConfigMap], container: YamlNode) -> Word:
    """The value behind `valueFrom`, or what it is called when it is not in the file."""
    name, source = scalar_text(item.get("name")), item.get("valueFrom")
    written = f"$({name})"
    if source is None:
        return Word("", line=item.line)
    reference: YamlNode | None = source.get("configMapKeyRef")
    if reference is not None:
        held, key = scalar_text(reference.get("name")), scalar_text(reference.get("key"))
        if held in maps and key in maps[held].data:
            node = maps[held].data[key]
            return Word(node.text, line=node.line)
        return Word(written, (f"ConfigMap {held}, key {key}, which is not in this file",), line=item.line)
    reference = source.get("secretKeyRef")
    if reference is not None:
        said = (
            f"Secret {scalar_text(reference.get('name'))}, key {scalar_text(reference.get('key'))}, which "
            "is not in this file"
        )
        return Word(written, (said,), line=item.line)
    reference = source.get("resourceFieldRef")
    if reference is not None:
        wanted = scalar_text(reference.get("resource"))
        kind, _, resource = wanted.partition(".")
        resources = container.get("resources")
        table = resources.get(kind) if resources else None
        amount = table.get(resource) if table else None
        if amount is not None:
            return Word(amount.text, line=amount.line)
        return Word(written, (f"the container's {wanted}",), line=item.line)
    reference = source.get("fieldRef")
    said = f"the pod's {scalar_text(reference.get('fieldPath'))}" if reference is not None else f"valueFrom of {name}"
    return Word(written, (said,), line=item.line)


def _expanded(text: str, line: int, environment: Mapping[str, Word], keep: bool = False) -> Word:
    """`$(VAR)` from the container's variables, as Kubernetes does; what nothing sets is left, and named.

    With `keep`, for a script, a reference that can't be resolved stays as it is written.
    """
    unknown: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        found = environment.get(name)
        if found is None:
            unknown.append(f"$({name}), which nothing in the container sets")
            return match.group(0)
        if found.unknown:
            unknown.extend(found.unknown)
            return match.group(0)
        return found.text

    expanded = _REFERENCE.sub(value, text)
    unknown += _TEMPLATE.findall(expanded)
    return Word(expanded, () if keep else tuple(dict.fromkeys(unknown)), line=line)


def read_container(
    source: Source, container: YamlNode, maps: Mapping[str, ConfigMap], given: Mapping[str, Word] | None = None
) -> ContainerReading:
    """The engines that a container starts, and the mistakes in how its words are put together."""
    reading = ContainerReading()
    reading.environment = read_environment(container, maps, source.overrides, given or {})
    image = scalar_text(container.get("image"))
    command, args = container.get("command"), container.get("args")
    entrypoint = _words(source, command, reading, "command") if command is not None and command.value else None
    arguments = _words(source, args, reading, "args") if args is not None else []
    entrypoint, arguments = _one_string(source, entrypoint, arguments, image, reading)
    head = start_container(image, entrypoint, arguments, reading.environment)
    line = next((word.line for word in (*(entrypoint or ()), *arguments) if word.line), container.line)
    missing = _missing_sources(container, maps)
    reading.notes += [f"what {name} sets for the container: it is not in this file" for name in missing]
    if isinstance(head, Head):
        if not (entrypoint or arguments):
            line = container.key_lines.get("image", container.line)
        _start(reading, _without_shell(head, reading), line)
    elif isinstance(head, Shell):
        reading.mistakes += [("entrypoint-repeated", mistake, line) for mistake in head.mistakes]
        _script(source, reading, head, container, closed=not missing)
    _hooks(source, reading, container.get("lifecycle"))
    return reading


def _without_shell(head: Head, reading: ContainerReading) -> Head:
    """A head whose `${VAR}` no shell expands: the engine would get the text itself."""
    words = []
    for word in head.arguments:
        names = _SHELL_VARIABLE.findall(word.text)
        if names and not word.unknown and "{" not in word.text.partition("=")[2][:1]:
            said = (f"{word.text[:60]!r} reaches the engine as it stands: no shell expands ${names[0]} here, "
                    "Kubernetes only "
                    f"$({names[0]})")  # fmt: skip
            reading.mistakes.append(("unexpanded-variable", said, word.line))
            word = replace(word, unknown=tuple(f"${name}, which nothing expands" for name in names))
        words.append(word)
    return replace(head, arguments=tuple(words))


def _start(reading: ContainerReading, head: Head, line: int) -> None:
    reading.mistakes += [("entrypoint-repeated", mistake, line) for mistake in head.mistakes]
    reading.starts.append(ContainerStart(head, line))


def _words(source: Source, node: YamlNode, reading: ContainerReading, field_name: str) -> list[Word]:
    """The elements of `command` or `args`; a number among them is refused by Kubernetes, a string is no list."""
    items = node.value if isinstance(node.value, list) else [node]
    words = []
    for item in items:
        if isinstance(item.value, (dict, list)):
            continue
        bare = item.style == "" and not item.tag and not isinstance(item.value, str) and item.value is not None
        if bare:
            said = f'{field_name} holds {item.text} without quotes: Kubernetes takes strings only, write "{item.text}"'
            reading.mistakes.append(("bare-number", said, item.line))
        if _SCIENTIFIC.fullmatch(item.text.rpartition("=")[2]) and item.style == "" and "." in item.text:
            said = f"{item.text} looks like a number printed by a template: a whole number has no exponent"
            reading.mistakes.append(("scientific-number", said, item.line))
        words.append(_expanded(item.text, item.line, reading.environment))
    return words


def _one_string(
    source: Source, entrypoint: list[Word] | None, arguments: list[Word], image: str, reading: ContainerReading
) -> tuple[list[Word] | None, list[Word]]:
    """A whole command line in one element, and a flag with its value in one element: read as meant, and flagged."""
    if entrypoint is not None and len(entrypoint) == 1 and " " in entrypoint[0].text.strip():
        word = entrypoint[0]
        said = (f"command holds the whole command line in one element: the container looks for a program called "
                f"{word.text[:60]!r}; write a list of words, or a shell with -c")  # fmt: skip
        reading.mistakes.append(("one-string-command", said, word.line))
        entrypoint = _split(word)
    known = find_image(image)
    joined = [word for word in arguments if re.match(r"--?[A-Za-z][\w-]*\s+\S", word.text)]
    shell = entrypoint and any(word.text.endswith("c") and word.text.startswith("-") for word in entrypoint)
    if joined and not shell and (known is not None or entrypoint):
        for word in joined:
            said = (f"{word.text.splitlines()[0][:60]!r} is one argument: the engine sees no flag of that "
                    "name; write the flag "
                    f"and its value as two elements, or with =")  # fmt: skip
            reading.mistakes.append(("joined-argument", said, word.line))
        arguments = [part for word in arguments for part in (_split(word) if word in joined else [word])]
    return entrypoint, arguments


def _split(word: Word) -> list[Word]:
    try:
        parts = split_words(word.text, word.line)
    except InputError:
        parts = [Word(part, line=word.line) for part in word.text.split()]
    return [replace(part, unknown=word.unknown if "$" in part.text else ()) for part in parts]


def _missing_sources(container: YamlNode, maps: Mapping[str, ConfigMap]) -> list[str]:
    """The ConfigMaps and Secrets of envFrom that are not in the file, so that more variables may be set."""
    found = []
    for item in items_of(container.get("envFrom")):
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            reference = item.get(key)
            name = scalar_text(reference.get("name")) if reference else ""
            if name and not (kind == "ConfigMap" and name in maps):
                found.append(f"{kind} {name}")
    return found


def _script(source: Source, reading: ContainerReading, shell: Shell, container: YamlNode, *, closed: bool) -> None:
    """The script that a container gives to a shell. `closed` says that its variables are all in the file."""
    image = scalar_text(container.get("image"))
    node = scalar_at(container, ("args", "command"), shell.script.line)
    text, line = script_text(node, source.lines) if node is not None else (shell.script.text, shell.script.line)
    text = _expanded(text, line, reading.environment, keep=True).text
    found = read_script_text(
        text,
        environment={**reading.environment, **shell.environment},
        overrides=source.overrides,
        closed=closed,
        positional=shell.arguments[1:],
        read_file=source.repository_file,
        line=line,
        name=source.name,
    )
    take_script(reading, found, image, text)


def take_script(reading: ContainerReading, found: ScriptReading, image: str, text: str) -> None:
    """Add what a script starts, downloads and writes."""
    known = find_image(image)
    reading.downloads |= found.downloads
    reading.pulled += found.pulled
    reading.files |= found.files
    reading.notes += [f"what {name} sets: it is not here" for name in found.missing]
    reading.notes += [f"what {run.words[0].text} {run.words[1].text} does" for run in found.other if _joins(run)]
    for launch in found.launches:
        head = launch.head
        if head.image is None and known is not None and known.engine == head.engine:
            head = replace(head, image=known)
        version = pinned_version(text, head.engine)
        reading.starts.append(ContainerStart(head, launch.run.line, launch.run.condition, launch.run.repeats, version))


def _joins(run: Run) -> bool:
    """Whether a command runs another script of the image, which may start something."""
    words = [word.text for word in run.words[:2]]
    return len(words) == 2 and words[0] in ("bash", "sh") and words[1].endswith((".sh", ".bash"))


def _hooks(source: Source, reading: ContainerReading, hook: YamlNode | None) -> None:
    started = hook.get("postStart") if hook else None
    execute = started.get("exec") if started else None
    command = execute.get("command") if execute else None
    texts = [node.text for node in items_of(command)]
    for text in texts[-1:]:
        found = read_script_text(text, environment=reading.environment, closed=True, name=source.name)
        reading.pulled += found.pulled


def scalar_at(mapping: YamlNode, keys: Sequence[str], line: int) -> YamlNode | None:
    """The longest scalar among the elements under `keys` that starts at `line`: a script beside its `sh` and `-c`."""
    nodes = [node for key in keys for node in items_of(mapping.get(key)) if not isinstance(node.value, (dict, list))]
    return max((node for node in nodes if node.line == line), key=lambda node: len(node.text), default=None)


def scalar_text(node: YamlNode | None) -> str:
    """A scalar's text, empty for anything else."""
    return node.text if node is not None and not isinstance(node.value, (dict, list)) else ""


def items_of(node: YamlNode | None) -> list[YamlNode]:
    """The elements of a list, none for anything else."""
    return list(node.value) if node is not None and isinstance(node.value, list) else []


def mapping_text(node: YamlNode | None) -> dict[str, str]:
    """A mapping of names to scalars, as text."""
    if node is None or not isinstance(node.value, dict):
        return {}
    return {key: scalar_text(value) for key, value in node.value.items()}
