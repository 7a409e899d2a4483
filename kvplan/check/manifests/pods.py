"""Pods and containers of any Kubernetes object: how they are found, the devices and the memory around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvplan.check.manifests.containers import items_of, mapping_text, scalar_text
from kvplan.check.manifests.devices import catalog, from_labels, resource_count
from kvplan.check.manifests.reading import AcceleratorReading, Surroundings
from kvplan.engines.commands import Word
from kvplan.files import YamlNode

# Mappings whose `size` is the number of pods that form one engine (LeaderWorkerSet, RoleBasedGroup).
GROUPS = ("leaderWorkerTemplate", "leaderWorkerPattern", "leaderWorkerSet")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 (a mount path in a pod, nothing is written)
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass
class Pod:
    """A pod's mapping with its ancestors, nearest last."""

    node: YamlNode
    path: str
    above: tuple[tuple[str, YamlNode], ...]

    def nearest(self, key: str) -> YamlNode | None:
        """The value of `key` in the nearest mapping above that has it."""
        for _, node in reversed(self.above):
            found = node.get(key)
            if found is not None:
                return found
        return None

    @property
    def role(self) -> str:
        """`leader` or `worker` in a group of several pods, `member` where one template makes all of them."""
        names = [name for name, _ in self.above]
        if "leaderTemplate" in names:
            return "leader"
        if "workerTemplate" in names:
            return "worker"
        return "member" if any(name in GROUPS for name in names) else ""

    @property
    def size(self) -> int:
        """The pods of one group."""
        for name, node in reversed(self.above):
            group = node.get(name) if name in GROUPS else None
            if group is not None and group.get("size") is not None:
                return whole(group.get("size"), 1)
        return whole(self.nearest("size"), 1) if self.role else 1


def whole(node: YamlNode | None, default: int) -> int:
    """A small whole number, else `default`."""
    text = scalar_text(node)
    return int(text) if text.isdecimal() and len(text) < 7 else default


def find_pods(node: YamlNode, path: str) -> Iterator[Pod]:
    """Every mapping below `node` that has containers, or is itself shaped like a container."""
    stack: list[tuple[YamlNode, str, tuple[tuple[str, YamlNode], ...]]] = [(node, path, ())]
    steps = 0
    while stack:
        current, here, above = stack.pop()
        steps += 1
        if steps > 200_000:
            return
        if isinstance(current.value, list):
            children = [(child, f"{here}[{index}]", above) for index, child in enumerate(current.value)]
            stack += reversed(children)
        elif isinstance(current.value, dict):
            inside = (*above, (here.rpartition(".")[2], current))
            if any(isinstance(item.value, dict) for item in items_of(current.get("containers"))):
                yield Pod(current, here, inside)
            elif _container_shaped(current):
                yield Pod(current, here, inside)
                continue
            named = [
                (child, f"{here}.{key}" if here else key, (*above, (key, current)))
                for key, child in current.value.items()
                if key not in ("containers", "initContainers", "ephemeralContainers", "lifecycle", "livenessProbe")
            ]
            stack += reversed(named)


def _container_shaped(node: YamlNode) -> bool:
    """A mapping with an image and something to run, outside a list of containers."""
    image = scalar_text(node.get("image"))
    runs = any(node.get(key) is not None for key in ("command", "args"))
    return bool(image) and runs


def pod_containers(pod: Pod) -> Iterator[tuple[YamlNode, str]]:
    """The containers that stay: init containers only when they restart, which makes them sidecars."""
    listed = items_of(pod.node.get("containers"))
    if not listed:
        yield pod.node, pod.path
        return
    for index, container in enumerate(items_of(pod.node.get("initContainers"))):
        if scalar_text(container.get("restartPolicy")) == "Always":
            yield container, f"{pod.path}.initContainers[{index}]"
    for index, container in enumerate(listed):
        if isinstance(container.value, dict):
            yield container, f"{pod.path}.containers[{index}]"


def group_variables(pod: Pod) -> dict[str, Word]:
    """What the controller of a group gives each pod."""
    if not pod.role:
        return {}
    given: dict[str, Word] = {}
    for prefix in ("LWS", "RBG_LWP"):
        index = Word(f"$({prefix}_WORKER_INDEX)", (f"{prefix}_WORKER_INDEX, 0 to {pod.size - 1}",))
        given[f"{prefix}_GROUP_SIZE"] = Word(str(pod.size))
        given[f"{prefix}_WORKER_INDEX"] = Word("0") if pod.role == "leader" else index
        given[f"{prefix}_LEADER_ADDRESS"] = Word(f"$({prefix}_LEADER_ADDRESS)", ("the leader's address",))
    return given


