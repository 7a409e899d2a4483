"""The answer of one simulation: the JSON document, every figure under its definition."""

from __future__ import annotations

from typing import Any

from kvplan.performance.reads import TICKS
from kvplan.simulator.build import Built
from kvplan.simulator.engine import Engine
from kvplan.simulator.scenario import Scenario
from kvplan.simulator.settings import RULE_SOURCES
from kvplan.simulator.sketch import ACCURACY, EXACT_VALUES, Sketch
from kvplan.simulator.slots import SlotEngine

QUANTILES = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))

#: samples of the pool and the queues in the document
POINTS = 200

DEFINITIONS = {
    "ttft_s": "first token - arrival",
    "tpot_s": "(last token - first token) / (output tokens - 1)",
    "itl_s": "duration of the decode steps, each counted once for every sequence in it",
    "e2e_s": "last token - arrival",
    "queue_s": "first admission - arrival",
    "goodput": "share of measured requests that meet all limits of slo",
    "hit_rate_tokens": "prompt tokens found at the first admission / all prompt tokens, of finished requests",
    "hit_rate_last_half_tokens": "the same over the second half of the finished requests",
    "waste": "1 - stored tokens / (blocks in use x block size), over time: tails of blocks, or what a contiguous "
    "reservation doesn't use; only where no blocks are shared",
    "hit_rate_per_request": "mean over requests of the share of their prompt that was found",
    "throughput": "finished requests or tokens / (last departure - first arrival)",
    "stability": "overloaded: the queue found by arrivals grows by over 2 % of a request each, in a line that explains "
    "over half of its variance, or all in the system do so to the end; backlogged: a queue is left without such a "
    "line, or the run is too short to tell; else stable",
    "over_time": "samples along the run, each of the replica that ended a step then",
    "quantiles": f"nearest rank, exact up to {EXACT_VALUES:,} values and within {ACCURACY:.1%} beyond",
}


def summary(built: Built, scenario: Scenario, name: str) -> dict[str, Any]:
    """The document of a finished (or interrupted) run. No wall-clock time is in it: equal runs give equal bytes."""
    metrics = built.metrics
    label = metrics.stability
    span = metrics.span
    document: dict[str, Any] = {
        "schema_version": 1,
        "command": "simulate",
        "scenario": name,
        "model": scenario.model,
        "step_time": scenario.step_time.kind,
        "seed": scenario.seed,
        "partial": built.simulation.partial,
        "stability": label,
        "steady": label == "stable" and metrics.finished > 0,
        "requests": {
            "arrived": metrics.arrived,
            "finished": metrics.finished,
            "measured": metrics.measured,
            "waited": metrics.waited,
            "unservable": dict(sorted(metrics.refused.items())),
        },
        "duration_s": span,
        "throughput": {
            "requests_per_s": _per(metrics.finished, span),
            "output_tokens_per_s": _per(metrics.output_tokens, span),
            "total_tokens_per_s": _per(metrics.output_tokens + metrics.prompt_tokens, span),
        },
        "latency": {
            "ttft_s": _distribution(metrics.ttft),
            "tpot_s": _distribution(metrics.tpot),
            "itl_s": _distribution(metrics.itl),
            "e2e_s": _distribution(metrics.e2e),
            "queue_s": _distribution(metrics.queue),
        },
        "goodput": _per(metrics.good, metrics.measured),
        "good_requests_per_s": _per(metrics.good, metrics.measured) * _per(metrics.finished, span),
        "mean_in_system": metrics.sojourn / TICKS / span if span else 0.0,
        "prefix_cache": {
            "hit_tokens": metrics.hit_tokens,
            "tier_hit_tokens": metrics.tier_tokens,
            "prompt_tokens": metrics.prompt_tokens,
            "hit_rate_tokens": _per(metrics.hit_tokens + metrics.tier_tokens, metrics.prompt_tokens),
            "hit_rate_last_half_tokens": _per(*metrics.late_hits()),
            "hit_rate_per_request": metrics.hit_shares.mean,
        },
        "preemptions": metrics.preemptions,
        "recomputed_tokens": metrics.recomputed,
        "binding": _binding(built),
        "assumptions": list(built.setup.says),
        "definitions": DEFINITIONS,
    }
    if scenario.step_time.kind == "fixed_service":
        document["utilization"] = _utilization(built, span)
    else:
        document["pool"] = _pool(built)
        document["over_time"] = _over_time(built)
        document["tiers"] = _tiers(built)
        document["decode_step"] = _decode_step(built)
        document["scheduler_rules"] = RULE_SOURCES
    return document


