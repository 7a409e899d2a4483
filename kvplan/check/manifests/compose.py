"""Docker Compose: services with their images, words, variables and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvplan.check.manifests.containers import (
    ContainerReading,
    items_of,
    mapping_text,
    scalar_at,
    scalar_text,
    take_script,
)
from kvplan.check.manifests.finish import ReadFile, finish, with_pulled_model
from kvplan.check.manifests.pods import memory_bytes, whole
from kvplan.check.manifests.reading import AcceleratorReading, Finding, FoundCommand, Surroundings
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source, script_text
from kvplan.engines.commands import Word
from kvplan.engines.commands.heads import Head, Shell, start_container
from kvplan.engines.commands.images import find_image
from kvplan.engines.commands.scripts import read_script_text
from kvplan.engines.commands.words import split_words
from kvplan.errors import InputError
from kvplan.files import YamlNode

_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-+?])((?:[^{}]|\{[^{}]*\})*))?\})")
_AMD = ("/dev/kfd", "/dev/dri")


@dataclass
class Interpolation:
    """Compose's own variables: what the user sets, then .env; which fallbacks were taken, which had none."""

    values: Mapping[str, str]
    assumed: list[str] = field(default_factory=list)

    def fill(self, text: str) -> str:
        """`text` with its variables replaced; one that nothing sets and that has no fallback stays as it is."""

        def value(match: re.Match[str]) -> str:
            plain, name, rule, fallback = match.groups()
            key = plain or name
            if key is None:
                return "$"
            found = self.values.get(key)
            if rule in (":-", "-"):
                if found is None or (rule == ":-" and not found):
                    self.assumed.append(key)
                    return self.fill(fallback) if "$" in fallback else fallback
                return found
            if rule in (":+", "+"):
                return fallback if found else ""
            return match.group(0) if found is None else found

        return _VARIABLE.sub(value, text)

    def unset(self, text: str) -> tuple[str, ...]:
        """The variables that still stand in a filled text."""
        return tuple(name for match in _VARIABLE.finditer(text) if (name := match.group(1) or match.group(2)))


def is_compose(node: YamlNode) -> bool:
    """Whether a document is a Compose file: a mapping of services with images, builds or the like."""
    services = node.get("services")
    if services is None or not isinstance(services.value, dict):
        return False
    keys = ("image", "build", "command", "extends", "entrypoint", "provider")
    return any(any(service.get(key) is not None for key in keys) for service in services.value.values())


def read_compose(source: Source, node: YamlNode) -> Result:
    """Every engine that the services of a Compose file start."""
    result = Result()
    values = {**_env_file(source.repository_file(str(source.path.resolve().parent / ".env"))), **source.variables}
    services = node.get("services")
    pulled: list[str] = []
    table: dict[str, YamlNode] = services.value if services is not None else {}
    for name, service in table.items():
        if isinstance(service.value, dict):
            _Service(source, node, name, _extended(service, table, result), Interpolation(values), result).read(pulled)
    result.commands = [
        with_pulled_model(found, pulled) if found.command.engine == "ollama" else found for found in result.commands
    ]
    return result


def _extended(service: YamlNode, table: Mapping[str, YamlNode], result: Result) -> YamlNode:
    """A service with the one it extends under it, when that is in the same file."""
    extends = service.get("extends")
    if extends is None:
        return service
    named = extends.get("service")
    base = table.get(extends.text or scalar_text(named))
    if base is None or base is service or not isinstance(base.value, dict) or extends.get("file") is not None:
        result.notes.append(
            f"what {scalar_text(extends.get('file')) or extends.text} adds to the service that extends it"
        )
        return service
    merged = YamlNode({**base.value, **service.value}, service.line, service.column)
    merged.key_lines = {**base.key_lines, **service.key_lines}
    for key in ("environment",):
        both = [*_pairs(base.get(key)), *_pairs(service.get(key))]
        if both:
            merged.value[key] = YamlNode(both, service.line, service.column)
    return merged


def _pairs(node: YamlNode | None) -> list[YamlNode]:
    """Variables as NAME=value nodes, whichever way they are written."""
    if node is None:
        return []
    if isinstance(node.value, dict):
        return [
            YamlNode(None, child.line, child.column, key if child.value is None else f"{key}={child.text}")
            for key, child in node.value.items()
        ]
    return items_of(node)


def _env_file(text: str | None) -> dict[str, str]:
    """The variables of a .env file."""
    found = {}
    for row in (text or "").split("\n"):
        name, equals, value = row.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#") and name.strip().isidentifier():
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if quoted else value.partition(" #")[0].strip()
    return found


