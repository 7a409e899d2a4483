"""Which candidates help, by the engine's answer to each, and why the others don't."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

from kvplan.answers.composed import CacheOptions
from kvplan.answers.levers import MOST_TIMES, Candidate, Ruled, more_gpus
from kvplan.answers.on_engine import OnEngine
from kvplan.answers.standing import Standing
from kvplan.errors import InputError

Goal: TypeAlias = Literal["capacity", "latency", "idle-sessions", "context"]
#: the gain, what brings it, and where it leads
Helping: TypeAlias = tuple[float, Candidate, Standing]


def helping_levers(
    at: OnEngine, now: Standing, base: CacheOptions, found: Iterable[Candidate], goal: Goal, ruled: list[Ruled]
) -> list[Helping]:
    """The candidates that help, best first; those that don't are ruled out with what they do instead."""
    deployment = at.deployment
    helping: list[Helping] = []
    seen: set[tuple[Any, ...]] = set()
    refused: dict[str, list[Candidate]] = {}
    said: dict[str, str] = {}
    for candidate in found:
        if candidate.technique == "decode-context" and any(other.decode_context > 1 for _, other, _ in helping):
            continue
        try:
            after = _after(at, candidate)
        except InputError as error:
            # One sentence for all dtypes that the engine refuses for the same reason, and for all ranks.
            reason = str(error).replace(candidate.options.kv_cache_dtype, "them")
            key = candidate.technique if candidate.technique == "decode-context" else reason
            refused.setdefault(key, []).append(candidate)
            said.setdefault(key, str(error))
            continue
        same = (candidate.technique, candidate.risk, tuple(asdict(after).values()))
        gain = _gain(goal, now, after)
        if gain <= 0:
            reason = _why_not(goal, candidate, now, after, deployment.spec.max_context)
            ruled.append(Ruled(candidate.technique, f"{candidate.setting}: {reason}"))
        elif same not in seen:
            helping.append((gain, candidate, after))
        seen.add(same)
    for key, group in refused.items():
        if group[0].technique != "decode-context" or all(other.decode_context == 1 for _, other, _ in helping):
            settings = "; ".join(candidate.setting for candidate in group)
            ruled.append(Ruled(group[0].technique, f"{settings}: {said[key]}"))
    helping += _more(at, now, base, goal, ruled)
    helping.sort(key=lambda entry: -entry[0])
    return helping


def _after(at: OnEngine, candidate: Candidate) -> Standing:
    return at.standing(candidate.options, candidate.tier, gpus=candidate.gpus, decode_context=candidate.decode_context)


def _more(at: OnEngine, now: Standing, base: CacheOptions, goal: Goal, ruled: list[Ruled]) -> list[Helping]:
    """The fewest GPUs that run the batch, else those that run one sequence; twice as many where it runs already."""
    tried: list[Helping] = []
    for candidate in more_gpus(at.engine, base, at.deployment.gpus):
        try:
            after = _after(at, candidate)
        except InputError as error:
            ruled.append(Ruled("parallel", f"{candidate.setting}: {error}"))
            continue
        tried.append((_gain(goal, now, after), candidate, after))
        if after.sequences >= at.deployment.batch:
            break
    if not tried:
        return []
    enough = [entry for entry in tried if entry[2].sequences >= at.deployment.batch] or [
        entry for entry in tried if entry[2].sequences > now.sequences
    ]
    gain, candidate, after = (enough or tried)[0]
    if not enough:
        reason = f"up to {MOST_TIMES} times the GPUs hold no more than {now.sequences:,} sequences of this context"
        ruled.append(Ruled("parallel", reason))
        return []
    if gain <= 0:
        reason = _why_not(goal, candidate, now, after, at.deployment.spec.max_context)
        ruled.append(Ruled("parallel", f"{candidate.setting}: {reason}"))
        return []
    return [(gain, candidate, after)]


def _gain(goal: Goal, now: Standing, after: Standing) -> float:
    match goal:
        case "capacity":
            return after.pool_tokens - now.pool_tokens
        case "context":
            return after.longest_context_tokens - now.longest_context_tokens
        case "latency":
            return 1000 * (now.read_seconds - after.read_seconds)
        case "idle-sessions":
            return after.idle_sessions - now.idle_sessions


def _why_not(goal: Goal, candidate: Candidate, now: Standing, after: Standing, limit: int | None) -> str:
    if candidate.technique == "offload":
        return "bytes of running sequences must be on the device, so it moves those of idle ones alone"
    if candidate.technique == "prefix" and goal in ("latency", "context"):
        return "shares stored blocks; each sequence still reads, and is limited by, its whole context"
    if candidate.technique == "quest" and goal != "latency":
        return "reads less and stores more: no memory is freed"
    if candidate.technique == "prefix":
        return "the shared blocks are stored once, which makes room for less than one more session"
    if goal == "latency" and after.compute_bound and now.compute_bound:
        return "attention is bound by FLOPs here, which it leaves as they are"
    if goal == "context" and now.longest_context_tokens == limit:
        return "the model's own limit binds, not memory"
    if after.bytes_per_sequence_per_gpu == now.bytes_per_sequence_per_gpu:
        return "changes no byte of this checkpoint's cache"
    if now.pool_bytes_per_gpu == 0:
        return "the weights leave no pool to fill"
    return "gains nothing for this goal"
