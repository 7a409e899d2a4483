"""Files that name engines in fields of their own: production-stack values, KubeAI models, llama-swap's commands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.check.manifests.containers import items_of, mapping_text, scalar_text
from kvplan.check.manifests.devices import from_labels, from_name, named_device
from kvplan.check.manifests.finish import finish, with_model_path
from kvplan.check.manifests.pods import memory_bytes, whole
from kvplan.check.manifests.reading import AcceleratorReading, Finding, Surroundings
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import Word
from kvplan.engines.commands.heads import Head, find_head
from kvplan.engines.commands.images import find_image
from kvplan.engines.commands.words import split_words
from kvplan.errors import InputError
from kvplan.files import YamlNode

if TYPE_CHECKING:
    from kvplan.check.manifests.kubernetes import Document

_MACRO = re.compile(r"\$\{([\w.-]+)\}")
_ENGINES = {"VLLM": "vllm", "OLLAMA": "ollama"}
# Fields of vllmConfig that aren't their flag in another case (vllm-project/production-stack helm/templates).
_FIELDS = {"v1": None, "v0": None, "extraArgs": None, "enablePrefixCaching": "enable-prefix-caching",
           "enableChunkedPrefill": "enable-chunked-prefill"}  # fmt: skip


def read_production_stack(source: Source, node: YamlNode) -> Result:
    """The values of vllm-project/production-stack: one engine for each entry of servingEngineSpec.modelSpec."""
    result = Result()
    spec = node.get("servingEngineSpec")
    for index, model in enumerate(items_of(spec.get("modelSpec") if spec else None)):
        name = scalar_text(model.get("name"))
        place, path = f"modelSpec {name}".strip(), f"servingEngineSpec.modelSpec[{index}]"
        image = find_image(f"{scalar_text(model.get('repository'))}:{scalar_text(model.get('tag'))}")
        head = Head("vllm", tuple(_vllm_words(model)), ("vllm", "serve"), True, image)
        memory = memory_bytes(scalar_text(model.get("limitMemory")))
        found = finish(
            source,
            head,
            place=place,
            path=path,
            line=model.key_lines.get("vllmConfig", model.line),
            environment=_listed(model.get("env")),
            accelerator=_stack_devices(model, result, place),
            replicas=whole(model.get("replicaCount"), 1),
            surroundings=Surroundings(memory, None),
        )
        result.commands.append(found)
    return result


def _vllm_words(model: YamlNode) -> list[Word]:
    """The arguments that the chart makes of an entry."""
    url = model.get("modelURL")
    words = [Word(url.text, line=url.line)] if url is not None else []
    config = model.get("vllmConfig")
    fields = config.value if config is not None and isinstance(config.value, dict) else {}
    for key, node in fields.items():
        flag = _FIELDS.get(key, re.sub(r"(?<!^)([A-Z])", r"-\1", key).lower())
        if flag is None:
            continue
        if isinstance(node.value, bool):
            words.append(Word(f"--{flag}" if node.value else f"--no-{flag}", line=node.line))
        elif isinstance(node.value, (dict, list)):
            words += [Word(f"--{flag}", line=node.line), Word(json.dumps(node.plain(), default=str), line=node.line)]
        else:
            words += [Word(f"--{flag}", line=node.line), Word(node.text, line=node.line)]
    extra = config.get("extraArgs") if config is not None else None
    return words + [Word(item.text, line=item.line) for item in items_of(extra)]


def _listed(node: YamlNode | None) -> dict[str, Word]:
    return {
        scalar_text(item.get("name")): Word(scalar_text(item.get("value")), line=item.line)
        for item in items_of(node)
        if item.get("value") is not None
    }


def _stack_devices(model: YamlNode, result: Result, place: str) -> AcceleratorReading | None:
    asked = scalar_text(model.get("requestGPU"))
    count = int(asked) if asked.isdecimal() and len(asked) < 5 else None
    if asked and count is None:
        line = model.key_lines.get("requestGPU", model.line)
        said = f"requestGPU {asked} is no whole number: the chart drops it, and no GPU is requested"
        result.findings.append(Finding("fractional-device", "error", said, line, place))
    labels: dict[str, str] = {}
    for term in items_of(model.get("nodeSelectorTerms")):
        for expression in items_of(term.get("matchExpressions")):
            values = items_of(expression.get("values"))
            if len(values) == 1:
                labels[scalar_text(expression.get("key"))] = values[0].text
    return from_labels(labels, count) or AcceleratorReading(None, count, f"requestGPU {asked}" if asked else None)


def read_kubeai_model(source: Source, document: Document, result: Result) -> None:
    """A KubeAI Model: the engine by name, its arguments, and a resource profile for the devices."""
    spec = document.node.get("spec")
    engine = _ENGINES.get(scalar_text(spec.get("engine")).upper()) if spec else None
    if spec is None or engine is None:
        return
    url = scalar_text(spec.get("url"))
    words = [Word(item.text, line=item.line) for item in items_of(spec.get("args"))]
    variables = {name: Word(value) for name, value in mapping_text(spec.get("env")).items()}
    profile, _, number = scalar_text(spec.get("resourceProfile")).rpartition(":")
    count = int(number) if number.isdecimal() and len(number) < 5 else None
    low, high = whole(spec.get("minReplicas"), 0), whole(spec.get("maxReplicas"), 0)
    found = finish(
        source,
        Head(engine, tuple(words), (engine,), False),
        place=document.place,
        path=f"{document.path}.spec".lstrip("."),
        line=spec.key_lines.get("args", spec.line),
        environment=variables,
        accelerator=_profile(profile, count),
        replicas={"min": low, "max": high} if high > low else max(low, 1),
    )
    model = url.removeprefix("hf://")
    result.commands.append(replace(found, command=with_model_path(found.command, model, model)) if model else found)


def _profile(profile: str, count: int | None) -> AcceleratorReading | None:
    """`nvidia-gpu-l4` or `nvidia-gpu-a100-80gb`: the device stands after the maker."""
    name = re.sub(r"^(nvidia|amd)-gpu-", "", profile)
    if not profile or named_device(name) is None:
        return AcceleratorReading(None, count, f"resourceProfile {profile}") if profile else None
    return from_name(name, count, f"resourceProfile {profile}:{count}")


def is_llama_swap(node: YamlNode) -> bool:
    """Whether a document is a llama-swap configuration."""
    models = node.get("models")
    entries = models.value.values() if models is not None and isinstance(models.value, dict) else ()
    return any(scalar_text(entry.get("cmd")) for entry in entries)


def read_llama_swap(source: Source, node: YamlNode) -> Result:
    """llama-swap: each model's `cmd` is one command line over any number of lines, with macros and comments."""
    result = Result()
    shared = mapping_text(node.get("macros"))
    models = node.get("models")
    table: Mapping[str, YamlNode] = models.value if models is not None and isinstance(models.value, dict) else {}
    for name, model in table.items():
        command = model.get("cmd")
        if command is None or not command.text:
            continue
        macros = {**shared, **mapping_text(model.get("macros")), "MODEL_ID": name, **source.variables}
        first = command.line + 1 if command.style in ("|", ">") else command.line
        try:
            words = _swap_words(command.text, first, macros)
        except InputError as error:
            result.notes.append(f"what the model {name} starts: {error}")
            continue
        head = find_head(words)
        if not isinstance(head, Head):
            continue
        given = {
            key: Word(value) for key, _, value in (item.text.partition("=") for item in items_of(model.get("env")))
        }
        line = next((word.line for word in words if word.line), first)
        path = f"models.{name}.cmd"
        result.commands.append(finish(source, head, place=f"model {name}", path=path, line=line, environment=given))
    return result


def _swap_words(text: str, line: int, macros: Mapping[str, str]) -> list[Word]:
    rows = ["" if row.lstrip().startswith("#") else row for row in text.split("\n")]
    words = []
    for word in split_words("\n".join(rows), line):
        filled = _filled(word.text, macros, 0)
        unknown = tuple(match.group(1) for match in _MACRO.finditer(filled))
        if filled != word.text and " " in filled.strip() and _MACRO.fullmatch(word.text):
            words += [
                Word(part.text, unknown if "${" in part.text else (), line=word.line) for part in split_words(filled)
            ]
        else:
            words.append(Word(filled, unknown, line=word.line))
    return words


def _filled(text: str, macros: Mapping[str, str], depth: int) -> str:
    if depth > 10 or len(text) > 100_000:
        return text
    filled = _MACRO.sub(lambda match: macros.get(match.group(1), match.group(0)), text)
    return filled if filled == text else _filled(filled, macros, depth + 1)