def pod_request(pod: Pod) -> tuple[str, int | None] | None:
    found = [container_request(container) for container, _ in pod_containers(pod)]
    return next((request for request in found if request is not None), None)


def container_request(container: YamlNode) -> tuple[str, int | None] | None:
    """The accelerator resource of a container and its count."""
    resources = container.get("resources")
    for kind in ("limits", "requests"):
        table = resources.get(kind) if resources else None
        found = resource_count(mapping_text(table))
        if found is not None:
            return found
    return None


def group_devices(pods: Mapping[str, Pod], pod: Pod) -> tuple[int | None, str] | None:
    """The devices of all pods of `pod`'s group: one leader and size - 1 workers, or as many alike."""
    if not pod.role:
        return None
    alike = pod.role == "member"
    worker = pod if alike else pods.get("worker")
    leader = pod if alike else pods.get("leader", worker)
    if leader is None:
        return None
    first = pod_request(leader)
    rest = pod_request(worker) if worker is not None else first
    if first is None or first[1] is None or rest is None or rest[1] is None:
        return None
    total = first[1] + rest[1] * (pod.size - 1)
    said = (
        f"{first[1]} per pod x size {pod.size}" if first[1] == rest[1] else f"{first[1]} + {pod.size - 1} x {rest[1]}"
    )
    return total, said


def pod_devices(container: YamlNode, pod: Pod, group: tuple[int | None, str] | None) -> AcceleratorReading:
    """The devices of one engine: the node's label, the container's limit, the group's size."""
    request = container_request(container)
    count = group[0] if group else (request[1] if request else None)
    reading = from_labels(node_labels(pod), count)
    asked = f"{request[0]}: {request[1]}" if request else None
    if group:
        label = f"; {reading.stated_as}" if reading and reading.stated_as else ""
        stated = f"{group[1]}{label}"
    else:
        stated = "; ".join(part for part in (asked, reading.stated_as if reading else None) if part)
    if reading is not None:
        return AcceleratorReading(
            reading.name, count if count is not None else reading.count, stated, reading.certainty
        )
    sliced = request is not None and re.fullmatch(catalog()["slices"], request[0]) is not None
    said = (
        "unknown: a slice of a device" if sliced else "count stated, model unknown" if count is not None else "unknown"
    )
    return AcceleratorReading(None, count, stated or None, said)


def node_labels(pod: Pod) -> dict[str, str]:
    """The labels that a pod's node must have: node selectors, required affinity with a single value."""
    labels: dict[str, str] = {}
    for node in (pod.node, *(above for _, above in reversed(pod.above))):
        labels = {**mapping_text(node.get("nodeSelector")), **labels}
        affinity = node.get("affinity")
        wanted = affinity.get("nodeAffinity") if affinity else None
        required = wanted.get("requiredDuringSchedulingIgnoredDuringExecution") if wanted else None
        for term in items_of(required.get("nodeSelectorTerms") if required else None):
            for expression in items_of(term.get("matchExpressions")):
                values = items_of(expression.get("values"))
                if scalar_text(expression.get("operator")) == "In" and len(values) == 1:
                    labels.setdefault(scalar_text(expression.get("key")), values[0].text)
    return labels


def memory_bytes(text: str) -> int | None:
    """A Kubernetes quantity in bytes."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None or len(text) > 30:
        return None
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


def surroundings(container: YamlNode, pod: Pod) -> Surroundings:
    resources = container.get("resources")
    limits = resources.get("limits") if resources else None
    limit = memory_bytes(scalar_text(limits.get("memory"))) if limits is not None else None
    in_memory = {
        scalar_text(volume.get("name"))
        for volume in items_of(pod.node.get("volumes"))
        if (empty := volume.get("emptyDir")) is not None and scalar_text(empty.get("medium")) == "Memory"
    }
    wide = any(
        scalar_text(mount.get("mountPath")).rstrip("/") == SHARED_MEMORY and scalar_text(mount.get("name")) in in_memory
        for mount in items_of(container.get("volumeMounts"))
    )
    host = scalar_text(pod.node.get("hostIPC")) == "true"
    return Surroundings(limit, wide or host)
