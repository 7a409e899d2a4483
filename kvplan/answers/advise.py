"""Which lever to pull: from the constraint to the ranked changes that this checkpoint and this engine really have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from kvplan.answers.advise_words import constraint, gain_text, memory_words
from kvplan.answers.composed import CacheOptions
from kvplan.answers.fit import USABLE_SHARE_PERCENT, weights_of
from kvplan.answers.levers import (
    Candidate,
    Ruled,
    candidates,
    in_checkpoint,
    lever_words,
    needs_training,
)
from kvplan.answers.on_engine import OnEngine, on_engine
from kvplan.answers.ranking import Goal, helping_levers
from kvplan.answers.records import Model
from kvplan.answers.schema import document_schema
from kvplan.answers.standing import Deployment, Standing
from kvplan.cache.techniques.catalog import find_technique
from kvplan.cache.techniques.offload import Offload, parse_offload
from kvplan.engines.registry import canonical_engine
from kvplan.engines.support import require_dtype, require_layers, supports
from kvplan.errors import InputError, did_you_mean, show
from kvplan.estimator import loaded_model, model_record, resolve_context
from kvplan.hardware.accelerators import Accelerator, find
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.spec.resolve import LoadedModel
from kvplan.units import GIB, parse_bytes, parse_tokens, tokens

GOALS: tuple[Goal, ...] = get_args(Goal)
MAX_GPUS = 100_000
_RANKS = ("parallel", "decode-context")
_UNITS: dict[Goal, Literal["tokens", "ms", "sessions"]] = {
    "capacity": "tokens", "latency": "ms", "idle-sessions": "sessions", "context": "tokens",
}  # fmt: skip


@record
class Present:
    """A technique the checkpoint was trained with: what it saves already, and whether the engine carries it out."""

    technique: str
    memory_saved: float
    reads_saved: float
    support: str
    note: str


@record
class Lever:
    """One change, its gain for the goal in `gain_unit`, and what goes with it.

    `risk` is that of other answers: exact, low (8 bits), medium (4 bits, sparse reads) or high. `support` is the
    engine's: Y yes, P partly. `memory` says what happens to memory, which is not always less of it.
    """

    rank: int
    technique: str
    setting: str
    gain: str
    gain_value: float
    gain_unit: Literal["tokens", "ms", "sessions"]
    risk: Literal["exact", "low", "medium", "high"]
    support: str
    note: str
    memory: str
    after: Standing
    tests: tuple[str, ...]
    guardrails: tuple[str, ...]
    rollback: str
    evidence: str


@record
class Advice:
    """The whole answer. `choice` is the rank of the lever with the largest gain among those that run the batch (or at
    least one sequence, where none does): of risk exact or low on the same GPUs, else of all; null where none runs any.
    `exit_code` is 1 when the batch fits neither now nor with the choice.
    """

    schema_version: int
    command: Literal["advise"]
    model: Model
    engine: str
    gpu: str
    gpus: int
    goal: Goal
    context_tokens: int
    batch: int
    constraint: str
    now: Standing
    weight_read_seconds: float | None
    present: tuple[Present, ...]
    levers: tuple[Lever, ...]
    choice: int | None
    ruled_out: tuple[Ruled, ...]
    assumptions: tuple[str, ...]
    evidence: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def chosen(self) -> Lever | None:
        """The lever that `choice` names."""
        return next((lever for lever in self.levers if lever.rank == self.choice), None)

    @property
    def exit_code(self) -> int:
        best = self.now if self.chosen is None else self.chosen.after
        return 1 if max(self.now.sequences, best.sequences) < self.batch else 0

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Advice.to_dict` returns."""
    return document_schema(Advice, "kvplan advise")


