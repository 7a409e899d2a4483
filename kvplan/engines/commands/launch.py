"""What a launch command says, in the engine's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.base import Parallelism
from kvplan.engines.commands.hints import ModelHint

_SIZES = {
    "tensor": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline": ("pipeline_parallel_size", "pp_size"),
    "data": ("data_parallel_size", "dp_size", "dp"),
    "decode_context": ("decode_context_parallel_size", "dcp_size"),
}


@dataclass(frozen=True)
class LaunchCommand:
    """One start of an engine.

    `flags` holds what changes memory or capacity under the engine's own long names in snake_case, typed; None where a
    value is given but can't be known from the text. `ignored` are real flags without that effect, `unknown` what is no
    flag of this engine and version. `model` is None where the text only hints at it. `refused` are values and forms the
    engine would stop at, `mistakes` faults in how the words are put together, `removed` flags that left and the release
    they left in, `overridden` what another source of the same setting wins over; all are also `warnings`. `assumed` are
    variables whose fallback was taken, `raw_unknown` the words behind `unknown`. `lines` maps each flag to the line it
    was read from, where there is one.
    """

    engine: str
    version: str | None = None
    model: str | None = None
    model_hint: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_knowable: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    hint: ModelHint | None = None
    refused: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    removed: Mapping[str, str] = field(default_factory=dict)
    overridden: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    raw_unknown: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """The flags as the engine models of kvplan.engines take them: known values only, nested options flattened."""
        settings: dict[str, Any] = {}
        for name, value in self.flags.items():
            if name == "kv_cache_config" and isinstance(value, Mapping):
                settings |= {f"kv_cache_config.{key}": inner for key, inner in value.items()}
            elif name == "n_gpu_layers" and isinstance(value, str):
                settings[name] = -1
            elif name == "kv_offload":
                settings["no_kv_offload"] = value is False
            elif value is not None:
                settings[name] = value
        return settings

    def parallelism(self) -> Parallelism:
        """The ranks the flags ask for; a size that isn't known counts as 1."""
        sizes = {kind: self._size(names) for kind, names in _SIZES.items()}
        expert = (
            bool(self.flags.get("enable_expert_parallel")) or self._size(("ep_size", "moe_expert_parallel_size")) > 1
        )
        return Parallelism(sizes["tensor"], sizes["pipeline"], sizes["data"], expert, sizes["decode_context"])

    def _size(self, names: tuple[str, ...]) -> int:
        value = next((self.flags[name] for name in names if self.flags.get(name) is not None), 1)
        return value if isinstance(value, int) and value > 0 else 1

    @property
    def ranks(self) -> int:
        """How many devices the engine takes. SGLang's attention data parallelism lies within its tensor ranks."""
        parallel = self.parallelism()
        within = self.engine == "sglang" and bool(self.flags.get("enable_dp_attention"))
        return parallel.tensor * parallel.pipeline * (1 if within else parallel.data)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "engine": self.engine,
            "engine_version": self.version,
            "model": self.model,
            "model_hint": self.model_hint,
            "flags": dict(self.flags),
            "ignored": list(self.ignored),
            "unknown": list(self.unknown),
            "warnings": list(self.warnings),
            "not_knowable": list(self.not_knowable),
            "environment": dict(self.environment),
        }
