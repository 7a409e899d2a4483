"""vLLM's planner from end to end: a model, flags and bytes in, vLLM's answer out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Parallelism
from kvplan.engines.support import require_layers
from kvplan.engines.versions import load_rules, rules_at
from kvplan.engines.vllm.answer import Plan, answer
from kvplan.engines.vllm.blocks import block_sizes, cache_layers
from kvplan.engines.vllm.capacity import Demand, check_decode_context
from kvplan.engines.vllm.grouping import group_layers
from kvplan.engines.vllm.pages import build_model
from kvplan.engines.vllm.pool import size_pool
from kvplan.engines.vllm.resolve import resolve
from kvplan.engines.vllm.settings import read_flags
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches


@record
class VllmEngine:
    """vLLM's KV-cache planner. See `kvplan.engines.base.Engine`."""

    name: str = "vllm"

    @property
    def default_version(self) -> str:
        return str(load_rules(self.name)["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Plan the cache as vLLM does at start-up. See `kvplan.engines.base.Engine.plan`."""
        rules = rules_at(self.name, load_rules(self.name), version)
        notes = require_layers(self.name, spec)
        asked = read_flags(settings)
        _check_parallel(spec, parallel)
        resolved = resolve(spec, asked, parallel, device, rules)
        model = build_model(spec, resolved, rules, parallel, device)
        sizes = block_sizes(model, resolved, rules, device)
        layers = cache_layers(model, sizes)
        check_decode_context(layers, parallel.decode_context, parallel.tensor)
        groups = group_layers(
            layers, rules,
            hybrid_manager=resolved.hybrid_manager, chunked_hybrid_manager=resolved.chunked_hybrid_manager,
        )  # fmt: skip
        fixed = asked.get("kv_cache_memory_bytes")
        stages = [fixed] * parallel.pipeline if fixed else _per_stage(available_bytes, parallel.pipeline)
        demand = Demand.of(resolved, parallel.decode_context, model.draft_tokens, model.extra_window)
        spare = bool(rules["check_without_null_block"])
        pool = size_pool(groups, demand, stages, resolved, spare_null_block=spare)
        offload = asked.get("kv_offloading_size")
        plan = Plan(rules, resolved, parallel, device, model, sizes, pool, offload)
        warned = [rules.warning] if rules.warning else []
        unknown = [f"--{flag.lstrip('-')} is no flag of vLLM that kvplan knows: ignored" for flag in asked.unknown]
        return answer(plan, (*warned, *notes, *resolved.warnings, *unknown))


def _check_parallel(spec: ModelSpec, parallel: Parallelism) -> None:
    for name, count in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline), ("data", parallel.data)):
        if count < 1:
            raise InputError(f"--{name}-parallel-size: found {count}, expected at least 1")
    if parallel.pipeline > spec.layer_count:
        raise InputError(
            f"--pipeline-parallel-size: found {parallel.pipeline}, expected at most the {spec.layer_count} layers"
        )
    if parallel.decode_context == 1:
        return
    field, ranks = "--decode-context-parallel-size", parallel.decode_context
    for block in spec.blocks.values():
        for layer in branches(block):
            if isinstance(layer, kinds.FullAttention):
                most = parallel.tensor // layer.kv_heads
                if ranks > most or (layer.query_heads // layer.kv_heads) % ranks:
                    raise InputError(
                        f"{field}: found {ranks}, expected at most {max(1, most)}, tensor-parallel ranks per KV head, "
                        f"and a divisor of the {layer.query_heads // layer.kv_heads} query heads per KV head"
                    )


def _per_stage(available: Sequence[int], stages: int) -> list[int]:
    """One figure a stage; a single figure holds for all. Raises InputError."""
    given = list(available)
    if len(given) == 1:
        given *= stages
    if len(given) != stages:
        raise InputError(
            f"--available-memory: found {len(given)} sizes, expected one or {stages}, one a pipeline stage"
        )
    return given
