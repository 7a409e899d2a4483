"""The plan: from a model, flags and bytes to vLLM's blocks, groups, log lines and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Refusal, Setting
from kvplan.engines.vllm.blocks import BlockSizes, CacheLayer, block_sizes, cache_layers
from kvplan.engines.vllm.capacity import (
    Demand,
    check_decode_context,
    longest_length,
    pool_block_bytes,
    request_blocks,
)
from kvplan.engines.vllm.grouping import LayerGroup, group_layers
from kvplan.engines.vllm.pages import Model, build_model
from kvplan.engines.vllm.resolve import resolve
from kvplan.engines.vllm.rules import Rules, default_version, rules_for
from kvplan.engines.vllm.settings import Resolved, read_flags
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import GIB

_NAMES = {"full": "full attention", "latent": "latent attention", "sliding": "sliding window",
          "sliding_latent": "sliding window of latents", "chunked": "chunked attention", "cross": "cross attention",
          "state": "recurrent state"}  # fmt: skip
DEFAULT_SWAP_BYTES = 4 * GIB


@record
class VllmEngine:
    """vLLM's KV-cache planner. See `kvplan.engines.base.Engine`."""

    name: str = "vllm"

    @property
    def default_version(self) -> str:
        return default_version()

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
        rules = rules_for(version)
        asked = read_flags(settings, rules)
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
        pool = Pool.of(groups, demand, stages, resolved, rules)
        ignored = [f"{flag} is no flag of vLLM that kvplan knows and is ignored" for flag in asked.unknown]
        return _answer(
            pool, resolved, model, sizes, rules, parallel, device, (*rules.warnings, *resolved.warnings, *ignored)
        )


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