class _Service:
    def __init__(
        self, source: Source, top: YamlNode, name: str, node: YamlNode, variables: Interpolation, result: Result
    ) -> None:
        self.source, self.top, self.name, self.node, self.variables, self.result = (
            source,
            top,
            name,
            node,
            variables,
            result,
        )
        self.place, self.path = f"service {name}", f"services.{name}"
        self.environment: dict[str, Word] = {}

    def read(self, pulled: list[str]) -> None:
        """Add the engines of this service, and to `pulled` the names that an Ollama client in it pulls."""
        image = self.variables.fill(scalar_text(self.node.get("image")))
        self.environment = self._environment()
        entrypoint = self._words("entrypoint")
        command = self._words("command") or []
        head = start_container(image, entrypoint, command, self.environment)
        reading = ContainerReading(environment=self.environment)
        line = self._line(entrypoint, command)
        if isinstance(head, Head):
            reading.mistakes += [("entrypoint-repeated", mistake, line) for mistake in head.mistakes]
            self._add(head, line)
        elif isinstance(head, Shell):
            reading.mistakes += [("entrypoint-repeated", mistake, line) for mistake in head.mistakes]
            self._script(head, image, reading)
            pulled += reading.pulled
        elif entrypoint is None and command and command[0].text in ("pull", "run") and find_image(image):
            pulled += [word.text for word in command[1:2]]
        self.result.findings += [Finding(rule, "error", text, at, self.place) for rule, text, at in reading.mistakes]

    def _line(self, entrypoint: list[Word] | None, command: list[Word]) -> int:
        words = [*(entrypoint or []), *command]
        found = next((word.line for word in words if word.line), 0)
        return found or self.node.key_lines.get("image", self.node.line)

    def _environment(self) -> dict[str, Word]:
        found: dict[str, Word] = {}
        files = self.node.get("env_file")
        for item in items_of(files) or ([files] if files is not None else []):
            path = scalar_text(item) or scalar_text(item.get("path"))
            text = self.source.repository_file(self.variables.fill(path))
            found |= {key: Word(value) for key, value in _env_file(text).items()}
            if text is None:
                self.result.notes.append(f"what {path} sets for {self.place}: it is not here")
        for item in _pairs(self.node.get("environment")):
            name, equals, value = self.variables.fill(item.text).partition("=")
            unset = self.variables.unset(value)
            if not equals:
                value, unset = (
                    self.variables.values.get(name, f"${{{name}}}"),
                    () if name in self.variables.values else (name,),
                )
            found[name] = Word(value, unset, line=item.line)
        return found

    def _words(self, key: str) -> list[Word] | None:
        """The words of `command` or `entrypoint`: a list as it is, a string split without a shell."""
        node = self.node.get(key)
        if node is None or (node.value is None and not node.text):
            return None
        if isinstance(node.value, list):
            return [self._word(item.text, item.line) for item in node.value if not isinstance(item.value, (dict, list))]
        text, line = script_text(node, self.source.lines)
        words: list[Word] = []
        try:
            words = self._split(self.variables.fill(text), line)
        except InputError:
            said = f"{key} has a quote that isn't closed, so Compose refuses the file"
            self.result.findings.append(Finding("open-quote", "error", said, node.line, self.place))
        return words

    def _split(self, text: str, line: int) -> list[Word]:
        """Words of a string with their lines."""
        return [self._word(word.text, word.line, filled=True) for word in split_words(text, line)]

    def _word(self, text: str, line: int, filled: bool = False) -> Word:
        value = text if filled else self.variables.fill(text)
        return Word(value, self.variables.unset(value), line=line)

    def _script(self, shell: Shell, image: str, reading: ContainerReading) -> None:
        text, line = shell.script.text, shell.script.line
        item = scalar_at(self.node, ("command", "entrypoint"), shell.script.line)
        if item is not None:
            text, line = script_text(item, self.source.lines)
            text = self.variables.fill(text)
        found = read_script_text(
            text,
            environment={**self.environment, **shell.environment},
            overrides=self.source.overrides,
            closed=True,
            positional=shell.arguments[1:],
            read_file=self._reader(),
            line=line,
            name=self.source.name,
        )
        take_script(reading, found, image, text)
        self.result.notes += reading.notes
        for start in reading.starts:
            self._add(start.head, start.line, start.condition, start.version, reading)

    def _add(
        self,
        head: Head,
        line: int,
        condition: str = "",
        version: str | None = None,
        reading: ContainerReading | None = None,
    ) -> None:
        written = reading.files if reading else {}
        reader = self._reader()
        found = finish(
            self.source,
            head,
            place=self.place,
            path=self.path,
            line=line,
            environment=self.environment,
            read_file=lambda path: written[path].text if path in written else reader(path),
            version=version,
            accelerator=self._devices(),
            replicas=self._replicas(),
            condition=condition or self._profiles(),
            downloads=reading.downloads if reading else None,
            surroundings=self._surroundings(),
        )
        self.result.commands.append(self._defaults(found))

    def _defaults(self, found: FoundCommand) -> FoundCommand:
        names = list(dict.fromkeys(self.variables.assumed))
        if not names:
            return found
        said = f"whether a .env file changes {', '.join(names)}"
        text = f"values are Compose fallbacks: {', '.join(names)} may be set by the shell or a .env file"
        self.result.findings.append(Finding("compose-defaults", "note", text, found.line, self.place))
        return replace(found, not_knowable=(*found.not_knowable, said))

    def _reader(self) -> ReadFile:
        """Files of the container: bind mounts, and configs of this file."""
        mounts: dict[str, str] = {}
        for item in items_of(self.node.get("volumes")):
            text = self.variables.fill(item.text) if item.text else ""
            parts = text.split(":")
            if len(parts) > 1:
                mounts[parts[1].rstrip("/")] = parts[0]
            elif item.get("target") is not None:
                mounts[scalar_text(item.get("target")).rstrip("/")] = scalar_text(item.get("source"))
        inline = self._configs()

        def read(path: str) -> str | None:
            if path in inline:
                return inline[path]
            for target, origin in mounts.items():
                if path == target or path.startswith(f"{target}/"):
                    return self.source.repository_file(origin + path[len(target) :])
            return self.source.repository_file(path) if not path.startswith("/") else None

        return read

    def _configs(self) -> dict[str, str]:
        found: dict[str, str] = {}
        table = self.top.get("configs")
        for item in items_of(self.node.get("configs")):
            name = item.text or scalar_text(item.get("source"))
            target = scalar_text(item.get("target")) or f"/{name}"
            config = table.get(name) if table else None
            if config is not None:
                content = scalar_text(config.get("content"))
                text = content or self.source.repository_file(scalar_text(config.get("file")))
                if text is not None:
                    found[target] = self.variables.fill(text)
        return found

    def _profiles(self) -> str:
        """The profiles without which the service doesn't run."""
        names = [item.text for item in items_of(self.node.get("profiles"))]
        return f"profile {' or '.join(names)}" if names else ""

    def _replicas(self) -> int:
        deploy = self.node.get("deploy")
        return whole(deploy.get("replicas") if deploy else None, whole(self.node.get("scale"), 1))

    def _devices(self) -> AcceleratorReading | None:
        deploy = self.node.get("deploy")
        resources = deploy.get("resources") if deploy else None
        reservations = resources.get("reservations") if resources else None
        listed = items_of(reservations.get("devices") if reservations else None)
        for device in [*listed, *items_of(self.node.get("gpus"))]:
            filled = [self.variables.fill(item.text) for item in items_of(device.get("device_ids"))]
            ids = tuple(part.strip() for text in filled for part in text.split(",") if part.strip())
            if ids:
                return AcceleratorReading(None, len(ids), f"device_ids {', '.join(ids)}", devices=ids)
            count = self.variables.fill(scalar_text(device.get("count")))
            said = f"devices count {count}" if count.isdecimal() else f"count: {count or 'all'}"
            return AcceleratorReading(None, int(count) if count.isdecimal() and len(count) < 5 else None, said)
        if scalar_text(self.node.get("gpus")):
            return AcceleratorReading(None, None, f"gpus: {scalar_text(self.node.get('gpus'))}")
        named = [item.text.partition(":")[0] for item in items_of(self.node.get("devices"))]
        if any(name.startswith(_AMD) for name in named):
            return AcceleratorReading(None, None, " and ".join(n for n in named if n.startswith(_AMD)), "unknown: AMD")
        runtime = scalar_text(self.node.get("runtime"))
        return AcceleratorReading(None, None, f"runtime: {runtime}") if runtime == "nvidia" else None

    def _surroundings(self) -> Surroundings:
        deploy = self.node.get("deploy")
        resources = deploy.get("resources") if deploy else None
        limits = mapping_text(resources.get("limits") if resources else None)
        text = limits.get("memory") or scalar_text(self.node.get("mem_limit"))
        limit = (
            memory_bytes(re.sub(r"([kmgKMG])[bB]?$", lambda match: match.group(1).upper() + "i", text))
            if text
            else None
        )
        wide = scalar_text(self.node.get("ipc")) == "host" or self.node.get("shm_size") is not None
        return Surroundings(limit, wide, "this machine")
