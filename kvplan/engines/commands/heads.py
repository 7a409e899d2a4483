"""Which engine a command starts: past wrappers, interpreters and `docker run`, to the program and its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.engines.commands.images import Image, catalog, find_image
from kvplan.engines.commands.words import Word

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Head:
    """A start of an engine: the arguments after the program, and what stood around it.

    `positional` says that a word without a flag names the model. `environment` holds the assignments before the command
    and the variables given to a container; `container_options` are those of `docker run` with their values. `mistakes`
    are faults of how the words are put together.
    """

    engine: str
    arguments: tuple[Word, ...]
    program: tuple[str, ...]
    positional: bool
    image: Image | None = None
    environment: dict[str, Word] = field(default_factory=dict)
    container_options: tuple[tuple[str, Word], ...] = ()
    wrapper_options: tuple[tuple[str, Word], ...] = ()
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shell:
    """A shell that is given a script as text."""

    script: Word
    arguments: tuple[Word, ...]
    environment: dict[str, Word]
    image: Image | None = None
    mistakes: tuple[str, ...] = ()


def find_head(words: Sequence[Word]) -> Head | Shell | None:
    """The engine (or shell with a script) that `words` start, None when they start something else."""
    environment: dict[str, Word] = {}
    wrapped: list[tuple[str, Word]] = []
    index = 0
    for _ in range(len(words) + 1):
        while index < len(words) and _ASSIGNMENT.match(words[index].text):
            name, _, value = words[index].text.partition("=")
            environment[name] = words[index].with_text(value)
            index += 1
        if index >= len(words):
            return None
        name = _base(words[index].text)
        if name in catalog()["wrappers"]:
            index = _unwrap(words, index, wrapped)
            continue
        break
    rest = words[index:]
    found = _shell(rest, environment) or _container(rest, environment) or _engine(rest, environment)
    if isinstance(found, Head):
        return replace(found, wrapper_options=(*wrapped, *found.wrapper_options))
    return found


def _base(text: str) -> str:
    return text.rpartition("/")[2]


def _unwrap(words: Sequence[Word], index: int, wrapped: list[tuple[str, Word]]) -> int:
    """Past one wrapper, its options and its own words, to what it starts."""
    name = _base(words[index].text)
    rule = catalog()["wrappers"][name] or {}
    values, skip = rule.get("values", ()), rule.get("skip", 0)
    index += 1
    while index < len(words):
        text = words[index].text
        if text == "--":
            return index + 1
        if text.startswith("-") and len(text) > 1:
            option, equals, value = text.partition("=")
            if text in values and index + 1 < len(words):
                wrapped.append((f"{name} {text}", words[index + 1]))
                index += 2
            else:
                wrapped.append((f"{name} {option}", words[index].with_text(value) if equals else Word("")))
                index += 1
        elif skip:
            skip -= 1
            index += 1
        else:
            break
    return index


def _shell(words: Sequence[Word], environment: dict[str, Word]) -> Head | Shell | None:
    name = _base(words[0].text)
    if name in catalog()["hands_on"]:
        return _handed_on(words, catalog()["hands_on"][name], environment)
    if name not in catalog()["shells"]:
        return None
    for index, word in enumerate(words[1:], 1):
        if not word.text.startswith("-") and name != "su":
            return None
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word.text) and index + 1 < len(words):
            rest = list(words[index + 1 :])
            while rest and rest[0].text in ("-o", "pipefail", "--"):
                rest.pop(0)
            return Shell(rest[0], tuple(rest[1:]), environment) if rest else None
    return None


def _handed_on(words: Sequence[Word], rule: Mapping[str, Any], environment: dict[str, Word]) -> Head | Shell | None:
    """The script in the last words of `ssh host ...`, `tmux new -d ...` or `kubectl exec pod -- ...`."""
    if rule.get("last"):
        script = words[-1] if len(words) > 1 and " " in words[-1].text else None
        return Shell(script, (), environment) if script is not None else None
    if "after" in rule:
        places = [index for index, word in enumerate(words) if word.text == rule["after"]]
        rest = list(words[places[0] + 1 :]) if places else []
        return _shell(rest, environment) or _engine(rest, environment) if rest else None
    rest = list(words[1:])
    skip = rule.get("skip", 0)
    while rest and (skip or rest[0].text.startswith("-")):
        option = rest.pop(0)
        if option.text in rule.get("values", ()) and rest:
            rest.pop(0)
        elif not option.text.startswith("-"):
            skip -= 1
    if not rest:
        return None
    unknown = tuple(name for word in rest for name in word.unknown)
    return Shell(Word(" ".join(word.text for word in rest), unknown, (), rest[0].line), (), environment)


def _engine(words: Sequence[Word], environment: dict[str, Word]) -> Head | None:
    name = _base(words[0].text)
    rest = words[1:]
    if re.fullmatch(r"(python|pypy)[0-9.]*", name):
        return _module(words, environment)
    if name in catalog()["programs"]:
        return start_program(name, rest, (words[0].text,), environment)
    if name.startswith("llama-server") or (name == "server" and "llama" in words[0].text):
        return Head("llama.cpp", tuple(rest), (words[0].text,), False, environment=environment)
    return None


def _module(words: Sequence[Word], environment: dict[str, Word]) -> Head | None:
    for index, word in enumerate(words[1:], 1):
        if word.text in ("-m", "--module") and index + 1 < len(words):
            module, rest = words[index + 1].text, words[index + 2 :]
            before = tuple(item.text for item in words[: index + 2])
            if module in catalog()["module_programs"]:
                return start_program(catalog()["module_programs"][module], rest, before, environment)
            engine = catalog()["modules"].get(module)
            if engine is None:
                return None
            return Head(engine, tuple(rest), before, engine == "tensorrt-llm", environment=environment)
        if not word.text.startswith("-"):
            # A script such as /usr/local/bin/vllm is the program itself.
            name = _base(word.text)
            known = name in catalog()["programs"]
            return start_program(name, words[index + 1 :], (words[0].text, word.text), environment) if known else None
    return None


def start_program(
    name: str, rest: Sequence[Word], before: tuple[str, ...], environment: dict[str, Word]
) -> Head | None:
    """The server that program `name` starts with `rest`; None for its other sub-commands."""
    entry = catalog()["programs"][name]
    serve = entry.get("serve", [])
    given = [word.text for word in rest[: len(serve)]]
    engine = entry["engine"]
    if "ik_llama" in before[0]:
        engine = "llama.cpp"
    if given == serve:
        positional = engine in ("vllm", "sglang", "tensorrt-llm", "lmdeploy")
        return Head(engine, tuple(rest[len(serve) :]), (*before, *serve), positional, environment=environment)
    if (
        entry.get("default")
        and given
        and given[0] not in ("disaggregated", "mm_embedding_serve", "disaggregated_mpi_worker")
    ):
        return Head(engine, tuple(rest), before, True, environment=environment)
    return None


def _container(words: Sequence[Word], environment: dict[str, Word]) -> Head | Shell | None:
    tool = _base(words[0].text)
    if tool in catalog()["image_tools"]:
        return _image_tool(words, environment)
    if tool not in catalog()["container_tools"]:
        return None
    index = 1
    if "exec" in [word.text for word in words[1:3]]:
        return _image_tool(words[1:], environment)
    while index < len(words) and words[index].text not in catalog()["container_tools"][tool]:
        if not words[index].text.startswith("-") and words[index].text != "container":
            return None
        index += 1
    options: list[tuple[str, Word]] = []
    index += 1
    while index < len(words) and words[index].text.startswith("-"):
        name, equals, value = words[index].text.partition("=")
        if equals:
            options.append((name, words[index].with_text(value)))
        elif name in catalog()["container_options_with_value"] and index + 1 < len(words):
            index += 1
            options.append((name, words[index]))
        elif not name.startswith("--") and len(name) > 2 and name[:2] in ("-e", "-v", "-p", "-u", "-w", "-m"):
            options.append((name[:2], words[index].with_text(name[2:])))
        else:
            options.append((name, Word("")))
        index += 1
    if index >= len(words):
        return None
    given = dict(environment)
    for name, word in options:
        if name in ("-e", "--env"):
            key, equals, value = word.text.partition("=")
            given[key] = word.with_text(value) if equals else Word(f"${key}", (key,))
    entry = next((word for name, word in reversed(options) if name == "--entrypoint"), None)
    entrypoint = None if entry is None else [entry] if entry.text else []
    found = start_container(words[index].text, entrypoint, list(words[index + 1 :]), given)
    return replace(found, container_options=tuple(options)) if isinstance(found, Head) else found


def _image_tool(words: Sequence[Word], environment: dict[str, Word]) -> Head | Shell | None:
    """singularity and its kin: the first words that start an engine after the image."""
    for index in range(1, len(words)):
        found = _shell(words[index:], environment) or _engine(words[index:], environment)
        if found is not None:
            return found
    return None


def start_container(
    reference: str, entrypoint: Sequence[Word] | None, arguments: Sequence[Word], environment: dict[str, Word]
) -> Head | Shell | None:
    """What a container starts: `entrypoint` (None: the image's own) followed by `arguments`.

    Where the image's own program is the engine, arguments that name it again are a mistake, and read past it.
    """
    image = find_image(reference)
    own = image is not None and entrypoint is None
    words = list(entrypoint or ()) + list(arguments)
    if own and image is not None and image.entrypoint:
        return _own_entrypoint(image, list(arguments), environment)
    if own and image is not None and image.tools and arguments and arguments[0].text in ("--server", "-s"):
        return Head("llama.cpp", tuple(arguments[1:]), ("llama-server",), False, image, environment)
    found = find_head(words) if words else None
    if found is None:
        return None
    if isinstance(found, Shell):
        return replace(found, environment={**environment, **found.environment}, image=image)
    if found.image is not None:
        return None
    return replace(found, image=image, environment={**environment, **found.environment})


def _own_entrypoint(image: Image, arguments: list[Word], environment: dict[str, Word]) -> Head | Shell | None:
    words = [Word(text) for text in image.entrypoint]
    if not arguments:
        arguments = [Word(text) for text in image.command]
    repeated = find_head(arguments) if arguments and not arguments[0].text.startswith("-") else None
    if isinstance(repeated, Shell):
        environment = {**environment, **repeated.environment}
        return replace(repeated, environment=environment, image=image, mistakes=(_repeats(image, arguments[0].text),))
    if repeated is not None and repeated.engine == image.engine and image.engine != "ollama":
        return replace(repeated, image=image, environment=environment, mistakes=(_repeats(image, arguments[0].text),))
    if arguments and arguments[0].text == "serve" and image.engine == "vllm":
        head = Head("vllm", tuple(arguments[1:]), image.entrypoint, True, image, environment)
        return replace(head, mistakes=(_repeats(image, "serve"),))
    found = find_head([*words, *arguments])
    if isinstance(found, Head):
        return replace(found, image=image, environment=environment)
    return None


def _repeats(image: Image, word: str) -> str:
    started = " ".join(image.entrypoint)
    return (
        f"the image {image.reference} starts {started!r} by itself, so {word!r} becomes an argument of it: leave it out"
    )
