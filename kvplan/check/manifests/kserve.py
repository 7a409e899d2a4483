"""KServe: a runtime holds the container, a service the model, the arguments and the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.check.manifests.containers import ConfigMap, items_of, mapping_text, read_container, scalar_text
from kvplan.check.manifests.finish import with_model_path
from kvplan.check.manifests.pods import Pod, find_pods, pod_containers, whole
from kvplan.check.manifests.reading import Finding, FoundCommand
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source
from kvplan.files import YamlNode

if TYPE_CHECKING:
    from kvplan.check.manifests.kubernetes import Document

RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
_TEMPLATE = "{{"


def read_service(
    source: Source, document: Document, documents: Sequence[Document], maps: Mapping[str, ConfigMap], result: Result
) -> None:
    """An InferenceService with the runtime it names, one with containers of its own, or an LLMInferenceService."""
    spec = document.node.get("spec")
    if spec is None:
        return
    if document.kind == "LLMInferenceService":
        _llm_service(source, document, spec, maps, result)
        return
    predictor = spec.get("predictor")
    model = predictor.get("model") if predictor else None
    if predictor is None:
        return
    replicas = _bounds(predictor)
    if model is None:
        _own_containers(source, document, predictor, maps, replicas, result)
        return
    wanted = scalar_text(model.get("runtime"))
    runtime = next((item for item in documents if item.kind in RUNTIMES and item.name == wanted), None)
    stored = scalar_text(model.get("storageUri"))
    if runtime is None:
        missing = (
            wanted or f"the runtime for {scalar_text((model.get('modelFormat') or model).get('name')) or 'the model'}"
        )
        result.notes.append(f"what {document.place} runs: {missing} is not in this file (model {stored or 'unknown'})")
        return
    place = f"{document.place} with {runtime.place}"
    runtime_spec = runtime.node.get("spec")
    for container in items_of(runtime_spec.get("containers") if runtime_spec else None):
        merged = _merged(container, model)
        pod = Pod(_with_pod(predictor, runtime_spec), f"{document.path}.spec.predictor".lstrip("."), (("spec", spec),))
        path = f"{document.path}.spec.predictor.model".lstrip(".")
        for found in _place(source, merged, pod, maps, place, path, replicas, result):
            changed = _stored(found, stored, model)
            result.commands.append(replace(changed, line=model.key_lines.get("args", changed.line)))


def _bounds(predictor: YamlNode) -> int | dict[str, int]:
    low, high = whole(predictor.get("minReplicas"), 1), whole(predictor.get("maxReplicas"), 0)
    return {"min": low, "max": high} if high > low else low


def _with_pod(predictor: YamlNode, runtime: YamlNode | None) -> YamlNode:
    """The pod's fields: the service's, then the runtime's, without the containers."""
    node = YamlNode({}, predictor.line, predictor.column)
    under = runtime.value if runtime is not None and isinstance(runtime.value, dict) else {}
    over = predictor.value if isinstance(predictor.value, dict) else {}
    node.value = {key: value for key, value in {**under, **over}.items() if key != "containers"}
    return node


def _merged(container: YamlNode, model: YamlNode) -> YamlNode:
    """The runtime's container with the service's arguments after its own, and its variables and resources on top."""
    merged = YamlNode({}, container.line, container.column)
    merged.value = dict(container.value)
    merged.key_lines = dict(container.key_lines)
    for key in ("image", "command", "resources"):
        if model.get(key) is not None:
            merged.value[key] = model.get(key)
    for key in ("args", "env", "envFrom", "volumeMounts"):
        both = [*items_of(container.get(key)), *items_of(model.get(key))]
        if both:
            merged.value[key] = YamlNode(both, both[0].line, both[0].column)
    return merged


def _place(
    source: Source,
    container: YamlNode,
    pod: Pod,
    maps: Mapping[str, ConfigMap],
    place: str,
    path: str,
    replicas: int | Mapping[str, int],
    result: Result,
) -> list[FoundCommand]:
    from kvplan.check.manifests.kubernetes import place_starts

    reading = read_container(source, container, maps)
    result.findings += [Finding(rule, "error", text, line, place) for rule, text, line in reading.mistakes]
    return place_starts(source, reading, container, pod, maps, place, path, None, "", 1, replicas)


