"""Other YAML that starts things: SkyPilot, dstack and Ray Serve files, options files, any command in a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvplan.check.manifests import charts, ray
from kvplan.check.manifests.containers import items_of, scalar_text
from kvplan.check.manifests.devices import from_name, instance_device, read_gpu_spec
from kvplan.check.manifests.finish import finish
from kvplan.check.manifests.pods import find_pods, pod_containers, whole
from kvplan.check.manifests.reading import AcceleratorReading
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import Carrier, read_shell, with_version
from kvplan.check.manifests.source import Source, script_text
from kvplan.engines.commands import Word
from kvplan.engines.commands.flags import load_table
from kvplan.engines.commands.heads import Head, find_head
from kvplan.engines.commands.images import find_image
from kvplan.engines.commands.options_files import as_arguments
from kvplan.errors import InputError
from kvplan.files import YamlNode

_SCRIPT_KEYS = frozenset(
    {"run", "cmd", "command", "commands", "script", "shell", "exec", "entrypoint", "args", "start", "serve"}
)
_MOST_NODES = 100_000


def read_task(source: Source, node: YamlNode, path: str = "") -> Result:
    """A document that is neither Kubernetes nor Compose."""
    if node.get("servingEngineSpec") is not None:
        return charts.read_production_stack(source, node)
    if charts.is_llama_swap(node):
        return charts.read_llama_swap(source, node)
    if node.get("applications") is not None:
        return Result(ray.read_applications(source, node, "Ray Serve", path, 0, None))
    if node.get("run") is not None and any(
        node.get(key) is not None for key in ("resources", "setup", "envs", "num_nodes")
    ):
        return _skypilot(source, node)
    if node.get("commands") is not None or scalar_text(node.get("type")) in ("service", "task", "dev-environment"):
        return _dstack(source, node)
    result = _options_file(source, node)
    return result if result.commands else _anywhere(source, node, path)


def _variables(node: YamlNode | None) -> dict[str, Word]:
    if node is None:
        return {}
    if isinstance(node.value, dict):
        return {key: Word(child.text, line=child.line) for key, child in node.value.items() if child.value is not None}
    pairs = (item.text.partition("=") for item in items_of(node))
    return {name: Word(value) for name, equals, value in pairs if equals}


def _filled(given: Mapping[str, Word], source: Source) -> dict[str, Word]:
    return {**given, **source.overrides}


# --- SkyPilot --------------------------------------------------------------------------------------------------------


def _skypilot(source: Source, node: YamlNode) -> Result:
    """A SkyPilot task: accelerators of its resources, on `num_nodes` machines, as many copies as its service has."""
    resources = node.get("resources")
    nodes = whole(node.get("num_nodes"), 1)
    accelerator = _sky_devices(resources, nodes)
    given = _variables(node.get("envs"))
    if accelerator is not None and accelerator.count is not None:
        given["SKYPILOT_NUM_GPUS_PER_NODE"] = Word(str(accelerator.count // nodes))
    given["SKYPILOT_NUM_NODES"] = Word(str(nodes))
    setup, run = node.get("setup"), node.get("run")
    if run is None:
        return Result()
    text, line = script_text(run, source.lines)
    carrier = Carrier(accelerator, _sky_replicas(node.get("service")), nodes, setup.text if setup else "", "run", "run",
                      _filled(given, source))  # fmt: skip
    result = read_shell(source, text, line, carrier)
    if node.get("envs") is not None:
        result.notes.append("whether envs are overridden at launch")
    return result


def _sky_devices(resources: YamlNode | None, nodes: int) -> AcceleratorReading | None:
    if resources is None:
        return None
    wanted = resources.get("accelerators")
    instance = scalar_text(resources.get("instance_type"))
    if wanted is None:
        found = instance_device(instance) if instance else None
        return (
            None
            if found is None
            else AcceleratorReading(found[0], (found[1] or 1) * nodes, f"instance_type {instance}", "inferred")
        )
    if isinstance(wanted.value, dict) and wanted.value:
        name, child = next(iter(wanted.value.items()))
        # In a flow mapping {H200:8} the colon has no space after it, so the whole is one key.
        name, _, attached = name.partition(":")
        count = int(attached) if attached.isdecimal() else whole(child, 1)
        several = len(wanted.value) > 1
    else:
        first = items_of(wanted)[0] if items_of(wanted) else wanted
        found_name, found_count = read_gpu_spec(first.text)
        name, count, several = found_name or first.text, found_count or 1, len(items_of(wanted)) > 1
    said = f"accelerators {name}:{count}" + (" and others" if several else "")
    reading = from_name(name, count * nodes, said)
    return replace(reading, certainty="inferred: the first of several choices") if several else reading


def _sky_replicas(service: YamlNode | None) -> int | Mapping[str, int]:
    policy = service.get("replica_policy") if service else None
    if policy is not None:
        low, high = whole(policy.get("min_replicas"), 1), whole(policy.get("max_replicas"), 0)
        return {"min": low, "max": high} if high > low else low
    return whole(service.get("replicas") if service else None, 1)


# --- dstack ----------------------------------------------------------------------------------------------------------


def _dstack(source: Source, node: YamlNode) -> Result:
    """A dstack service or task: its commands are one script, run inside its image."""
    resources = node.get("resources")
    accelerator = _dstack_devices(resources.get("gpu") if resources else None)
    nodes = whole(node.get("nodes"), 1)
    given = _filled(_variables(node.get("env")), source)
    given["DSTACK_NODES_NUM"] = Word(str(nodes))
    if accelerator is not None and accelerator.count is not None:
        given["DSTACK_GPUS_NUM"] = Word(str(accelerator.count * nodes))
        given["DSTACK_GPUS_PER_NODE"] = Word(str(accelerator.count))
        accelerator = replace(accelerator, count=accelerator.count * nodes)
    image = find_image(scalar_text(node.get("image")))
    carrier = Carrier(accelerator, whole(node.get("replicas"), 1), nodes, "", "commands", "commands", given)
    result = Result()
    for item in items_of(node.get("commands")):
        text, line = script_text(item, source.lines)
        result.add(read_shell(source, text, line, carrier))
    if image is not None and image.version is not None:
        result.commands = [with_version(found, image) for found in result.commands]
    return result


def _dstack_devices(gpu: YamlNode | None) -> AcceleratorReading | None:
    if gpu is None:
        return None
    if isinstance(gpu.value, dict):
        name = gpu.get("name")
        count = scalar_text(gpu.get("count"))
        names = [item.text for item in items_of(name)] or [scalar_text(name)]
        number = int(count) if count.isdecimal() else None
        return from_name(names[0], number, f"gpu {names[0]} x {count or '?'}") if names[0] else None
    name_text, number = read_gpu_spec(gpu.text)
    return (
        from_name(name_text, number or 1, f"gpu {gpu.text}")
        if name_text
        else AcceleratorReading(None, number, f"gpu {gpu.text}")
    )


# --- options files and anything else ---------------------------------------------------------------------------------


def _options_file(source: Source, node: YamlNode) -> Result:
    """A bare options file: a mapping whose keys are all flags of one engine, the model among them."""
    if not isinstance(node.value, dict) or not node.value:
        return Result()
    for engine, keys in (("vllm", ("model",)), ("sglang", ("model-path", "model_path", "model"))):
        table = load_table(engine)
        named = [key for key in keys if key in node.value]
        spelled = [f"--{key.replace('_', '-')}" for key in node.value]
        if named and len(spelled) > 1 and all(table.find(word, None) for word in spelled):
            options = {key.replace("_", "-"): child.plain() for key, child in node.value.items()}
            words = as_arguments(options, table, None)
            head = Head(engine, tuple(words), ("options file",), False)
            found = finish(source, head, place=f"{engine} options", path="", line=node.line)
            lines = {key.replace("-", "_"): line for key, line in node.key_lines.items()}
            return Result([replace(found, command=replace(found.command, lines=lines))])
    return Result()


def _anywhere(source: Source, node: YamlNode, path: str) -> Result:
    """Commands in any mapping: texts under keys that hold commands, lists of words, containers."""
    result = Result()
    for pod in find_pods(node, path):
        for container, where in pod_containers(pod):
            result.add(_container(source, container, where))
    stack = [(node, path)]
    seen = 0
    while stack and seen < _MOST_NODES:
        current, here = stack.pop()
        seen += 1
        if isinstance(current.value, list):
            stack += reversed([(child, f"{here}[{index}]") for index, child in enumerate(current.value)])
        elif isinstance(current.value, dict):
            if current.get("image") is not None and any(current.get(key) is not None for key in ("command", "args")):
                continue
            for key, child in reversed(current.value.items()):
                where = f"{here}.{key}".lstrip(".")
                if key.lower() in _SCRIPT_KEYS:
                    result.add(_texts(source, child, where))
                stack.append((child, where))
    result.commands.sort(key=lambda found: found.line)
    return result


def _container(source: Source, container: YamlNode, path: str) -> Result:
    from kvplan.check.manifests.kubernetes import read_single_container

    return read_single_container(source, container, path)


def _texts(source: Source, node: YamlNode, path: str) -> Result:
    """A script, a list of scripts, or a list of words."""
    result = Result()
    scalars = [item for item in items_of(node) if not isinstance(item.value, (dict, list))]
    words = [Word(item.text, line=item.line) for item in scalars]
    if words and " " not in words[0].text and isinstance(head := find_head(words), Head):
        found = finish(source, head, place=path, path=path, line=words[0].line)
        return Result([found])
    for item in scalars or ([node] if not isinstance(node.value, (dict, list)) else []):
        if len(item.text) < 6:
            continue
        text, line = script_text(item, source.lines)
        try:
            result.add(read_shell(source, text, line, Carrier(place=path)))
        except InputError:
            continue
    return result
