"""Replays and simulations for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplan.report.console import plain_table, stdout

if TYPE_CHECKING:
    from kvplan.simulator.replay import ReplayRow


def print_replay(rows: Sequence[ReplayRow], block: int) -> None:
    """One line a capacity and policy, with the definition of every rate."""
    split = any(row.misses is not None for row in rows)
    table = plain_table("policy")
    headings = ["blocks", "hit blocks", "hit tokens", "of tokens", "last half"]
    if split:
        headings = ["blocks", "of tokens", "last half", "hits", "never", "capacity", "policy"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        size = "unbounded" if row.capacity_blocks is None else f"{row.capacity_blocks:,}"
        rates = [f"{row.token_hit_rate:.2%}", f"{row.last_half_token_hit_rate:.2%}"]
        if row.misses is None:
            table.add_row(row.policy, size, f"{row.hit_blocks:,}", f"{row.hit_tokens:,}", *rates)
            continue
        misses = row.misses
        lost = (misses.never_reusable_blocks, misses.lost_to_capacity_blocks, misses.lost_to_policy_blocks)
        table.add_row(row.policy, size, *rates, f"{row.hit_blocks:,}", *(f"{count:,}" for count in lost))
    console = stdout()
    if any(row.partial for row in rows):
        console.print("PARTIAL: interrupted before the end")
    console.print(table)
    first = rows[0]
    order = first.touch_order.replace("_", "-")
    console.print(
        f"{first.requests:,} requests, {first.total_blocks:,} blocks of {block} tokens, {first.total_tokens:,} prompt "
        f"tokens; touch order {order}. A hit is the longest leading run of a prompt's blocks that is resident on "
        "arrival; `of tokens` counts the whole trace from a cold cache, `last half` the second half of the requests "
        "with the cache warm."
    )
    if split:
        console.print(
            "Blocks that missed: `never` were not seen before, `capacity` fit no policy, not even one that knows the "
            "future, `policy` are what this one lost against that bound."
        )


LABELS = {
    "stable": "stable: work does not pile up",
    "backlogged": "backlogged: a queue is left, the figures are of this run alone",
    "overloaded": "OVERLOADED: work piles up as long as requests arrive; the figures are this run's, not steady",
}


def print_run(result: Mapping[str, Any]) -> None:
    """One run: the verdict first, then latencies, pool, reuse and what was assumed."""
    console = stdout()
    requests, throughput = result["requests"], result["throughput"]
    if result["partial"]:
        console.print("PARTIAL: interrupted before the end")
    label = LABELS[result["stability"]] if requests["finished"] else "NOTHING WAS SERVED"
    console.print(
        f"{result['scenario']}: {label}. {requests['finished']:,} of {requests['arrived']:,} "
        f"requests in {result['duration_s']:,.1f} s simulated ({result['step_time']} step times)."
    )
    for reason, count in requests["unservable"].items():
        console.print(f"{count:,} requests could not be served: {reason}")
    table = plain_table("latency")
    for heading in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(heading, justify="right")
    for name, figures in result["latency"].items():
        table.add_row(name.removesuffix("_s").upper(), *(_time(figures[key]) for key in figures))
    console.print(table)
    console.print(
        f"throughput {throughput['requests_per_s']:,.2f} requests/s, {throughput['output_tokens_per_s']:,.0f} output "
        f"tokens/s; goodput {result['goodput']:.1%} ({result['good_requests_per_s']:,.2f} requests/s)"
    )
    cache = result["prefix_cache"]
    console.print(
        f"prefix hits {cache['hit_rate_tokens']:.2%} of prompt tokens, {cache['hit_rate_per_request']:.2%} a request; "
        f"{result['preemptions']:,} preemptions, {result['recomputed_tokens']:,} tokens recomputed"
    )
    if "pool" in result:
        pool = result["pool"]
        console.print(
            f"pool {pool['mean_use']:.1%} used on average, {pool['peak_use']:.1%} at the peak of {pool['blocks']:,} "
            f"blocks; {pool['mean_running']:,.1f} requests running on average; {pool['steps']:,} steps"
        )
    if step := result.get("decode_step"):
        console.print(
            f"a decode step of {step['running']:,} requests at {step['context_tokens']:,} tokens: "
            f"{_time(step['calibrated_s'])} calibrated, {_time(step['roofline_s'])} by the bare roofline"
        )
    for tier in result.get("tiers", ()):
        console.print(
            f"tier {tier['name']}: {tier['stored_bytes']:,} B moved out, {tier['loaded_bytes']:,} B back in "
            f"{tier['loads']:,} loads"
        )
    if "utilization" in result:
        console.print(f"slots {result['utilization']:.1%} busy")
    console.print(f"what kept requests waiting: {_binding(result['binding'])}")
    for sentence in result["assumptions"]:
        console.print(f"- {sentence}")


def _binding(binding: Mapping[str, Any]) -> str:
    if binding["resource"] == "none":
        return "nothing"
    return ", ".join(f"{name} {share:.0%} of the time" for name, share in binding["shares"].items())


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.2f} ms"


def print_comparison(runs: Sequence[Mapping[str, Any]], spread: Sequence[Mapping[str, Any]] | None) -> None:
    """One line a run."""
    console = stdout()
    table = plain_table("run")
    for heading in ("state", "TTFT p99", "TPOT p99", "tokens/s", "goodput", "hits", "preempted", "pool"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, result in enumerate(runs, start=1):
        latency = result["latency"]
        settings = [f"{key}={value}" for key, value in (*result["settings"].items(), ("seed", result["seed"]))]
        console.print(f"run {number}: {', '.join(settings)}")
        table.add_row(
            str(number),
            result["stability"],
            _time(latency["ttft_s"]["p99"]),
            _time(latency["tpot_s"]["p99"]),
            f"{result['throughput']['output_tokens_per_s']:,.0f}",
            f"{result['goodput']:.1%}",
            f"{result['prefix_cache']['hit_rate_tokens']:.1%}",
            f"{result['preemptions']:,}",
            f"{result['pool']['peak_use']:.1%}" if "pool" in result else "-",
        )
    console.print(table)
    for group in spread or ():
        named = ", ".join(f"{key}={value}" for key, value in group["settings"].items())
        for name, figures in group.items():
            if name != "settings":
                line = f"{name}: mean {figures['mean']:.6g}, standard deviation {figures['stdev']:.3g} over seeds"
                console.print(f"{named} {line}".strip())


def print_max_rate(found: Mapping[str, Any]) -> None:
    """The greatest rate, and every rate that was tried."""
    console = stdout()
    limits = ", ".join(f"{name} <= {_time(value)}" for name, value in found["limits"].items())
    if found["partial"]:
        console.print("PARTIAL: interrupted before the greatest rate was settled")
    beyond = f"{found['too_much']:.4g} don't" if found["too_much"] is not None else "no rate was found that doesn't"
    console.print(f"at most {found['max_rate']:.4g} {found['unit']} meet {limits}; {beyond}")
    table = plain_table(found["unit"])
    for heading in ("meets", "state", "TTFT p99", "TPOT p99", "tokens/s"):
        table.add_column(heading, justify="right")
    for run in found["tried"]:
        table.add_row(
            f"{run['rate']:.4g}", "yes" if run["meets"] else "no", run["stability"], _time(run["ttft_p99_s"]),
            _time(run["tpot_p99_s"]), f"{run['output_tokens_per_s']:,.0f}",
        )  # fmt: skip
    console.print(table)


def print_fit(found: Mapping[str, Any]) -> None:
    """The fitted constant, and how the whole measured run compares."""
    console = stdout()
    console.print(
        f"step_time.scale {found['scale']:.4f} makes the mean TPOT of the first {found['fitted_on']:,} of "
        f"{found['requests']:,} requests equal; over the whole run:"
    )
    table = plain_table("figure")
    for heading in ("measured", "simulated", "error"):
        table.add_column(heading, justify="right")
    for name in ("output_tokens_per_s", "tpot_mean_s", "ttft_mean_s"):
        row = found[name]
        table.add_row(name, f"{row['measured']:,.5g}", f"{row['simulated']:,.5g}", f"{row['error']:+.1%}")
    console.print(table)


class Progress:
    """A bar on stderr with simulated time and finished requests; on a terminal only, and gone at the end.

    `total` is how many requests a run has, None where that isn't known.
    """

    WIDTH = 30

    def __init__(self, total: int | None = None) -> None:
        self.shown = sys.stderr.isatty() and not os.environ.get("KVPLAN_QUIET")
        self.total = total
        self._wrote = False

    def __enter__(self) -> Progress:
        return self

    def update(self, finished: int, ticks: int) -> None:
        """Called now and then with the requests finished and the simulated time in 10^-18 s."""
        self._wrote = True
        done, bar = f"{finished:,}", ""
        if self.total:
            filled = min(self.WIDTH, self.WIDTH * finished // self.total)
            done, bar = f"{finished:,} of {self.total:,}", f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] "
        sys.stderr.write(f"\r\x1b[K{bar}{done} requests done, {ticks / 1e18:,.1f} s simulated")
        sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._wrote:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
