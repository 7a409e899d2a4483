"""From a scenario to a running simulation: the same model, bytes and engine pools as `kvplan estimate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvplan.errors import InputError, show
from kvplan.performance.reads import TICKS
from kvplan.performance.step import AffineStep, StepTime
from kvplan.simulator.engine import Engine
from kvplan.simulator.laws import GroupLaw, Layout
from kvplan.simulator.metrics import Metrics, Slos
from kvplan.simulator.pool import Pool
from kvplan.simulator.request import Request
from kvplan.simulator.run import Handover, Replica, Route, Simulation
from kvplan.simulator.scenario import EngineSettings, Scenario, Tier
from kvplan.simulator.settings import Settings
from kvplan.simulator.slots import SlotEngine
from kvplan.simulator.tiers import Link, TierState
from kvplan.simulator.workload import build_source

if TYPE_CHECKING:
    from kvplan.cache.size import CachePlan
    from kvplan.cache.techniques.runtime import Techniques
    from kvplan.engines.base import EngineAnswer
    from kvplan.hardware.accelerators import Accelerator
    from kvplan.spec.model import ModelSpec


@dataclass(frozen=True)
class Setup:
    """What a scenario comes to: layout, step time, limits, and where the figures are from."""

    layout: Layout
    step_time: StepTime | None
    settings: Settings
    block_bytes: int
    max_model_len: int
    says: tuple[str, ...]
    tier: Tier | None = None


@dataclass(frozen=True)
class Built:
    """A simulation ready to run."""

    simulation: Simulation
    metrics: Metrics
    setup: Setup
    replicas: tuple[Engine | SlotEngine, ...]


def build(scenario: Scenario, folder: Path, progress: Callable[[int, int], None] | None = None) -> Built:
    """Assemble a scenario. Raises InputError for what doesn't go together or doesn't fit."""
    setup = _setup(scenario, folder)
    metrics = Metrics(Slos(scenario.slo.ttft, scenario.slo.tpot, scenario.slo.e2e), scenario.warmup_requests)
    split = scenario.disaggregation
    count = scenario.replicas if split is None else split.prefill + split.decode
    replicas = tuple(_replica(scenario, setup, metrics, number) for number in range(count))
    source = build_source(scenario, folder)
    route: Route = ROUTES[scenario.routing]()
    handover: Handover | None = None
    if split is not None:
        relay = Relay(split.prefill, split.decode, setup, split.bandwidth, split.latency, route)
        route, handover = relay.route, relay.handover
        relay.replicas = replicas
    lose = None
    if scenario.failure is not None:
        if scenario.failure.replica >= count or count < 2 or split is not None:
            raise InputError(
                f"failure.replica: found {scenario.failure.replica}, expected one of at least two replicas"
            )
        lose = (round(scenario.failure.time * TICKS), scenario.failure.replica)
    simulation = Simulation(replicas, source, metrics, route, handover, lose, progress)
    return Built(simulation, metrics, setup, replicas)


def _replica(scenario: Scenario, setup: Setup, metrics: Metrics, number: int) -> Engine | SlotEngine:
    engine = scenario.engine
    if scenario.step_time.kind == "fixed_service":
        return SlotEngine(engine.max_num_seqs, metrics, engine.queue_limit, number)
    assert setup.step_time is not None
    tier = None
    if setup.tier is not None:
        asked = setup.tier
        link = Link(asked.bandwidth, asked.latency)
        capacity = asked.capacity // setup.block_bytes
        tier = TierState(asked.name, capacity, setup.block_bytes, link, asked.write == "through")
    pool = Pool(
        setup.layout.blocks, setup.layout.groups[0].block, engine.eviction_policy,
        engine.touch_order == "last_to_first", tier.evicted if tier is not None else None,
    )  # fmt: skip
    return Engine(setup.layout, setup.step_time, setup.settings, pool, metrics, number, tier)


def _setup(scenario: Scenario, folder: Path) -> Setup:
    asked, step = scenario.engine, scenario.step_time
    if step.kind == "fixed_service":
        return Setup(Layout((GroupLaw("full", 16),), 0), None, Settings(), 0, 0, ("fixed service times",))
    says: list[str] = []
    block_bytes = 0
    plan: CachePlan | None = None
    techniques: Techniques | None = None
    if scenario.model is None:
        layout = Layout((GroupLaw("full", asked.block_size or 16),), asked.num_blocks or 0)
        max_len = asked.max_model_len or 1 << 40
    else:
        spec, plan, techniques = _model(scenario, says)
        answer, device = _engine(scenario, spec, says)
        layout = _layout(answer, spec)
        block_bytes = max(answer.bytes_per_block)
        max_len = asked.max_model_len or spec.max_context or answer.max_model_len
    if asked.layout == "contiguous":
        block = layout.groups[0].block
        reserved = -(-max_len // block)
        layout = Layout((GroupLaw("fixed", block, blocks=reserved),), layout.blocks)
        says.append(f"contiguous reservation: {reserved:,} blocks of {block} tokens for every request")
    settings = _settings(asked, block_bytes, max_len, techniques)
    if step.kind in ("constant_step", "affine"):
        per_sequence = round(step.per_sequence * TICKS) if step.kind == "affine" else 0
        step_time: StepTime = AffineStep(round((step.base or 0.0) * TICKS), per_sequence, step.kind)
        settings = replace(settings, emits=False)
    else:
        assert plan is not None
        step_time = _step_time(scenario, plan, device, folder, says)
    tier = _tier(scenario, techniques, layout, block_bytes, says)
    return Setup(layout, step_time, settings, block_bytes, max_len, tuple(says), tier)


def _tier(
    scenario: Scenario, techniques: Techniques | None, layout: Layout, block_bytes: int, says: list[str]
) -> Tier | None:
    """The tier of the scenario, or of its `offload` technique."""
    tier = scenario.tiers[0] if scenario.tiers else None
    if tier is None and techniques is not None and techniques.offload is not None:
        offload = techniques.offload
        name: Literal["cpu", "nvme", "remote"] = (
            "nvme" if offload.tier == "nvme" else "remote" if offload.tier == "network" else "cpu"
        )
        tier = Tier(name=name, capacity=offload.capacity_bytes, bandwidth=offload.bandwidth)
    if tier is None:
        return None
    if not block_bytes or not layout.shares_prefixes or not scenario.engine.enable_prefix_caching:
        raise InputError("tiers: found a tier without prefix caching of full blocks, expected a full-attention model")
    says.append(f"tier {tier.name}: {tier.capacity:,} B behind {tier.bandwidth:,} B/s one way, shared fairly")
    return tier


def _model(scenario: Scenario, says: list[str]) -> tuple[ModelSpec, CachePlan, Techniques | None]:
    from kvplan.cache.precision import resolve_precision
    from kvplan.cache.size import plan_cache
    from kvplan.spec.resolve import resolve_model

    spec = resolve_model(scenario.model or "").spec
    ranks = scenario.hardware.tensor_parallel if scenario.hardware is not None else 1
    precision = resolve_precision(scenario.engine.kv_cache_dtype, model_dtype=spec.dtype)
    plan = plan_cache(spec, precision, ranks=ranks)
    if not scenario.techniques:
        return spec, plan, None
    from kvplan.cache.techniques.compose import compose_plan
    from kvplan.cache.techniques.runtime import techniques_from_list

    techniques = techniques_from_list([dict(item) for item in scenario.techniques])
    if techniques.sparse_read is not None:
        if ranks > 1:
            raise InputError("techniques.sparse-read: found it with tensor_parallel above 1, expected one rank")
        plan = compose_plan(spec, precision, replace(techniques, evict=None, share_prefix=None, offload=None), 1)
        says.append("sparse reads change the time of a step and not the blocks")
    if techniques.evict is not None:
        says.append("an eviction rule frees blocks at the end of the prefill; prefix caching is off with it")
    return spec, plan, techniques


def _engine(scenario: Scenario, spec: ModelSpec, says: list[str]) -> tuple[EngineAnswer, Accelerator]:
    """Blocks and groups as vLLM lays them out in what the hardware leaves for the cache."""
    from kvplan.engines.base import Device, Parallelism
    from kvplan.engines.vllm.planner import VllmEngine
    from kvplan.hardware.accelerators import find

    asked, hardware = scenario.engine, scenario.hardware
    if hardware is None:
        raise InputError("hardware: found nothing, expected a gpu for a scenario with a model")
    device = find(hardware.gpu, "hardware.gpu")
    available = asked.kv_cache_memory or _left_over(scenario, spec, device, says)
    flags: dict[str, Any] = {
        "max_num_seqs": asked.max_num_seqs,
        "max_num_batched_tokens": asked.max_num_batched_tokens,
        "enable_prefix_caching": asked.enable_prefix_caching,
        "block_size": asked.block_size,
        "num_gpu_blocks_override": asked.num_blocks,
        "kv_cache_dtype": asked.kv_cache_dtype if asked.kv_cache_dtype != "bf16" else "bfloat16",
    }

    def plan(max_model_len: int | None) -> EngineAnswer:
        given = {name: value for name, value in (*flags.items(), ("max_model_len", max_model_len)) if value is not None}
        parallel = Parallelism(tensor=hardware.tensor_parallel)
        target = Device(device.slug, device.memory_bytes, (9, 0))
        return VllmEngine().plan(spec, given, parallel, [available], target, asked.version)

    answer = plan(asked.max_model_len)
    if answer.refused is not None and answer.estimated_max_model_len:
        why = " ".join(answer.refused.text.split())
        says.append(f"vLLM would refuse to start: {why}; simulated all the same, with what doesn't fit as unservable")
        answer = plan(answer.estimated_max_model_len)
    if answer.refused is not None or not answer.usable_blocks:
        text = answer.refused.text if answer.refused is not None else "no block fits"
        raise InputError(f"engine: found a pool that vLLM refuses ({' '.join(text.split())[:200]}), expected more room")
    says.append(f"vLLM {answer.version}: {answer.usable_blocks:,} usable blocks of {max(answer.bytes_per_block):,} B")
    return answer, device


def _left_over(scenario: Scenario, spec: ModelSpec, device: Accelerator, says: list[str]) -> int:
    from kvplan.memory.weights import weight_bytes

    hardware = scenario.hardware
    weights = weight_bytes(spec)
    assert hardware is not None
    if weights is None:
        raise InputError(f"model: found {show(spec.id)} without a weight size, expected engine.kv_cache_memory")
    per_rank = -(-weights.total_bytes // hardware.tensor_parallel)
    usable = int(device.memory_bytes * hardware.memory_utilization)
    left = usable - per_rank - hardware.reserve
    says.append(
        f"{left:,} B for the cache = {hardware.memory_utilization:g} of {device.memory_bytes:,} B - {per_rank:,} B of "
        f"weights - {hardware.reserve:,} B reserved for activations, graphs and buffers (hardware.reserve)"
    )
    if left <= 0:
        raise InputError(f"hardware: found {device.slug} with no room beside the weights, expected a larger device")
    return left


def _layout(answer: EngineAnswer, spec: ModelSpec) -> Layout:
    groups = []
    window = _window(spec)
    for group in answer.groups:
        if group.kind in ("full attention", "latent attention"):
            groups.append(GroupLaw("full", group.block_tokens))
        elif group.kind.startswith(("sliding", "chunked")) and window:
            groups.append(GroupLaw("window", group.block_tokens, window))
        else:
            groups.append(GroupLaw("fixed", group.block_tokens, blocks=group.blocks_per_request))
    return Layout(tuple(groups), answer.usable_blocks or 0)


def _window(spec: ModelSpec) -> int:
    from kvplan.spec.model import branches

    windows = {
        getattr(layer, "window", None) or getattr(layer, "chunk", None) or 0
        for name in spec.counts
        for layer in branches(spec.blocks[name])
    }
    return max(windows, default=0)


def _settings(asked: EngineSettings, block_bytes: int, max_len: int, techniques: Techniques | None) -> Settings:
    rule = techniques.evict if techniques is not None else None
    return Settings(
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_model_len=max_len,
        chunked_prefill=asked.enable_chunked_prefill,
        order=asked.scheduling_policy,
        admission=asked.admission,
        new_token_ratio=asked.new_token_ratio,
        preemption=asked.preemption,
        swap_ticks=round(block_bytes / asked.swap_bandwidth * TICKS),
        prefix_caching=asked.enable_prefix_caching,
        kept=rule.kept if rule is not None else None,
        kept_grows=rule.grows if rule is not None else False,
    )


def _step_time(scenario: Scenario, plan: CachePlan, device: Accelerator, folder: Path, says: list[str]) -> StepTime:
    from kvplan.hardware.profile import load_profile
    from kvplan.performance.factors import find_factors, with_profile
    from kvplan.performance.step import model_step

    step = scenario.step_time
    factors = find_factors(device.slug, step.kind)
    if step.profile is not None:
        factors = with_profile(factors, load_profile(folder / step.profile), device)
    factors = replace(factors, scale=step.scale, host=factors.host if step.host is None else step.host)
    says.append(f"step time {step.kind}, factors {factors.name}: {factors.source}")
    assert scenario.hardware is not None
    return model_step(plan, device, factors, scenario.hardware.tensor_parallel)


class Relay:
    """Prefill on the first replicas, decode on the others; a prefill replica sends one cache after another."""

    def __init__(self, prefill: int, decode: int, setup: Setup, bandwidth: int, latency: float, route: Route) -> None:
        self.prefill, self.setup, self.chosen = prefill, setup, route
        self.replicas: Sequence[Replica] = ()
        self._per_tick, self._latency = bandwidth / TICKS, round(latency * TICKS)
        self._free = [0] * prefill
        self._outputs: dict[int, int] = {}
        self._on_the_way = [0] * (prefill + decode)
        self.moved_bytes = 0

    def route(self, request: Request, replicas: Sequence[Replica]) -> int:
        """A prefill replica, where the request is to write its first token only."""
        self._outputs[request.id] = request.output
        request.output = 1
        return self.chosen(request, replicas[: self.prefill])

    def handover(self, request: Request) -> tuple[int, Request] | None:
        """Send a prefilled request's cache to the decode replica with the least to do."""
        sender = request.replica
        if sender >= self.prefill:
            self._on_the_way[sender] -= 1
            return None
        request.output = max(1, min(self._outputs.pop(request.id), self.setup.max_model_len - request.prompt))
        if request.output == 1:
            return None
        size = self.setup.layout.at_rest(request.prompt) * self.setup.block_bytes
        begin = max(request.finished, self._free[sender])
        self._free[sender] = begin + round(size / self._per_tick)
        self.moved_bytes += size
        places = range(self.prefill, len(self.replicas))
        request.replica = min(places, key=lambda place: (self._on_the_way[place], place))
        self._on_the_way[request.replica] += 1
        request.swapped, request.stored, request.finished = True, request.prompt, -1
        request.held, request.registered = [], 0
        return self._free[sender] + self._latency, request


def _round_robin() -> Route:
    turn = [-1]

    def route(request: Request, replicas: Sequence[Replica]) -> int:
        turn[0] = (turn[0] + 1) % len(replicas)
        return turn[0]

    return route


def _least_loaded() -> Route:
    return lambda request, replicas: min(range(len(replicas)), key=lambda place: (replicas[place].load, place))


def _prefix_aware() -> Route:
    """The replica with the longest resident prefix, unless it has twice the load of the least loaded one and more."""

    def route(request: Request, replicas: Sequence[Replica]) -> int:
        least = min(replica.load for replica in replicas)

        def rank(place: int) -> tuple[int, int, int]:
            replica = replicas[place]
            crowded = replica.load > 2 * least + 4
            pool = replica.pool if isinstance(replica, Engine) else None
            hits = pool.match(request, request.prompt - 1)[1] if pool is not None and not crowded else 0
            return (-hits, replica.load, place)

        return min(range(len(replicas)), key=rank)

    return route


ROUTES: dict[str, Callable[[], Route]] = {
    "round_robin": _round_robin,
    "least_loaded": _least_loaded,
    "prefix_aware": _prefix_aware,
}
