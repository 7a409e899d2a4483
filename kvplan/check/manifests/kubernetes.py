"""Kubernetes objects of any kind: whatever holds containers, with the devices, copies and files around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan.check.manifests.containers import ConfigMap, ContainerReading, items_of, read_container, scalar_text
from kvplan.check.manifests.finish import ReadFile, finish, with_pulled_model
from kvplan.check.manifests.pods import (
    Pod,
    find_pods,
    group_devices,
    group_variables,
    pod_containers,
    pod_devices,
    surroundings,
    whole,
)
from kvplan.check.manifests.reading import Finding, FoundCommand
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.source import Source
from kvplan.engines.commands import Word
from kvplan.files import YamlNode

_SEPARATE = frozenset(
    {"ServingRuntime", "ClusterServingRuntime", "RayService", "InferenceService", "LLMInferenceService"}
)


@dataclass
class Document:
    """One object of a file: its place in it, kind and name."""

    node: YamlNode
    path: str

    @property
    def kind(self) -> str:
        return scalar_text(self.node.get("kind"))

    @property
    def name(self) -> str:
        metadata = self.node.get("metadata")
        return (scalar_text(metadata.get("name")) or scalar_text(metadata.get("generateName"))) if metadata else ""

    @property
    def place(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else self.kind


def documents_of(nodes: Sequence[YamlNode]) -> list[Document]:
    """The objects of a file, those inside a List too."""
    found = []
    for number, node in enumerate(nodes):
        path = f"documents[{number}]" if len(nodes) > 1 else ""
        if scalar_text(node.get("kind")) == "List":
            for index, item in enumerate(items_of(node.get("items"))):
                found.append(Document(item, f"{path}.items[{index}]".lstrip(".")))
        elif isinstance(node.value, dict):
            found.append(Document(node, path))
    return found


def is_kubernetes(nodes: Sequence[YamlNode]) -> bool:
    """Whether any document is a Kubernetes object."""
    return any(scalar_text(node.get("apiVersion")) and scalar_text(node.get("kind")) for node in nodes)


def config_maps(documents: Sequence[Document]) -> dict[str, ConfigMap]:
    """The ConfigMaps of a file by name."""
    found = {}
    for document in documents:
        data = document.node.get("data")
        if document.kind == "ConfigMap" and data is not None and isinstance(data.value, dict):
            found[document.name] = ConfigMap(document.name, data.value)
    return found


def read_kubernetes(source: Source, nodes: Sequence[YamlNode]) -> Result:
    """Every launch command in a file of Kubernetes objects."""
    from kvplan.check.manifests import charts, kserve, ray

    result = Result()
    documents = documents_of(nodes)
    maps = config_maps(documents)
    scales = _scales(documents)
    for document in documents:
        if document.kind == "RayService":
            ray.read_service(source, document, result)
        elif document.kind == "RayJob":
            ray.read_job(source, document, result)
        elif document.kind == "Model" and scalar_text(document.node.get("apiVersion")).startswith("kubeai"):
            charts.read_kubeai_model(source, document, result)
        elif document.kind in ("InferenceService", "LLMInferenceService"):
            kserve.read_service(source, document, documents, maps, result)
        if document.kind in _SEPARATE or document.kind == "ConfigMap":
            continue
        _object(source, document, maps, scales.get((document.kind, document.name)), result)
    kserve.read_runtimes(source, documents, maps, result)
    result.findings += _service_names(documents, result.commands)
    return result


def _scales(documents: Sequence[Document]) -> dict[tuple[str, str], dict[str, int]]:
    """The bounds that an autoscaler in the file sets, by the object it scales."""
    found = {}
    for document in documents:
        spec = document.node.get("spec")
        target = spec.get("scaleTargetRef") if spec else None
        if spec is None or target is None:
            continue
        low = spec.get("minReplicas") or spec.get("minReplicaCount")
        high = spec.get("maxReplicas") or spec.get("maxReplicaCount")
        bounds = {"min": whole(low, 1), "max": whole(high, 0)}
        if bounds["max"]:
            kind = scalar_text(target.get("kind")) or "Deployment"
            found[kind, scalar_text(target.get("name"))] = bounds
    return found


def _object(
    source: Source, document: Document, maps: Mapping[str, ConfigMap], scale: dict[str, int] | None, result: Result
) -> None:
    pods = list(find_pods(document.node, document.path))
    sized = {pod.role: pod for pod in pods if pod.role}
    for pod in pods:
        replicas: int | dict[str, int] = scale or whole(pod.nearest("replicas"), whole(pod.nearest("parallelism"), 1))
        count = group_devices(sized, pod)
        if document.kind == "DaemonSet":
            result.notes.append(f"how many nodes run {document.place}: one copy on each that fits")
        for container, path in pod_containers(pod):
            given = group_variables(pod)
            reading = read_container(source, container, maps, given)
            name = scalar_text(container.get("name"))
            role = f"{pod.role} " if pod.role in ("leader", "worker") and name != pod.role else ""
            place = f"{document.place} {role}container {name}".strip()
            result.notes += reading.notes
            result.findings += [Finding(rule, "error", text, line, place) for rule, text, line in reading.mistakes]
            group = "" if pod.role in ("", "member") else document.place
            found = place_starts(source, reading, container, pod, maps, place, path, count, group, pod.size, replicas)
            result.commands += found
            result.findings += _probe(container, place) if found else ()


_LOADING = 180


def _probe(container: YamlNode, place: str) -> Iterator[Finding]:
    """A liveness probe that kills the container before weights of any size are loaded, with no startup probe."""
    probe = container.get("livenessProbe")
    if probe is None or container.get("startupProbe") is not None:
        return
    wait = whole(probe.get("initialDelaySeconds"), 0)
    allowed = wait + whole(probe.get("periodSeconds"), 10) * whole(probe.get("failureThreshold"), 3)
    if allowed < _LOADING:
        said = (f"the liveness probe kills the container {allowed} s after its start, and there is no startup "
                "probe: loading "
                f"weights takes minutes")  # fmt: skip
        yield Finding(
            "short-liveness-probe", "warning", said, container.key_lines.get("livenessProbe", probe.line), place
        )


def _service_names(documents: Sequence[Document], commands: Sequence[FoundCommand]) -> Iterator[Finding]:
    """A Service called vllm makes Kubernetes set VLLM_PORT to an address in every pod beside it."""
    starts = [found for found in commands if found.command.engine == "vllm"]
    for document in documents:
        if document.kind == "Service" and document.name == "vllm" and starts:
            said = "a Service called vllm sets VLLM_PORT=tcp://... in the pods beside it, which vLLM reads as its port"
            yield Finding("service-name", "warning", f"{said}: rename it", document.node.line, document.place)


def place_starts(
    source: Source,
    reading: ContainerReading,
    container: YamlNode,
    pod: Pod,
    maps: Mapping[str, ConfigMap],
    place: str,
    path: str,
    count: tuple[int | None, str] | None,
    group: str,
    nodes: int,
    replicas: int | Mapping[str, int],
) -> list[FoundCommand]:
    """The starts of one container as found commands, with the pod's devices, mounts and memory."""
    reader = _mounted(source, container, pod, maps, reading.files)
    accelerator = pod_devices(container, pod, count)
    around = surroundings(container, pod)
    if len(reading.starts) > 1:
        around = replace(around, machine=path)
    downloads = {**pod_downloads(source, pod, maps), **reading.downloads}
    found = []
    for start in reading.starts:
        command = finish(
            source,
            start.head,
            place=place,
            path=path,
            line=start.line,
            environment=reading.environment,
            read_file=reader,
            version=start.version if start.head.image is None or start.head.image.moving else None,
            accelerator=accelerator,
            replicas=replicas,
            nodes=nodes,
            group=group,
            condition=start.condition,
            downloads=downloads,
            surroundings=around,
        )
        if command.command.engine == "ollama":
            command = with_pulled_model(command, reading.pulled)
        found.append(command)
    return found


