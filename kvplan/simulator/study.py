"""Several runs of one scenario: with other settings, other seeds, and the greatest rate that still meets the limits."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import read_yaml
from kvplan.performance.reads import TICKS
from kvplan.resources import data_dir
from kvplan.simulator.build import Built, build
from kvplan.simulator.changes import change
from kvplan.simulator.eventfiles import ChromeTrace, EventFile
from kvplan.simulator.request import Request
from kvplan.simulator.result import summary
from kvplan.simulator.scenario import Scenario, parse_scenario
from kvplan.units import parse_seconds

MAX_RUNS = 64
BISECTIONS = 12

CSV_COLUMNS = (
    "id", "replica", "prompt_tokens", "output_tokens", "hit_tokens", "tier_tokens", "preemptions", "recomputed_tokens",
    "arrival_s", "admitted_s", "first_token_s", "finished_s", "refused",
)  # fmt: skip


@dataclass
class Outputs:
    """Where single requests and events go while a run is under way; None: nowhere. `chrome`: events as a trace for
    Chrome's and Perfetto's viewers."""

    requests: IO[str] | None = None
    events: IO[str] | None = None
    chrome: bool = False
    progress: Callable[[int, int], None] | None = None
    last: Built | None = field(default=None)


def run(scenario: Scenario, path: Path, outputs: Outputs | None = None) -> dict[str, Any]:
    """Run one scenario; `path` is the file it came from."""
    outputs = outputs or Outputs()
    built = build(scenario, path.parent, outputs.progress)
    if outputs.requests is not None:
        outputs.requests.write(",".join(CSV_COLUMNS) + "\n")
        built.metrics.on_request = lambda request: _write_request(outputs.requests, request)
    events = None
    if outputs.events is not None:
        events = ChromeTrace(outputs.events) if outputs.chrome else EventFile(outputs.events)
    if events is not None:
        built.metrics.on_event = events.add
    built.simulation.run()
    if events is not None:
        events.close()
    outputs.last = built
    return summary(built, scenario, scenario.name or path.name)


def check(scenario: Scenario, path: Path) -> None:
    """Build a scenario without running it. Raises InputError for what doesn't go together, fit or exist."""
    build(scenario, path.parent)


def find_scenario(name: str) -> Path:
    """A scenario file, or the shipped one of that name. Raises InputError with the nearest name."""
    path = Path(name)
    if path.suffix or len(path.parts) != 1 or path.exists():
        return path
    folder = data_dir("scenarios")
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in known:
        hint = did_you_mean(name, known)
        raise InputError(f"SCENARIO: found {show(name)}, expected a file or one of {', '.join(known)}{hint}")
    return folder / f"{name}.yaml"


def _write_request(stream: IO[str] | None, request: Request) -> None:
    if stream is None:
        return
    times = (request.arrival, request.admitted, request.first_token, request.finished)
    cells = [
        request.id, request.replica, request.prompt, request.output, request.hit_tokens, request.tier_tokens,
        request.preemptions, request.recomputed,
        *("" if time < 0 else f"{time / TICKS:.9f}" for time in times), request.refused or "",
    ]  # fmt: skip
    stream.write(",".join(str(cell) for cell in cells) + "\n")


def load_document(path: Path) -> dict[str, Any]:
    """The scenario file as a plain document, checked once."""
    data = read_yaml(path)
    parse_scenario(data, str(path))
    return dict(data)


def changed(document: dict[str, Any], path: Path, settings: Sequence[tuple[str, Any]]) -> Scenario:
    """The scenario with settings replaced. Raises InputError for a name or a value that doesn't fit."""
    return parse_scenario(with_settings(document, settings), str(path))


