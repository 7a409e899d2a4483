"""What every engine model answers, and the one function it implements.

An engine takes the bytes of one entry from `kvplan.cache` and makes pages, blocks, groups and pools of them. It never
works out what a layer's token costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Protocol

from kvplan.record import record
from kvplan.spec.model import ModelSpec


@record
class Parallelism:
    """Ranks by kind. `expert` puts whole experts on ranks; `decode_context` shards the tokens of attention layers
    over that many of the tensor-parallel ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    decode_context: int = 1


@record
class Device:
    """What an engine asks of the accelerator. `memory_bytes` is the driver's total; `compute_capability` is CUDA's
    (major, minor), None elsewhere."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    kind: str = "cuda"


@record
class Setting:
    """One setting as the engine resolves it. `source` is "asked", or the rule that chose the value."""

    name: str
    value: Any
    source: str = "asked"


@record
class Group:
    """Layers whose blocks are allocated together.

    `layers` are those of all pipeline stages, `layers_per_stage` those of each. `block_tokens` tokens make one block;
    `bytes_per_block` is what one block of the group occupies on the poorest stage, padding included.
    `blocks_per_request` blocks are set aside for one request of the greatest length.
    """

    kind: str
    layers: int
    layers_per_stage: tuple[int, ...]
    block_tokens: int
    page_bytes: int
    bytes_per_block: int
    blocks_per_request: int


@record
class Pool:
    """One allocation an engine makes at start: cells, tokens, state slots or the rows of a table.

    `slots` are counted over all streams (llama.cpp keeps one per parallel sequence); `bytes` is what they take, over
    all devices where `bytes_per_stage` splits it. `parts` splits it by what it holds, such as K and V.
    """

    name: str
    layers: int
    slots: int
    bytes_per_slot: int
    bytes: int
    streams: int = 1
    parts: dict[str, int] = field(default_factory=dict)
    bytes_per_stage: tuple[int, ...] = ()


@record
class Refusal:
    """A start-up the engine would refuse, with the figures it prints. Bytes are one worker's."""

    needed_bytes: int
    available_bytes: int
    estimated_max_model_len: int | None
    text: str


@record
class EngineAnswer:
    """What one engine makes of one model, all bytes per worker (rank).

    `num_blocks` and `bytes_per_block` (one figure a pipeline stage) describe the pool; `usable_blocks` leaves out what
    the engine never hands out. `capacity_tokens` and `max_concurrency` are as the engine logs them.
    `needed_bytes_one_request` is what one request of `max_model_len` tokens must have for a start,
    `reserved_bytes_one_request` the pool bytes its blocks occupy: both sum over nothing but the poorest stage.
    `pools` are the allocations by name where blocks alone don't tell the whole; `binding` names the one that limits
    the requests that run at once. A refused start has `refused` set and None where there is no pool. `derivation`
    spells the arithmetic out, `warnings` are for the user, `assumptions` what was filled in.
    """

    name: str
    version: str
    max_model_len: int
    num_blocks: int | None
    usable_blocks: int | None
    bytes_per_block: tuple[int, ...]
    blocks_per_request: int | None
    capacity_tokens: int | None
    max_concurrency: float | None
    needed_bytes_one_request: int
    reserved_bytes_one_request: int
    groups: tuple[Group, ...] = ()
    log_lines: tuple[str, ...] = ()
    refused: Refusal | None = None
    estimated_max_model_len: int | None = None
    settings: tuple[Setting, ...] = ()
    derivation: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    binding: str | None = None

    def pool(self, name: str) -> Pool:
        """The pool of that name. Raises KeyError for a name the answer has not."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def setting(self, name: str) -> Any:
        """The resolved value of one setting. Raises KeyError for a name the engine has not."""
        for setting in self.settings:
            if setting.name == name:
                return setting.value
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """The answer under its JSON names: whole numbers wherever the engine has whole numbers.

        `bytes_per_block` is one number, or one a pipeline stage where there are several.
        """
        data = asdict(self)
        data["bytes_per_block"] = self.bytes_per_block[0] if len(self.bytes_per_block) == 1 else self.bytes_per_block
        data["log_line"] = "\n".join(self.log_lines) or None
        data["settings"] = {item.name: {"value": item.value, "source": item.source} for item in self.settings}
        return data


class Engine(Protocol):
    """One engine. `name` is what `--engine` takes before the `@`, `default_version` what it means without one."""

    name: str
    default_version: str

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Lay the cache of `spec` out in `available_bytes` (cache bytes of one worker, one figure a pipeline stage).

        `settings` are the engine's own flags, long names with - or _, values as strings or of their own type; what
        they don't name takes the engine's default. An unknown version is answered as the nearest known one, with a
        warning. Raises InputError for a value the engine refuses.
        """
        ...


def flag_name(name: str) -> str:
    """A flag in the spelling used inside kvplan: `--max-model-len` and `max_model_len` are one."""
    return name.lstrip("-").replace("-", "_")