def pod_downloads(source: Source, pod: Pod, maps: Mapping[str, ConfigMap]) -> dict[str, str]:
    """What init containers download, by folder."""
    found: dict[str, str] = {}
    for container in items_of(pod.node.get("initContainers")):
        if isinstance(container.value, dict):
            found |= read_container(source, container, maps).downloads
    return found


def _mounted(
    source: Source, container: YamlNode, pod: Pod, maps: Mapping[str, ConfigMap], written: Mapping[str, Word]
) -> ReadFile:
    volumes = {scalar_text(volume.get("name")): volume for volume in items_of(pod.node.get("volumes"))}
    mounts = items_of(container.get("volumeMounts"))

    def read(path: str) -> str | None:
        if path in written:
            return written[path].text
        for mount in mounts:
            place, part = scalar_text(mount.get("mountPath")).rstrip("/"), scalar_text(mount.get("subPath"))
            volume = volumes.get(scalar_text(mount.get("name")))
            reference = volume.get("configMap") if volume else None
            held = maps.get(scalar_text(reference.get("name"))) if reference else None
            if held is None or reference is None or not (path == place or path.startswith(f"{place}/")):
                continue
            key = part if path == place else path[len(place) + 1 :]
            for item in items_of(reference.get("items")):
                if scalar_text(item.get("path")) == key:
                    key = scalar_text(item.get("key"))
            node = held.data.get(key)
            if node is not None:
                return node.text
        return source.repository_file(path)

    return read


def read_single_container(source: Source, container: YamlNode, path: str) -> Result:
    """A container-shaped mapping outside any Kubernetes object, such as in a values file."""
    result = Result()
    reading = read_container(source, container, {})
    pod = Pod(container, path, ())
    place = f"{path} container {scalar_text(container.get('name'))}".strip()
    result.findings += [Finding(rule, "error", text, line, place) for rule, text, line in reading.mistakes]
    result.commands += place_starts(source, reading, container, pod, {}, place, path, None, "", 1, 1)
    return result
