"""YAML files: which kind each is, and templates that have to be rendered first."""

from __future__ import annotations

import re
from dataclasses import replace

from kvplan.check.manifests.compose import is_compose, read_compose
from kvplan.check.manifests.kubernetes import is_kubernetes, read_kubernetes
from kvplan.check.manifests.reading import Finding
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source
from kvplan.check.manifests.tasks import read_task
from kvplan.errors import InputError
from kvplan.files import YamlNode, compose_yaml

# Helm's actions; a bare {{.Name}} inside a string is a field that KServe fills in and no template of this file.
_HELM = re.compile(
    r"\{\{-|-\}\}|\{\{\s*(?:\.Values|\.Release|\.Chart|\.Capabilities|\.Files|include|template|define|if|else|end|range|with|"
    r"toYaml|tpl|default|quote|required|lookup|printf|\$)"
)


def is_template(text: str) -> bool:
    """Whether a text is a Helm template that isn't rendered."""
    return _HELM.search(text) is not None


def refuse_template(name: str, text: str) -> InputError:
    """The error for an unrendered template, with the line of its first action."""
    match = _HELM.search(text)
    line = text.count("\n", 0, match.start()) + 1 if match else 1
    return InputError(
        f"{name}: line {line}: found a Helm template, expected rendered YAML: render it first (helm template "
        "... > rendered.yaml)"
    )


def read_yaml_text(source: Source, text: str, offset: int = 0) -> Result:
    """Every launch command in a YAML text. `offset` is added to its lines when it is a part of the file.

    Raises InputError for a template that isn't rendered and for what is no YAML, with line and column.
    """
    if is_template(text):
        raise refuse_template(source.name, text)
    try:
        nodes = [node for node in compose_yaml(text, source.name) if node.value is not None]
    except InputError as error:
        if "{{" in text:
            raise refuse_template(source.name, text) from None
        raise error
    inner = source if not offset else replace(source, text="\n" * offset + text)
    if offset:
        nodes = [node for node in compose_yaml("\n" * offset + text, source.name) if node.value is not None]
    return _read(inner, nodes)


def kind_of(nodes: list[YamlNode]) -> str:
    """What the file is called in a listing."""
    if is_kubernetes(nodes):
        return "Kubernetes"
    if any(is_compose(node) for node in nodes):
        return "Docker Compose"
    return "YAML"


def _read(source: Source, nodes: list[YamlNode]) -> Result:
    result = Result()
    for node in nodes:
        _flag_duplicates(node, result)
    if is_kubernetes(nodes):
        result.add(read_kubernetes(source, nodes))
        return result
    for number, node in enumerate(nodes):
        path = f"documents[{number}]" if len(nodes) > 1 else ""
        if is_compose(node):
            result.add(read_compose(source, node))
        else:
            result.add(read_task(source, node, path))
    return result


def _flag_duplicates(node: YamlNode, result: Result) -> None:
    seen: set[int] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for key, line in current.duplicates:
            text = f"the key {key} is given twice in one mapping: the last one counts, if the file is accepted at all"
            result.findings.append(Finding("duplicate-key", "warning", text, line))
        if isinstance(current.value, dict):
            stack += current.value.values()
        elif isinstance(current.value, list):
            stack += current.value