def with_settings(document: dict[str, Any], settings: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A copy of a scenario's document with settings replaced."""
    copy: dict[str, Any] = deepcopy(document)
    for key, value in settings:
        change(copy, key, value)
    return copy


def scaled(document: dict[str, Any], scale_rate: float | None, limit: int | None) -> list[tuple[str, Any]]:
    """The settings that multiply the rate and cut the number of requests, for a trace or a synthetic workload.

    Raises InputError for a rate that isn't above zero and for arrivals that have none.
    """
    workload = document["workload"]
    found: list[tuple[str, Any]] = []
    if scale_rate is not None:
        if not 0 < scale_rate < 1e9:
            raise InputError(f"--scale-rate: found {show(scale_rate)}, expected a number above 0")
        if "trace" in workload:
            found.append(("workload.trace.scale_rate", scale_rate * workload["trace"].get("scale_rate", 1.0)))
        elif "rate" in workload["arrivals"]:
            found.append(("workload.arrivals.rate", scale_rate * workload["arrivals"]["rate"]))
        else:
            raise InputError("--scale-rate: found arrivals without a rate, expected an open workload or a trace")
    if limit is not None:
        found.append(("workload.trace.limit" if "trace" in workload else "workload.requests", limit))
    return found


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return value if isinstance(value, (bool, int, float, type(None))) else text.strip()


def parse_vary(items: Sequence[str]) -> list[list[tuple[str, Any]]]:
    """Every combination of `key=a,b,c` items, in order. Values are numbers, true, false, null or words."""
    axes: list[list[tuple[str, Any]]] = []
    for item in items:
        key, equals, values = item.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise InputError(
                f"--vary: found {show(item)}, expected a setting and values such as kv-cache-dtype=bf16,fp8"
            )
        axes.append([(key.strip(), _scalar(value)) for value in values.split(",")])
    combinations = [list(combination) for combination in itertools.product(*axes)]
    if len(combinations) > MAX_RUNS:
        raise InputError(f"--vary: found {len(combinations)} combinations, expected at most {MAX_RUNS}")
    return combinations


LIMITS = {
    f"{metric}_{place}": (f"{metric}_s", place)
    for metric in ("ttft", "tpot", "itl", "e2e", "queue")
    for place in ("mean", "p50", "p90", "p99", "max")
}


def parse_limits(text: str) -> dict[str, float]:
    """Parse `ttft_p99=2s,tpot_p99=50ms`. Raises InputError for another figure or time."""
    found = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals or name not in LIMITS:
            hint = did_you_mean(name, LIMITS)
            raise InputError(f"--slo: found {show(item)}, expected limits such as ttft_p99=2s,tpot_p99=50ms{hint}")
        found[name] = parse_seconds(value, f"--slo {name}")
    return found


def meets(document: dict[str, Any], limits: dict[str, float]) -> bool:
    """Whether a steady run stays within every limit; an overloaded or backlogged one never does."""
    if document["stability"] != "stable" or document["requests"]["unservable"]:
        return False
    latency = document["latency"]
    return all(latency[metric][place] <= limits[name] for name, (metric, place) in LIMITS.items() if name in limits)


def find_max_rate(
    document: dict[str, Any], path: Path, limits: dict[str, float], progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """The greatest arrival rate at which the scenario meets `limits`, by bisection to under 1 %.

    After an interruption `partial` is set, and the rate is the greatest that was found to do so far. Raises InputError
    for a scenario without a rate.
    """
    scenario = parse_scenario(document, str(path))
    workload = scenario.workload
    if workload.trace is not None:
        key, start = "workload.trace.scale_rate", workload.trace.scale_rate
    elif workload.arrivals is not None and workload.arrivals.rate is not None:
        key, start = "workload.arrivals.rate", workload.arrivals.rate
    else:
        raise InputError("--find: found arrivals without a rate, expected an open workload or a trace")
    tried: list[dict[str, Any]] = []

    def good(rate: float) -> bool:
        result = run(changed(document, path, [(key, rate)]), path, Outputs(progress=progress))
        if result["partial"]:
            raise KeyboardInterrupt
        ok = meets(result, limits)
        tried.append({"rate": rate, "meets": ok, "stability": result["stability"], **_headline(result)})
        return ok

    low, high, partial = 0.0, start, False
    too_much: float | None = None
    try:
        for _ in range(BISECTIONS):
            if not good(high):
                too_much = high
                break
            low, high = high, high * 2
        while too_much is not None and too_much - low > 0.01 * too_much and too_much >= start / 2**BISECTIONS:
            middle = (low + too_much) / 2
            low, too_much = (middle, too_much) if good(middle) else (low, middle)
    except KeyboardInterrupt:
        partial = True
    unit = "scale_rate" if workload.trace is not None else "requests_per_s"
    return {"schema_version": 1, "command": "simulate --find max-rate", "unit": unit, "limits": limits,
            "max_rate": low, "too_much": too_much, "seed": scenario.seed, "partial": partial,
            "tried": tried}  # fmt: skip


def _headline(result: dict[str, Any]) -> dict[str, float]:
    latency = result["latency"]
    return {
        "ttft_p99_s": latency["ttft_s"]["p99"],
        "tpot_p99_s": latency["tpot_s"]["p99"],
        "output_tokens_per_s": result["throughput"]["output_tokens_per_s"],
    }


def spread(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each combination of settings, mean and standard deviation over seeds of the headline figures."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(json.dumps(result.get("settings", {})), []).append(result)
    return [{"settings": members[0].get("settings", {}), **_spread(members)} for members in groups.values()]


def _spread(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found = {}
    for name in _headline(results[0]):
        values = [_headline(result)[name] for result in results]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"mean": statistics.fmean(values), "stdev": deviation, "min": min(values), "max": max(values)}
    return found
