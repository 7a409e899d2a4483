"""A plan for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from kvplan.planner.answer import Option, Plan, Times
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import seconds, tokens

if TYPE_CHECKING:
    from kvplan.planner.fit import FitAnswer


def print_plan(answer: Plan) -> None:
    """The verdict, the demand, the ranked configurations, the best one in full, and why the others lost."""
    console = stdout()
    console.print(Text(answer.verdict, style="bold"))
    console.print(demand_words(answer))
    console.print()
    rows = answer.options or answer.nearest
    if rows:
        _table(console, answer, rows)
        console.print()
        _details(console, answer, next((row for row in rows if row.basis == "simulated"), rows[0]))
    console.print()
    console.print(Text("Why others lost", style="bold"))
    for item in answer.lost:
        example = f" ({item.example})" if item.example else ""
        console.print(f"- {item.shapes:,} x {item.reason}{example}")
    console.print()
    console.print(
        f"{answer.candidates:,} candidates of {answer.shapes:,} shapes searched, {answer.simulations} simulations."
    )
    notes(console, answer.assumptions, answer.warnings)


def demand_words(answer: Plan) -> str:
    """The demand in one sentence."""
    asked = answer.asked
    if asked.users is not None:
        who = f"{asked.users:,} users, {seconds(asked.think_s)} between questions"
    else:
        who = f"{asked.requests_per_s or 0:g} requests/s"
    reused = asked.prompt_tokens - asked.computed_tokens
    share = f", {reused:,.0f} of them shared" if reused >= 1 else ""
    limits = ", ".join(f"{name.upper()} <= {seconds(limit)}" for name, limit in asked.limits.items()) or "no limits"
    more = f"{asked.headroom:.0%} headroom" + (", one machine may be lost" if asked.redundancy == "n-1" else "")
    return (
        f"Demand: {who}; prompts of {asked.prompt_tokens:,.0f} tokens{share}, answers of {asked.output_tokens:,.0f}; "
        f"{asked.quantile} {limits}; {more}."
    )


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _table(console: Console, answer: Plan, rows: tuple[Option, ...]) -> None:
    table = plain_table("", "configuration")
    for heading in (f"{answer.currency}/h", "per M out", "TTFT", "TPOT", "headroom", "basis"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.rank), row.name, f"{row.cost_per_hour:,.2f}", f"{row.cost_per_million_output_tokens:,.2f}",
            _time(row.times.ttft_s), _time(row.times.tpot_s), f"{row.headroom:+.0%}",
            "sim" if row.basis == "simulated" else "est",
        )  # fmt: skip
    console.print(table)


def _details(console: Console, answer: Plan, row: Option) -> None:
    console.print(Text(f"{row.rank}. {row.name}", style="bold"))
    unit = "users" if answer.asked.users is not None else "requests/s"
    lines = [
        f"GPUs           {row.gpus} x {row.gpu} in {row.machines} machine{'s' * (row.machines > 1)}",
        f"cost           {row.cost_per_hour:,.2f} {answer.currency}/h, {row.cost_per_million_output_tokens:,.2f} a "
        f"million output tokens, {row.cost_per_million_tokens:,.2f} a million tokens in and out",
        f"capacity       {row.capacity:,.1f} {unit} within the limits ({row.headroom:+.0%}); "
        f"{tokens(row.kv_capacity_tokens)} tokens of KV cache, {row.concurrent_requests:,.0f} requests at once",
        f"binds          {row.binds}",
        f"start          {'safe' if row.starts_at_worst else 'expected, but not'} with every memory term at its most",
        f"latency        {_times(row.times)} ({row.basis})",
        f"one machine lost  {_loss(row)}",
    ]
    for line in lines:
        console.print(line)
    if row.misses:
        console.print("misses         " + ", ".join(f"{name} by {by:.2f}x" for name, by in row.misses.items()))
    if row.command:
        console.print()
        console.print(f"{row.replicas} x: {row.command}", soft_wrap=True)


def _times(times: Times) -> str:
    return f"TTFT {_time(times.ttft_s)}, TPOT {_time(times.tpot_s)}, whole answer {_time(times.e2e_s)}"


def _loss(row: Option) -> str:
    loss = row.loss
    if loss.replicas_left == 0:
        return "nothing is left: all replicas are on one machine"
    holds = "limits hold" if loss.meets else "limits do NOT hold"
    return (
        f"{loss.replicas_left} of {row.replicas} replicas left, {loss.carries:.0%} of the demand within limits; {holds}"
    )


def print_fit(answer: FitAnswer) -> None:
    """One sentence, and what it stands on."""
    console = stdout()
    console.print(Text(answer.verdict, style="bold"))
    notes(console, answer.assumptions, ())