def _per(amount: float, over: float) -> float:
    return amount / over if over else 0.0


def _distribution(sketch: Sketch) -> dict[str, float]:
    values = {"mean": sketch.mean}
    values.update({name: sketch.quantile(share) for name, share in QUANTILES})
    values["max"] = sketch.largest
    return values


def _pool(built: Built) -> dict[str, Any]:
    metrics, layout = built.metrics, built.setup.layout
    busy = metrics.busy_ticks or 1
    block = layout.groups[0].block
    mean_used = metrics.pool_ticks / busy
    engines = [replica for replica in built.replicas if isinstance(replica, Engine)]
    peak = max([metrics.peak_used, *(engine.fullest for engine in engines)])
    stored = metrics.stored_ticks / busy
    document = {
        "blocks": layout.blocks,
        "block_tokens": block,
        "block_bytes": built.setup.block_bytes,
        "groups": [
            {"kind": group.kind, "block_tokens": group.block, "window": group.window or None} for group in layout.groups
        ],
        "mean_used_blocks": mean_used,
        "peak_used_blocks": peak,
        "mean_use": mean_used / layout.blocks if layout.blocks else 0.0,
        "peak_use": peak / layout.blocks if layout.blocks else 0.0,
        "mean_running": metrics.batch_ticks / busy,
        "peak_decoding": metrics.peak_batch,
        "steps": metrics.steps_taken,
        "evicted_blocks": sum(engine.pool.evicted for engine in engines),
    }
    if len(layout.groups) == 1 and not metrics.hit_tokens and not metrics.tier_tokens:
        document["mean_stored_tokens"] = stored
        document["waste"] = 1 - stored / (mean_used * block) if mean_used else 0.0
    return document


def _over_time(built: Built) -> dict[str, list[float]]:
    """Samples along the run, at most POINTS of them: ends of steps, and what was in use and in the queues then."""
    series = built.metrics.series
    samples = series[:: -(-len(series) // POINTS) or 1]
    columns = ("time_s", "used_blocks", "running", "waiting")
    return {name: [sample[place] for sample in samples] for place, name in enumerate(columns)}


def _decode_step(built: Built) -> dict[str, Any] | None:
    """Seconds of one decode step of the run's mean batch, by the calibrated model and by the bare roofline."""
    metrics = built.metrics
    if not built.setup.step_models or not metrics.batch_ticks:
        return None
    running = max(1, round(metrics.batch_ticks / (metrics.busy_ticks or 1)))
    context = max(1, round(metrics.stored_ticks / metrics.batch_ticks))
    found: dict[str, Any] = {"running": running, "context_tokens": context}
    for model in built.setup.step_models:
        reads = max(model.least(running), running * model.reads.ticks(context))
        found[f"{model.name}_s"] = (model.fixed(running, running, running) + reads) / TICKS
    return found


def _tiers(built: Built) -> list[dict[str, Any]]:
    """What moved between the pools and each of their tiers, over all replicas."""
    chains = [replica.tiers for replica in built.replicas if isinstance(replica, Engine) and replica.tiers is not None]
    return [
        {
            "name": stores[0].name,
            "capacity_blocks": stores[0].capacity,
            "stored_blocks": sum(store.stored_blocks for store in stores),
            "stored_bytes": sum(store.moved_out * store.block_bytes for store in stores),
            "loaded_bytes": sum(store.moved_in * store.block_bytes for store in stores),
            "loads": sum(store.loads for store in stores),
        }
        for stores in zip(*(chain.stores for chain in chains), strict=True)
    ]


def _binding(built: Built) -> dict[str, Any]:
    """What kept requests waiting, by share of the time in which any waited."""
    total = sum(built.metrics.bound.values())
    if not total:
        return {"resource": "none", "shares": {}}
    shares = {name: ticks / total for name, ticks in sorted(built.metrics.bound.items())}
    return {"resource": max(shares, key=lambda name: shares[name]), "shares": shares}


def _utilization(built: Built, span: float) -> float:
    slots = [replica for replica in built.replicas if isinstance(replica, SlotEngine)]
    busy = sum(replica.busy_ticks for replica in slots) / TICKS
    return busy / (span * sum(replica.slots for replica in slots)) if span else 0.0
