"""Single settings of a scenario by name: dotted as in the file, or the short names of `--vary`."""

from __future__ import annotations

from typing import Any

from kvplan.errors import InputError, did_you_mean, show
from kvplan.simulator.scenario import EngineSettings, Scenario

SHORT = {
    "gpu": "hardware.gpu",
    "tensor-parallel-size": "hardware.tensor_parallel",
    "pipeline-parallel-size": "hardware.pipeline_parallel",
    "data-parallel-size": "hardware.data_parallel",
    "gpu-memory-utilization": "hardware.memory_utilization",
    "rate": "workload.arrivals.rate",
    "step-time": "step_time.kind",
}


def change(data: dict[str, Any], key: str, value: Any) -> None:
    """Set `hardware.gpu`, `kv-cache-dtype` or `rate` in a scenario document. Raises InputError for an unknown name."""
    path = SHORT.get(key, key)
    if "." not in path:
        name = path.replace("-", "_")
        if name in EngineSettings.model_fields:
            path = f"engine.{name}"
        elif name in Scenario.model_fields:
            path = name
        else:
            choices = [*SHORT, *(field.replace("_", "-") for field in EngineSettings.model_fields)]
            raise InputError(f"--vary: found {show(key)}, expected a setting{did_you_mean(key, choices)}")
    *folders, leaf = path.replace("-", "_").split(".")
    place: Any = data
    for folder in folders:
        if isinstance(place, list) and folder.isdecimal() and int(folder) < len(place):
            place = place[int(folder)]
        elif isinstance(place, dict):
            place = place.setdefault(folder, {})
        else:
            place = None
    if not isinstance(place, dict):
        raise InputError(f"--vary: found {show(key)}, expected a setting inside a mapping")
    place[leaf] = value