def advise(
    model: str | ModelSpec | LoadedModel,
    *,
    gpu: str,
    goal: str,
    ctx: int | str | None = None,
    batch: int = 1,
    engine: str = "vllm",
    num_gpus: int = 1,
    kv_cache_dtype: str = "auto",
    share_prefix: int | str | None = None,
    offload: str | None = None,
    pool: str | int | None = None,
    block_size: int = 16,
    model_dir: Path | None = None,
) -> Advice:
    """Rank what can be changed for `goal` with `model` on `num_gpus` of `gpu` under `engine`.

    `share_prefix` tokens are taken to be equal in all requests, `offload` is the tier that idle sessions may wait on
    (host memory of 64 GiB by default), `pool` the KV bytes of one GPU where they are known. Raises InputError for a
    wrong value, and for what the engine would not start with.
    """
    wanted = next((known for known in GOALS if known == goal), None)
    if wanted is None:
        raise InputError(f"--goal: found {show(goal)}, expected one of {', '.join(GOALS)}{did_you_mean(goal, GOALS)}")
    counts = (("--num-gpus", num_gpus, MAX_GPUS), ("--batch", batch, 10**9), ("--block-size", block_size, 1 << 20))
    for field, value, high in counts:
        if isinstance(value, bool) or not 1 <= value <= high:
            raise InputError(f"{field}: found {show(value)}, expected a whole number from 1 to {high:,}")
    loaded = loaded_model(model, model_dir)
    spec, name, device = loaded.spec, canonical_engine(engine), find(gpu)
    layer_warnings = require_layers(name, spec)
    base = CacheOptions(kv_cache_dtype=kv_cache_dtype)
    if kv_cache_dtype.strip().lower() != "auto":
        base = CacheOptions(kv_cache_dtype=require_dtype(name, kv_cache_dtype))
    context, _ = resolve_context(spec, ctx)
    tier = parse_offload(offload) if offload is not None else _host_tier(device)
    shared = None if share_prefix is None else parse_tokens(share_prefix, "--share-prefix")
    if shared is not None and shared >= context:
        raise InputError(
            f"--share-prefix: found {tokens(shared)} tokens, expected fewer than the {tokens(context)} of the context"
        )
    deployment = _deployment(loaded, device, num_gpus, context, batch, block_size, pool)
    at = on_engine(loaded, name, deployment, base)
    now = at.standing(base, gpus=num_gpus)
    found, ruled = candidates(spec, name, device, base, num_gpus, shared, tier)
    pools = bool(supports(name, "paging"))
    levers = tuple(
        _lever(rank, gain, candidate, now, after, wanted, deployment, pools)
        for rank, (gain, candidate, after) in enumerate(helping_levers(at, now, base, found, wanted, ruled), 1)
    )
    choice = _choice(levers, now, batch)
    return Advice(
        schema_version=1,
        command="advise",
        model=model_record(spec),
        engine=name,
        gpu=device.name,
        gpus=num_gpus,
        goal=wanted,
        context_tokens=context,
        batch=batch,
        constraint=constraint(wanted, deployment, now),
        now=now,
        weight_read_seconds=deployment.weight_seconds,
        present=tuple(
            Present(technique, memory, reads, support.level, support.note)
            for technique, memory, reads, support in in_checkpoint(spec, name, context)
        ),
        levers=levers,
        choice=choice,
        ruled_out=(*ruled, *needs_training(spec)),
        assumptions=(*_pool_words(at), *_assumptions(deployment, tier), *spec.assumptions),
        evidence=_evidence(spec, device, name, levers),
        warnings=(*layer_warnings, *_too_many(now, batch, levers, choice)),
    )


def _too_many(now: Standing, batch: int, levers: tuple[Lever, ...], choice: int | None) -> Iterator[str]:
    if now.sequences >= batch:
        return
    yield f"a batch of {batch:,} at this context does not run at once: the pool holds {now.sequences:,}"
    best = max((lever.after.sequences for lever in levers if lever.rank == choice), default=now.sequences)
    if best < batch:
        most = max((lever.after.sequences for lever in levers), default=now.sequences)
        yield f"no lever here reaches {batch:,}: the most that one alone holds is {max(most, now.sequences):,}"


def _deployment(
    loaded: LoadedModel, device: Accelerator, gpus: int, context: int, batch: int, block: int, pool: str | int | None
) -> Deployment:
    weights, _ = weights_of(loaded)
    given = None if pool is None else parse_bytes(pool, "--pool")
    if weights is None and given is None:
        raise InputError(
            f"--gpu: the weights of {loaded.spec.id} are unknown, expected a spec with parameter counts or --pool with "
            "the KV bytes of one GPU"
        )
    usable = device.memory_bytes * USABLE_SHARE_PERCENT // 100
    size = None if weights is None else weights.bytes
    return Deployment(loaded.spec, device, gpus, context, batch, block, usable, size, given)


