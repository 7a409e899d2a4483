"""Ray Serve's LLM applications: engine arguments in a mapping, inside a RayService or a Serve config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.check.manifests.containers import items_of, scalar_text
from kvplan.check.manifests.devices import from_name
from kvplan.check.manifests.finish import finish, with_model_path
from kvplan.check.manifests.pods import container_request, find_pods, pod_containers, whole
from kvplan.check.manifests.reading import AcceleratorReading, Finding, FoundCommand
from kvplan.check.manifests.result import Result
from kvplan.check.manifests.scripts import Carrier, read_shell
from kvplan.check.manifests.source import Source, script_text
from kvplan.engines.commands import Word
from kvplan.engines.commands.flags import load_table
from kvplan.engines.commands.heads import Head
from kvplan.engines.commands.options_files import as_arguments
from kvplan.files import YamlNode, compose_yaml

if TYPE_CHECKING:
    from kvplan.check.manifests.kubernetes import Document


def read_service(source: Source, document: Document, result: Result) -> None:
    """A RayService: the Serve config in its text, the devices of its worker groups."""
    spec = document.node.get("spec")
    inner = spec.get("serveConfigV2") if spec else None
    if spec is None or inner is None:
        return
    text, line = script_text(inner, source.lines)
    cluster = spec.get("rayClusterConfig")
    held, pods = _workers(cluster)
    for node in compose_yaml(text, f"{source.name}: serveConfigV2"):
        path = f"{document.path}.spec.serveConfigV2".lstrip(".")
        for found in read_applications(source, node, document.place, path, line - 1, held):
            result.commands.append(found)
            _needs(found, held, pods, result)


def read_job(source: Source, document: Document, result: Result) -> None:
    """A RayJob: its entrypoint is a command line."""
    spec = document.node.get("spec")
    entrypoint = spec.get("entrypoint") if spec else None
    if entrypoint is not None and entrypoint.text:
        text, line = script_text(entrypoint, source.lines)
        path = f"{document.path}.spec.entrypoint".lstrip(".")
        result.add(read_shell(source, text, line, Carrier(place=document.place, path=path)))


def read_applications(
    source: Source, config: YamlNode, place: str, path: str, offset: int, held: int | None
) -> list[FoundCommand]:
    """The LLM configs of every application. `offset` is added to the lines of `config`."""
    found = []
    for number, application in enumerate(items_of(config.get("applications"))):
        args = application.get("args")
        listed = items_of(args.get("llm_configs")) if args else []
        for index, llm in enumerate(listed):
            where = f"{path}.applications[{number}].args.llm_configs[{index}]".lstrip(".")
            found.append(_config(source, llm, f"{place} llm_configs {index}".strip(), where, offset, held))
    return found


def _config(source: Source, llm: YamlNode, place: str, path: str, offset: int, held: int | None) -> FoundCommand:
    kwargs = llm.get("engine_kwargs")
    options: dict[str, Any] = kwargs.plain() if kwargs is not None and isinstance(kwargs.value, dict) else {}
    words = as_arguments(options, load_table("vllm"), None)
    loading = llm.get("model_loading_config")
    model = scalar_text(loading.get("model_source")) or scalar_text(loading.get("model_id")) if loading else ""
    head = Head("vllm", tuple(words), ("engine_kwargs",), False)
    line = (kwargs.line if kwargs is not None else llm.line) + offset
    kind = scalar_text(llm.get("accelerator_type"))
    found = finish(
        source, head, place=place, path=path, line=line, replicas=_replicas(llm), environment=_variables(llm)
    )
    ranks = found.command.ranks
    stated = "; ".join(
        part for part in (f"accelerator_type {kind}" if kind else "", f"worker limit {held}" if held else "") if part
    )
    device = (
        from_name(kind, ranks, stated)
        if kind
        else AcceleratorReading(None, ranks, stated or None, "count from the ranks")
    )
    notes = tuple(note for note in found.not_knowable if not note.startswith("GPU model"))
    notes = notes if device.name else (*notes, "GPU model")
    notes = tuple("vLLM version inside the Ray image" if note == "engine version" else note for note in notes)
    command = with_model_path(found.command, model, model) if model else found.command
    lines = {key: number + offset for key, number in (kwargs.key_lines if kwargs is not None else {}).items()}
    return replace(found, command=replace(command, lines=lines), accelerator=device, not_knowable=notes)


def _variables(llm: YamlNode) -> dict[str, Word]:
    runtime = llm.get("runtime_env")
    variables = runtime.get("env_vars") if runtime else None
    if variables is None or not isinstance(variables.value, dict):
        return {}
    return {key: Word(node.text, line=node.line) for key, node in variables.value.items()}


def _replicas(llm: YamlNode) -> int | Mapping[str, int]:
    deployment = llm.get("deployment_config")
    scaling = deployment.get("autoscaling_config") if deployment else None
    if scaling is None:
        return whole(deployment.get("num_replicas"), 1) if deployment else 1
    low, high = whole(scaling.get("min_replicas"), 1), whole(scaling.get("max_replicas"), 0)
    return {"min": low, "max": high} if high > low else low


def _workers(cluster: YamlNode | None) -> tuple[int | None, int]:
    """The accelerator limit of a worker and how many workers there are."""
    if cluster is None:
        return None, 0
    held, count = None, 0
    for group in items_of(cluster.get("workerGroupSpecs")):
        for pod in find_pods(group, ""):
            for container, _ in pod_containers(pod):
                request = container_request(container)
                if request is not None and request[1] is not None:
                    held = request[1]
                    count += whole(group.get("maxReplicas"), whole(group.get("replicas"), 1))
    return held, count


def _needs(found: FoundCommand, held: int | None, pods: int, result: Result) -> None:
    """Whether the worker groups hold what the replicas take."""
    most = found.replicas["max"] if isinstance(found.replicas, Mapping) else found.replicas
    ranks = found.command.ranks
    if held is None or not isinstance(most, int) or most * ranks <= held * pods:
        return
    said = (f"{most} replicas of {ranks} GPUs need {most * ranks} GPUs; the worker groups hold {pods} x {held} = "
            f"{held * pods}: fine only if the cluster grows")  # fmt: skip
    result.findings.append(Finding("replicas-exceed-devices", "warning", said, found.line, found.place))
