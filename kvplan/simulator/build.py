"""From a scenario to a running simulation: the same model, bytes and engine pools as `kvplan estimate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvplan.errors import InputError
from kvplan.performance.factors import find_factors, with_profile
from kvplan.performance.reads import TICKS
from kvplan.performance.step import AffineStep, StepTime, model_step
from kvplan.simulator.engine import Engine
from kvplan.simulator.laws import GroupLaw, Layout
from kvplan.simulator.metrics import Metrics, Slos
from kvplan.simulator.pool import Pool
from kvplan.simulator.request import Request
from kvplan.simulator.room import engine_answer, layout_of, resolved
from kvplan.simulator.run import Handover, Replica, Route, Simulation
from kvplan.simulator.scenario import EngineSettings, Scenario, Tier
from kvplan.simulator.settings import Settings
from kvplan.simulator.slots import SlotEngine
from kvplan.simulator.tiers import Link, Store, Tiers
from kvplan.simulator.workload import build_source

if TYPE_CHECKING:
    from kvplan.cache.size import CachePlan
    from kvplan.cache.techniques.runtime import Techniques
    from kvplan.hardware.accelerators import Accelerator
    from kvplan.spec.resolve import LoadedModel


@dataclass(frozen=True)
class Setup:
    """What a scenario comes to: the engine's settings with its defaults, layout, step time, limits, and where the
    figures are from. `step_models` are the calibrated step time and the bare roofline, to be shown side by side."""

    engine: EngineSettings
    layout: Layout
    step_time: StepTime | None
    settings: Settings
    block_bytes: int
    max_model_len: int
    says: tuple[str, ...]
    tiers: tuple[Tier, ...] = ()
    step_models: tuple[StepTime, ...] = ()


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
    engine = setup.engine
    if scenario.step_time.kind == "fixed_service":
        return SlotEngine(setup.settings.max_num_seqs, metrics, engine.queue_limit, number)
    assert setup.step_time is not None
    tiers = Tiers([_store(tier, setup.block_bytes) for tier in setup.tiers]) if setup.tiers else None
    pool = Pool(
        setup.layout.blocks, setup.layout.groups[0].block, engine.eviction_policy,
        engine.touch_order == "last_to_first", tiers.evicted if tiers is not None else None,
    )  # fmt: skip
    return Engine(setup.layout, setup.step_time, setup.settings, pool, metrics, number, tiers)


def _store(tier: Tier, block_bytes: int) -> Store:
    link = Link(tier.bandwidth, tier.latency)
    return Store(
        tier.name, tier.capacity // block_bytes, block_bytes, link, tier.write == "through", tier.pinned
    )  # fmt: skip


def _setup(scenario: Scenario, folder: Path) -> Setup:
    asked, step = resolved(scenario.engine, None), scenario.step_time
    if step.kind == "fixed_service":
        settings, layout = _settings(asked, 0, 1 << 40, None), Layout((GroupLaw("full", 16),), 0)
        return Setup(asked, layout, None, settings, 0, 0, ("fixed service times",))
    says: list[str] = []
    block_bytes = 0
    plan: CachePlan | None = None
    techniques: Techniques | None = None
    models: tuple[StepTime, ...] = ()
    if scenario.model is None:
        layout = Layout((GroupLaw("full", asked.block_size or 16),), asked.num_blocks or 0)
        max_len = asked.max_model_len or 1 << 40
    else:
        loaded, plan, techniques = _model(scenario, says)
        answer, device = engine_answer(scenario, loaded, says)
        asked, layout = resolved(scenario.engine, answer), layout_of(answer, loaded.spec)
        block_bytes = max(answer.bytes_per_block)
        max_len = asked.max_model_len or loaded.spec.max_context or answer.max_model_len
        if asked.enable_prefix_caching and not layout.shares_prefixes:
            says.append("prefix hits of models with windows or recurrent states aren't simulated: all prompts miss")
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
        assert plan is not None and scenario.hardware is not None
        step_time = _step_time(scenario, plan, device, folder, says)
        other = "roofline" if step.kind == "calibrated" else "calibrated"
        beside = model_step(plan, device, find_factors(device.slug, other), scenario.hardware.tensor_parallel)
        models = (step_time, beside) if other == "roofline" else (beside, step_time)
    tiers = _tiers(scenario, techniques)
    if tiers and not (block_bytes and layout.shares_prefixes and asked.enable_prefix_caching):
        raise InputError("tiers: found a tier without prefix caching of full blocks, expected a full-attention model")
    for tier in tiers:
        says.append(f"tier {tier.name}: {tier.capacity:,} B behind {tier.bandwidth:,} B/s one way, shared fairly")
    return Setup(asked, layout, step_time, settings, block_bytes, max_len, tuple(says), tiers, models)


def _tiers(scenario: Scenario, techniques: Techniques | None) -> tuple[Tier, ...]:
    """The tiers of the scenario, or the one of its `offload` technique."""
    if not scenario.tiers and techniques is not None and techniques.offload is not None:
        offload = techniques.offload
        name: Literal["cpu", "nvme", "remote"] = (
            "nvme" if offload.tier == "nvme" else "remote" if offload.tier == "network" else "cpu"
        )
        return (Tier(name=name, capacity=offload.capacity_bytes, bandwidth=offload.bandwidth),)
    return scenario.tiers


def _model(scenario: Scenario, says: list[str]) -> tuple[LoadedModel, CachePlan, Techniques | None]:
    from kvplan.cache.precision import resolve_precision
    from kvplan.cache.size import plan_cache
    from kvplan.spec.resolve import resolve_model

    loaded = resolve_model(scenario.model or "")
    spec = loaded.spec
    ranks = scenario.hardware.tensor_parallel if scenario.hardware is not None else 1
    precision = resolve_precision(scenario.engine.kv_cache_dtype, model_dtype=spec.dtype)
    plan = plan_cache(spec, precision, ranks=ranks)
    if not scenario.techniques:
        return loaded, plan, None
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
    return loaded, plan, techniques


def _settings(asked: EngineSettings, block_bytes: int, max_len: int, techniques: Techniques | None) -> Settings:
    rule = techniques.evict if techniques is not None else None
    plain = Settings()
    return Settings(
        max_num_seqs=asked.max_num_seqs or plain.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens or plain.max_num_batched_tokens,
        max_model_len=max_len,
        chunked_prefill=asked.enable_chunked_prefill,
        order=asked.scheduling_policy,
        admission=asked.admission,
        new_token_ratio=asked.new_token_ratio,
        preemption=asked.preemption,
        swap_ticks=round(block_bytes / asked.swap_bandwidth * TICKS),
        prefix_caching=bool(asked.enable_prefix_caching),
        kept=rule.kept if rule is not None else None,
        kept_grows=rule.grows if rule is not None else False,
    )


def _step_time(scenario: Scenario, plan: CachePlan, device: Accelerator, folder: Path, says: list[str]) -> StepTime:
    from kvplan.hardware.profile import load_profile

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
