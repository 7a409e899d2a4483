"""The plan in vLLM's words: groups, log lines, refusal, settings and the arithmetic behind them."""

from __future__ import annotations

from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Refusal, Setting
from kvplan.engines.versions import Rules
from kvplan.engines.vllm.blocks import BlockSizes, CacheLayer
from kvplan.engines.vllm.capacity import request_blocks
from kvplan.engines.vllm.grouping import LayerGroup
from kvplan.engines.vllm.pages import Model
from kvplan.engines.vllm.pool import BlockPool, host_pool
from kvplan.engines.vllm.settings import Resolved
from kvplan.record import record
from kvplan.units import GIB

_NAMES = {"full": "full attention", "latent": "latent attention", "sliding": "sliding window",
          "sliding_latent": "sliding window of latents", "chunked": "chunked attention", "cross": "cross attention",
          "state": "recurrent state"}  # fmt: skip
DEFAULT_SWAP_BYTES = 4 * GIB


@record
class Plan:
    """Everything the answer is made of."""

    rules: Rules
    resolved: Resolved
    parallel: Parallelism
    device: Device
    model: Model
    sizes: BlockSizes
    pool: BlockPool
    offload_bytes: int | None = None


def answer(plan: Plan, warnings: tuple[str, ...]) -> EngineAnswer:
    """Tell the plan as vLLM would, refusal or log lines."""
    pool, stages = plan.pool, plan.parallel.pipeline
    refusal = _refusal(pool, plan.resolved)
    started = refusal is None
    concurrency = pool.num_blocks / pool.request if pool.request and started else None
    tokens = None if concurrency is None else _logged_tokens(plan, concurrency)
    needed = pool.request * max(pool.block_bytes)
    return EngineAnswer(
        name="vllm",
        version=plan.rules.version,
        max_model_len=pool.length,
        num_blocks=pool.num_blocks if started else None,
        usable_blocks=pool.num_blocks - 1 if started else None,
        bytes_per_block=pool.block_bytes,
        blocks_per_request=pool.request,
        capacity_tokens=tokens,
        max_concurrency=concurrency,
        needed_bytes_one_request=needed,
        reserved_bytes_one_request=needed,
        groups=tuple(_group(group, pool, stages) for group in pool.groups),
        log_lines=() if tokens is None or concurrency is None else _log_lines(plan, tokens, concurrency),
        refused=refusal,
        estimated_max_model_len=refusal.estimated_max_model_len if refusal else None,
        settings=_settings(plan),
        derivation=_derivation(plan),
        warnings=warnings,
        assumptions=plan.model.assumptions,
        pools=_pools(plan) if started else (),
    )


def _settings(plan: Plan) -> tuple[Setting, ...]:
    names = [backend.name for backend in plan.model.backends]
    settings = [
        *plan.resolved.settings,
        Setting("block_size", plan.sizes.block, plan.sizes.why),
        Setting("attention_backends", names, "compute capability, head width and cache dtype"),
    ]
    if plan.pool.has_states:
        settings.append(Setting("mamba_block_size", plan.sizes.state_block, "mamba_cache_mode"))
    return tuple(settings)


def _pools(plan: Plan) -> tuple[Pool, ...]:
    pool, layers = plan.pool, sum(len(group.layers) for group in plan.pool.groups)
    taken = tuple(pool.num_blocks * size for size in pool.block_bytes)
    pools = [Pool("blocks", layers, pool.num_blocks, max(pool.block_bytes), sum(taken), bytes_per_stage=taken)]
    if plan.offload_bytes is not None and (host := host_pool(pool, plan.offload_bytes, plan.parallel)) is not None:
        pools.append(host)
    return tuple(pools)


def _group(group: LayerGroup, pool: BlockPool, stages: int) -> Group:
    families = list(dict.fromkeys(_NAMES[layer.family] for layer in group.layers))
    return Group(
        kind=" and ".join(families),
        layers=len(group.layers),
        layers_per_stage=tuple(sum(layer.stage == stage for layer in group.layers) for stage in range(stages)),
        block_tokens=group.block,
        page_bytes=sum(layer.page for layer in group.layers) if group.uniform else group.layers[0].page,
        bytes_per_block=max(group.page_bytes(stage) for stage in range(stages)),
        blocks_per_request=pool.demand.group_blocks(group, pool.length),
    )


def _logged_tokens(plan: Plan, concurrency: float) -> int:
    """The tokens the release prints: whole blocks, or concurrency x length."""
    pool = plan.pool
    if plan.rules["counted_by"] == "concurrency":
        return int(concurrency * pool.length)
    smallest = min(group.block for group in pool.groups)
    return pool.num_blocks // len(pool.groups) * smallest * plan.parallel.decode_context


def _log_lines(plan: Plan, tokens: int, concurrency: float) -> tuple[str, ...]:
    rules, pool = plan.rules, plan.pool
    if rules["counted_by"] == "gpu_blocks":
        swapped = DEFAULT_SWAP_BYTES // max(pool.block_bytes)
        blocks = f"# {rules['blocks_word']} blocks: {pool.num_blocks}, # CPU blocks: {swapped}"
        return blocks, f"Maximum concurrency for {pool.length} tokens per request: {concurrency:.2f}x"
    device = "CPU" if plan.device.kind == "cpu" and rules["log_device"] == "device" else "GPU"
    size = f"{device} KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {pool.length:,} tokens per request: {concurrency:.2f}x"
    return (f"{size}, {most}",) if rules["log_lines"] == "one" else (size, most)


def _refusal(pool: BlockPool, resolved: Resolved) -> Refusal | None:
    if pool.poorest is None:
        return None
    block, have = pool.block_bytes[pool.poorest], pool.checked[pool.poorest]
    needed = (request_blocks(pool.groups, pool.demand, 1) if resolved.auto_fit else pool.request) * block
    estimate = pool.estimate or None
    advice = f"the longest that fits is {estimate} tokens" if estimate else "not even one token fits"
    text = (
        f"one request of {resolved.max_model_len} tokens needs {needed / GIB:.2f} GiB of KV cache and "
        f"{max(0, have) / GIB:.2f} GiB are available; {advice}"
    )
    return Refusal(needed, have, estimate, text)


def _derivation(plan: Plan) -> tuple[str, ...]:
    """The arithmetic, one line a step, with its numbers."""
    pool, sizes = plan.pool, plan.sizes
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
    if plan.rules["counted_by"] == "concurrency":
        lines.append(f"logged tokens = floor(concurrency x {pool.length})")
    else:
        lines.append(f"logged tokens = floor({pool.num_blocks} blocks / {len(pool.groups)} groups) x smallest block")
    return tuple(lines)