def _pool_words(at: OnEngine) -> Iterator[str]:
    yield from weights_of(at.loaded)[1]
    if at.predicted:
        yield (
            f"pool, tokens and sequences are those of kvplan estimate --engine {at.engine} with the engine's defaults "
            "(--pool with the log's figure is more exact)"
        )
    elif at.filling:
        yield (
            f"one GPU's pool is {USABLE_SHARE_PERCENT} % of its memory less its share of the weights; activations and "
            "the engine's own buffers take some of it (--pool with the log's figure is more exact)"
        )


def _host_tier(device: Accelerator) -> Offload:
    """64 GiB of host memory behind the link that the device has."""
    if device.c2c_bandwidth is not None:
        return Offload("nvlink-c2c", 64 * GIB, int(device.c2c_bandwidth // 2))
    gen5 = device.pcie_bandwidth is None or device.pcie_bandwidth > 40e9
    return parse_offload(f"{'pcie5' if gen5 else 'pcie4'}:{64 * GIB}")


def _lever(
    rank: int, gain: float, candidate: Candidate, now: Standing, after: Standing, goal: Goal, deployment: Deployment,
    pools: bool,
) -> Lever:  # fmt: skip
    words = lever_words()[candidate.technique]
    tests = list(words["tests"])
    if candidate.technique == "quantization" and deployment.device.fp8_flops is None:
        tests.append(f"that an attention backend takes it at all: {deployment.device.name} has no fp8 arithmetic")
    found = candidate.technique not in _RANKS
    source = find_technique(candidate.technique).source if found else candidate.support.source or "arithmetic"
    return Lever(
        rank=rank,
        technique=candidate.technique,
        setting=candidate.setting,
        gain=gain_text(goal, now, after),
        gain_value=gain,
        gain_unit=_UNITS[goal],
        risk=candidate.risk,
        support=candidate.support.level,
        note=candidate.support.note,
        memory=memory_words(candidate, now, after, pools, deployment.block),
        after=after,
        tests=tuple(tests),
        guardrails=tuple(words["guardrails"]),
        rollback=words["rollback"],
        evidence=source,
    )


def _choice(levers: tuple[Lever, ...], now: Standing, batch: int) -> int | None:
    """The largest calm gain among the levers that run the batch, else one sequence; None where none runs any."""
    for wanted in (batch, 1):
        reaching = [lever for lever in levers if lever.after.sequences >= wanted]
        calm = [each for each in reaching if each.risk in ("exact", "low") and each.after.gpus == now.gpus]
        first = next(iter((*calm, *reaching)), None)
        if first is not None:
            return first.rank
    return None


def _assumptions(deployment: Deployment, tier: Offload) -> tuple[str, ...]:
    found = [
        "times are rooflines: bytes over nominal memory bandwidth, or FLOPs over the dense 16-bit rate where those "
        "take longer; kernels reach a part of it",
        "KV heads are split over tensor-parallel ranks and copied where there are too few; latents are copied",
        f"idle sessions wait on {tier.tier} ({tier.capacity_bytes / GIB:g} GiB in all), each GPU with "
        f"{tier.bandwidth / 1e9:g} GB/s of its own",
    ]
    if deployment.gpus > 1:
        found.append("weights are split evenly over the GPUs")
    return tuple(found)


def _evidence(spec: ModelSpec, device: Accelerator, engine: str, levers: tuple[Lever, ...]) -> tuple[str, ...]:
    used = dict.fromkeys(lever.technique for lever in levers if lever.technique not in _RANKS)
    return (
        f"{spec.id} ({spec.provenance.confidence}): {spec.provenance.source}",
        f"{device.name}: {device.memory_source}; {device.memory_bandwidth_gbs:g} GB/s; {'; '.join(device.source)}",
        f"{engine}: {supports(engine, 'quantization').source}",
        *(f"{name}: {find_technique(name).headline} ({find_technique(name).source})" for name in used),
    )
