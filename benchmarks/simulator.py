"""What a simulation costs: requests a CPU-second, memory, growth with the number of requests, and prefix replays.

`python benchmarks/simulator.py [--requests 10000] [--growth] [--trace FILE]` prints one JSON document. Each simulation
runs in a process of its own, so that its peak memory is its own too. The case: 8B on one H100, prompts of 1,024 and
answers of 256 tokens, chunked prefill and paging on, Poisson arrivals near 85 % of what the engine can do.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RATE = 20.5


def scenario(requests: int) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100"},
        "engine": {"max_model_len": 8192, "max_num_batched_tokens": 8192, "max_num_seqs": 256},
        "workload": {"arrivals": {"rate": RATE}, "requests": requests, "prompt": 1024, "output": 256},
        "seed": 1,
    }


def once(requests: int) -> dict[str, Any]:
    """Run one simulation in this process and measure it."""
    from kvplan.simulator.build import build
    from kvplan.simulator.result import summary
    from kvplan.simulator.scenario import parse_scenario

    parsed = parse_scenario(scenario(requests), "benchmark")
    start = time.process_time()
    built = build(parsed, Path())
    built.simulation.run()
    document = summary(built, parsed, "benchmark")
    seconds = time.process_time() - start
    return {
        "requests": requests,
        "cpu_seconds": round(seconds, 3),
        "requests_per_cpu_second": round(requests / seconds),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "stability": document["stability"],
        "mean_running": round(document["pool"]["mean_running"], 1),
        "ttft_p99_s": round(document["latency"]["ttft_s"]["p99"], 3),
    }


def apart(requests: int) -> dict[str, Any]:
    """Run one simulation in a fresh process."""
    command = [sys.executable, __file__, "--requests", str(requests), "--here"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def replays(path: Path) -> dict[str, float]:
    """CPU seconds of one capacity and of a curve of twenty, reading the trace included."""
    from kvplan.simulator.replay import replay
    from kvplan.simulator.traces import open_trace

    found = {}
    for name, capacities in (("one_capacity_s", [10_000]), ("twenty_capacities_s", [5_000 * n for n in range(1, 21)])):
        start = time.process_time()
        replay(open_trace(path), capacities)
        found[name] = round(time.process_time() - start, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--growth", action="store_true", help="also 1,000 to 1,000,000 requests")
    parser.add_argument("--trace", type=Path, help="a Mooncake trace to replay")
    parser.add_argument("--here", action="store_true", help="run in this process")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(once(asked.requests)))
        return
    document: dict[str, Any] = {"simulate": apart(asked.requests)}
    if asked.growth:
        document["growth"] = [apart(count) for count in (1_000, 10_000, 100_000, 1_000_000)]
    if asked.trace is not None:
        document["replay"] = replays(asked.trace)
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
