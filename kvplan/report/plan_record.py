"""A plan as a decision record in Markdown: targets first, then options, evidence, guardrails, monitoring, rollback."""

from __future__ import annotations

from pathlib import Path

from kvplan.files import write_text_atomic
from kvplan.planner.answer import Option, Plan
from kvplan.report.plan import demand_words
from kvplan.units import seconds, tokens


def write_record(answer: Plan, path: Path) -> None:
    """Write the record, whole or not at all."""
    write_text_atomic(path, record_text(answer))


def record_text(answer: Plan) -> str:
    """The record's Markdown."""
    rows = answer.options or answer.nearest
    best = next((row for row in answer.options if row.basis == "simulated"), rows[0] if rows else None)
    lines = [
        f"# Serving {', '.join(answer.asked.models)}",
        "",
        answer.verdict,
        "",
        *_targets(answer),
        *_options(answer),
    ]
    if best is not None:
        lines += _choice(answer, best)
        lines += _guardrails(answer, best)
    lines += ["## Assumptions", "", *(f"- {line}" for line in (*answer.assumptions, *answer.warnings)), ""]
    return "\n".join(lines)


def _targets(answer: Plan) -> list[str]:
    asked = answer.asked
    limits = [
        f"- {asked.quantile} {name.upper()} at most {seconds(limit)}" for name, limit in asked.limits.items()
    ] or ["- no limit on latency was given"]
    spare = "with one machine lost" if asked.redundancy == "n-1" else "with no machine to spare"
    return [
        "## Targets", "", demand_words(answer), "",
        "Latency:", "", *limits, "",
        "Quality:", "",
        "- answers as the checkpoint gives them at the dtypes below; test a changed KV dtype on long outputs first", "",
        "Cost:", "",
        f"- the least an hour that meets the above, {spare}", "",
    ]  # fmt: skip


def _options(answer: Plan) -> list[str]:
    title = "Options" if answer.options else "Nearest (nothing meets the targets)"
    lines = [
        f"## {title}", "",
        f"| | configuration | {answer.currency}/h | per M output tokens | TTFT | TPOT | headroom | basis | why not |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]  # fmt: skip
    for row in answer.options or answer.nearest:
        cells = (
            str(row.rank), row.name, f"{row.cost_per_hour:,.2f}", f"{row.cost_per_million_output_tokens:,.2f}",
            _time(row.times.ttft_s), _time(row.times.tpot_s), f"{row.headroom:+.0%}", row.basis, row.why_not,
        )  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "Ruled out:", ""]
    lines += [f"- {item.shapes:,} x {item.reason}{f': {item.example}' if item.example else ''}" for item in answer.lost]
    return [*lines, ""]


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _choice(answer: Plan, best: Option) -> list[str]:
    lines = ["## Choice", ""]
    if not answer.options:
        return [*lines, f"None. The nearest is {best.name}; it misses {', '.join(best.misses) or 'the limits'}.", ""]
    evidence = [f"- closed forms put TTFT at {_time(best.estimated.ttft_s)} and TPOT at {_time(best.estimated.tpot_s)}"]
    if best.simulated is not None:
        run = best.simulated
        evidence.append(
            f"- simulated ({run.stability}, seed {run.scenario['seed']}): TTFT p50 {seconds(run.ttft_s['p50'])}, p99 "
            f"{seconds(run.ttft_s['p99'])}; TPOT p99 {seconds(run.tpot_s['p99'])}; {run.goodput:.1%} of requests "
            f"within limits; {run.preemptions} preemptions; mean use of the pool {run.mean_use:.0%}"
        )
    return [
        *lines,
        f"{best.name}: {best.gpus} x {best.gpu}, {best.cost_per_hour:,.2f} {answer.currency} an hour. "
        f"What gives way first is {best.binds}.", "",
        *(["```sh", best.command, "```", ""] if best.command else []),
        "## Evidence", "", *evidence,
        f"- {answer.candidates:,} candidates searched, {answer.simulations} simulated, {answer.unproven} shapes that "
        "might be cheaper left open", "",
    ]  # fmt: skip


def _guardrails(answer: Plan, best: Option) -> list[str]:
    loss = best.loss
    left = f"{loss.replicas_left} of {best.replicas} replicas, {loss.carries:.0%} of the demand within limits"
    limits = [
        f"- {asked} {name.upper()} above {seconds(limit)} for five minutes: add a replica"
        for asked in (answer.asked.quantile,)
        for name, limit in answer.asked.limits.items()
    ]
    return [
        "## Guardrails", "",
        f"- refuse requests above {tokens(best.max_model_len)} tokens",
        f"- hold admission near {best.capacity:,.1f} {'users' if answer.asked.users is not None else 'requests/s'}; "
        "beyond it the limits don't hold",
        f"- one machine lost leaves {left}", "",
        "## Monitor", "",
        "- share of KV blocks in use, preemptions, requests waiting, prefix hit rate", *limits,
        "- the engine's own log line of KV cache tokens at start against "
        f"{tokens(best.kv_capacity_tokens // max(1, best.replicas))} a replica", "",
        "## Rollback", "",
        "- keep the present deployment serving until a day's peak has passed on the new one",
        "- return traffic when a limit is missed twice in a row or an engine restarts without a cause", "",
    ]  # fmt: skip