def _stored(found: FoundCommand, stored: str, model: YamlNode) -> FoundCommand:
    """The command with the model that KServe mounts at /mnt/models."""
    if not stored:
        return found
    name = stored.removeprefix("hf://") if stored.startswith("hf://") else stored
    return replace(
        found, command=with_model_path(found.command, name.partition(":")[0] if "://" not in name else name, name)
    )


def _own_containers(
    source: Source,
    document: Document,
    predictor: YamlNode,
    maps: Mapping[str, ConfigMap],
    replicas: int | Mapping[str, int],
    result: Result,
) -> None:
    for pod in find_pods(predictor, f"{document.path}.spec.predictor".lstrip(".")):
        for container, path in pod_containers(pod):
            name = scalar_text(container.get("name"))
            place = f"{document.place} container {name}".strip()
            result.commands += _place(source, container, pod, maps, place, path, replicas, result)


def read_runtimes(source: Source, documents: Sequence[Document], maps: Mapping[str, ConfigMap], result: Result) -> None:
    """Runtimes that no service of the file names: no deployment of their own, which is said."""
    named = set()
    for document in documents:
        spec = document.node.get("spec")
        predictor = spec.get("predictor") if spec else None
        model = predictor.get("model") if predictor else None
        named.add(scalar_text(model.get("runtime")) if model else "")
    for document in documents:
        if document.kind in RUNTIMES and document.name not in named:
            result.notes.append(f"which services use {document.place}: it starts nothing by itself")


def _llm_service(
    source: Source, document: Document, spec: YamlNode, maps: Mapping[str, ConfigMap], result: Result
) -> None:
    """An LLMInferenceService: `vllm serve /mnt/models`, its parallelism, VLLM_ADDITIONAL_ARGS, and prefill half."""
    model = spec.get("model")
    stored = scalar_text(model.get("uri")) if model else ""
    for part, where in ((spec, "spec"), (spec.get("prefill"), "spec.prefill")):
        template = part.get("template") if part is not None else None
        if part is None or (template is None and part is not spec):
            continue
        place = f"{document.place} prefill" if part is not spec else document.place
        pods = list(find_pods(template, f"{where}.template")) if template is not None else []
        pod = pods[0] if pods else Pod(part, where, (("spec", part),))
        containers = items_of(pod.node.get("containers"))
        container = next((item for item in containers if scalar_text(item.get("name")) == "main"), None)
        container = container or (containers[0] if containers else YamlNode({}, part.line, part.column))
        started = _default_command(container, part)
        replicas = whole(part.get("replicas"), 1)
        for found in _place(source, started, pod, maps, place, where, replicas, result):
            stated = _stored(found, stored, spec)
            line = model.key_lines.get("uri", spec.line) if model is not None else spec.line
            result.commands.append(replace(stated, line=container.key_lines.get("env", line)))


def _default_command(container: YamlNode, part: YamlNode) -> YamlNode:
    """The container with KServe's command where it has none (kserve config/llmisvcconfig/config-llm-template.yaml)."""
    made = YamlNode({}, container.line, container.column)
    made.value = dict(container.value)
    made.key_lines = dict(container.key_lines)
    sizes = mapping_text(part.get("parallelism"))
    flags = {"tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size"}
    words = [word for key, flag in flags.items() if sizes.get(key) for word in (flag, sizes[key])]
    if sizes.get("expert") == "true":
        words.append("--enable-expert-parallel")
    if "command" not in made.value and "args" not in made.value:
        script = f"vllm serve /mnt/models {' '.join(words)} ${{VLLM_ADDITIONAL_ARGS}}"
        made.value["command"] = _list(["/bin/bash", "-c", script], container)
    elif words and "args" in made.value:
        made.value["args"] = YamlNode(
            [*items_of(container.get("args")), *_list(words, container).value], container.line, 1
        )
    return made


def _list(texts: Sequence[str], near: YamlNode) -> YamlNode:
    return YamlNode([YamlNode(text, near.line, near.column, text, '"') for text in texts], near.line, near.column)