@record
class Pool:
    """The pool every group draws its blocks from, and how one request of the planned length fares in it.

    `available` is what each stage plans with and `checked` what it checks one request against, both in bytes.
    """

    groups: tuple[LayerGroup, ...]
    demand: Demand
    block_bytes: tuple[int, ...]
    available: tuple[int, ...]
    checked: tuple[int, ...]
    num_blocks: int
    length: int
    request: int
    poorest: int | None
    estimate: int

    @classmethod
    def of(
        cls, groups: Sequence[LayerGroup], demand: Demand, available: Sequence[int], resolved: Resolved, rules: Rules
    ) -> Pool:
        """Size the pool. Without any group (no cache at all) it has one block, the null block."""
        sizes = tuple(pool_block_bytes(groups, stage) for stage in range(len(available)))
        if resolved.blocks_override is not None:
            available = [resolved.blocks_override * size for size in sizes]
        spare = 1 if rules["check_without_null_block"] else 0
        checked = tuple(have - spare * size for have, size in zip(available, sizes, strict=True))
        blocks = [have // size for have, size in zip(available, sizes, strict=True) if size]
        room = [have // size for have, size in zip(checked, sizes, strict=True) if size]
        length, estimate = resolved.max_model_len, 0
        if resolved.auto_fit and room:
            length = longest_length(groups, demand, min(room), length)
        request = request_blocks(groups, demand, length)
        failing = [
            stage for stage, (have, size) in enumerate(zip(checked, sizes, strict=True))
            if size and (have <= 0 or request * size > have or length == 0)
        ]  # fmt: skip
        poorest = failing[0] if failing else None
        if poorest is not None:
            fit = max(0, checked[poorest]) // sizes[poorest]
            estimate = longest_length(groups, demand, fit, resolved.max_model_len)
        return cls(tuple(groups), demand, sizes, tuple(available), checked, max(0, min(blocks, default=1)),
                   length, request, poorest, estimate)  # fmt: skip


def _answer(
    pool: Pool, resolved: Resolved, model: Model, sizes: BlockSizes, rules: Rules, parallel: Parallelism,
    device: Device, warnings: tuple[str, ...],
) -> EngineAnswer:  # fmt: skip
    refusal = _refusal(pool, resolved)
    concurrency = pool.num_blocks / pool.request if pool.request and refusal is None else None
    tokens = None if concurrency is None else _logged_tokens(pool, concurrency, rules, parallel)
    lines = () if tokens is None else _log_lines(pool, tokens, concurrency or 0.0, rules, device)
    block_bytes = max(pool.block_bytes)
    settings = (
        *resolved.settings,
        Setting("block_size", sizes.block, sizes.why),
        Setting("attention_backends", [backend.name for backend in model.backends], "compute capability and dtype"),
        *([Setting("mamba_block_size", sizes.state_block, "mamba_cache_mode")] if _has_state(pool) else []),
    )
    return EngineAnswer(
        name="vllm",
        version=rules.version,
        max_model_len=pool.length,
        num_blocks=pool.num_blocks if refusal is None else None,
        usable_blocks=pool.num_blocks - 1 if refusal is None else None,
        bytes_per_block=pool.block_bytes,
        blocks_per_request=pool.request,
        capacity_tokens=tokens,
        max_concurrency=concurrency,
        needed_bytes_one_request=pool.request * block_bytes,
        reserved_bytes_one_request=pool.request * block_bytes,
        groups=tuple(_group(group, pool, parallel.pipeline) for group in pool.groups),
        log_lines=lines,
        refused=refusal,
        estimated_max_model_len=refusal.estimated_max_model_len if refusal else None,
        settings=settings,
        derivation=_derivation(pool, sizes, rules),
        warnings=warnings,
        assumptions=model.assumptions,
    )


def _has_state(pool: Pool) -> bool:
    return any(layer.family == "state" for group in pool.groups for layer in group.layers)


def _group(group: LayerGroup, pool: Pool, stages: int) -> Group:
    families = list(dict.fromkeys(_NAMES[layer.family] for layer in group.layers))
    first = group.layers[0]
    return Group(
        kind=" and ".join(families),
        layers=len(group.layers),
        layers_per_stage=tuple(sum(layer.stage == stage for layer in group.layers) for stage in range(stages)),
        block_tokens=group.block,
        page_bytes=sum(layer.page for layer in group.layers) if group.uniform else first.page,
        bytes_per_block=max(group.page_bytes(stage) for stage in range(stages)),
        blocks_per_request=pool.demand.group_blocks(group, pool.length),
    )


def _logged_tokens(pool: Pool, concurrency: float, rules: Rules, parallel: Parallelism) -> int:
    """The tokens the release prints: whole blocks, or concurrency x length."""
    if rules["counted_by"] == "concurrency" or not pool.groups:
        return int(concurrency * pool.length)
    smallest = min(group.block for group in pool.groups)
    return pool.num_blocks // len(pool.groups) * smallest * parallel.decode_context


def _log_lines(pool: Pool, tokens: int, concurrency: float, rules: Rules, device: Device) -> tuple[str, ...]:
    name = "CPU" if device.kind == "cpu" and rules["log_device"] == "device" else "GPU"
    most = f"Maximum concurrency for {pool.length:,} tokens per request: {concurrency:.2f}x"
    if rules["counted_by"] == "gpu_blocks":
        swapped = DEFAULT_SWAP_BYTES // max(pool.block_bytes)
        plain = most.replace(f"{pool.length:,}", str(pool.length))
        return f"# {rules['blocks_word']} blocks: {pool.num_blocks}, # CPU blocks: {swapped}", plain
    size = f"{name} KV cache size: {tokens:,} tokens"
    return (f"{size}, {most}",) if rules["log_lines"] == "one" else (size, most)


def _refusal(pool: Pool, resolved: Resolved) -> Refusal | None:
    if pool.poorest is None:
        return None
    needed, have = pool.request * pool.block_bytes[pool.poorest], pool.checked[pool.poorest]
    if resolved.auto_fit:
        needed = request_blocks(pool.groups, pool.demand, 1) * pool.block_bytes[pool.poorest]
    estimate = pool.estimate or None
    advice = f"; the longest that fits is {estimate} tokens" if estimate else "; not even one token fits"
    text = (
        f"one request of {resolved.max_model_len} tokens needs {needed / GIB:.2f} GiB of KV cache and "
        f"{max(0, have) / GIB:.2f} GiB are available{advice}"
    )
    return Refusal(needed, have, estimate, text)


def _derivation(pool: Pool, sizes: BlockSizes, rules: Rules) -> tuple[str, ...]:
    """The arithmetic, one line a step, with its numbers."""
    lines = [f"block size {sizes.block} tokens: {sizes.why}"]
    if sizes.state_page is not None:
        lines.append(f"state pages padded to {sizes.state_page} B, the attention page")
    for index, group in enumerate(pool.groups):
        pages: dict[tuple[int, str], list[CacheLayer]] = {}
        for layer in group.layers:
            pages.setdefault((layer.page, layer.unit.formula), []).append(layer)
        held = " + ".join(f"{len(alike)} x {page} B [{formula}]" for (page, formula), alike in pages.items())
        blocks = pool.demand.group_blocks(group, pool.length)
        lines.append(
            f"group {index} ({_NAMES[group.layers[0].family]}, {group.block} tokens a block): {held}; "
            f"one request takes {pool.demand.text(group.layers[0], pool.length)} = {blocks} blocks"
        )
    for stage, (have, size) in enumerate(zip(pool.available, pool.block_bytes, strict=True)):
        if size:
            lines.append(f"stage {stage}: floor({have} B / {size} B, the widest group) = {have // size} blocks")
    if pool.request:
        lines.append(f"concurrency = {pool.num_blocks} blocks / {pool.request} blocks a request")
    if rules["counted_by"] == "concurrency":
        lines.append(f"logged tokens = floor(concurrency x {pool.length})")
    else:
        lines.append(f"logged tokens = floor({pool.num_blocks} / {len(pool.groups)} groups) x smallest block")
    return tuple(lines)
