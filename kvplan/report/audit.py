"""An audit for people: the memory bar, what was predicted, what the figures mean, what to change."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.evidence.audit import Audit
from kvplan.evidence.checks import Check
from kvplan.evidence.difference import Difference
from kvplan.evidence.findings import Finding, Gain
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import both, gib, tokens

BAR_WIDTH = 60
_LETTERS = {"weights": "W", "activation": "A", "non-torch": "N", "CUDA graphs": "G", "KV cache": "K"}


def print_audit(audit: Audit, *, explain: bool = False) -> None:
    """Print one audit; `explain` adds every figure with its line and the engine's arithmetic."""
    console = stdout()
    console.print(audit.verdict)
    model = audit.model or "model unknown"
    count = f"; start {audit.run_number} of {len(audit.runs)} in the log" if len(audit.runs) > 1 else ""
    console.print(f"{model} on {audit.gpu}{count}")
    _memory(console, audit)
    _checks(console, audit.checks)
    _meaning(console, audit)
    _drift(console, audit)
    _findings(console, audit.findings)
    if audit.missing:
        _title(console, "Not found in the log")
        console.print(", ".join(audit.missing))
    if explain:
        _figures(console, audit)
    notes(console, audit.assumptions, audit.warnings)


def print_difference(difference: Difference) -> None:
    """Print what changed between two starts."""
    console = stdout()
    console.print(difference.verdict)
    _title(console, "What differs")
    table = plain_table("what", "before", "after", "tokens alone", "")
    for change in difference.changes:
        effect = "" if change.effect_tokens is None else f"{change.effect_tokens:+,}"
        table.add_row(change.name, change.before, change.after, effect, change.says)
    console.print(table)
    for name, audit in (("Before", difference.before), ("After", difference.after)):
        _title(console, f"{name}: {audit.verdict}")
        _findings(console, audit.findings)


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _size(size: int | None) -> str:
    if size is None:
        return "-"
    return gib(size) if size >= 0 else f"-{gib(-size)}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _memory(console: Console, audit: Audit) -> None:
    memory = audit.memory
    if not memory.terms:
        return
    total = memory.total_bytes
    known = f": {both(total)}, {memory.total_source}" if total else ""
    share = f"; the engine's share is {memory.share:g}" if memory.share is not None else ""
    _title(console, f"Memory of one GPU{known}{share}")
    shown = sum(max(0, term.observed if term.observed is not None else term.predicted or 0) for term in memory.terms)
    if total:
        bar = ""
        for term in memory.terms:
            size = term.observed if term.observed is not None else term.predicted or 0
            bar += _LETTERS[term.name] * round(BAR_WIDTH * max(0, size) / total)
        console.print(f"|{bar[:BAR_WIDTH].ljust(BAR_WIDTH, '.')}|")
    table = plain_table("", "term")
    for heading in ("observed", "predicted", "from", "to", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("line")
    for term in memory.terms:
        where = f"{term.line}" if term.line else ""
        table.add_row(
            _LETTERS[term.name], term.name, _size(term.observed), _size(term.predicted), _size(term.low),
            _size(term.high), _percent(term.error), where,
        )  # fmt: skip
    console.print(table)
    if total:
        console.print(f". the rest, {_size(max(0, total - shown))}: not printed, or outside the engine's share")


def _value(check: Check, number: float) -> str:
    return _size(round(number)) if check.unit == "bytes" else f"{number:,.2f}".removesuffix(".00")


def _checks(console: Console, checks: tuple[Check, ...]) -> None:
    if not checks:
        return
    _title(console, "Printed against predicted")
    table = plain_table("figure")
    for heading in ("printed", "predicted", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    table.add_column("stands on")
    for check in checks:
        table.add_row(
            check.name.replace("_", " "), _value(check, check.observed), _value(check, check.predicted),
            _percent(check.error), check.verdict, check.basis,
        )  # fmt: skip
    console.print(table)


def _meaning(console: Console, audit: Audit) -> None:
    meaning, naive = audit.meaning, audit.naive
    if meaning is not None:
        _title(console, f"What {tokens(meaning.printed or 0)} tokens means here")
        console.print(meaning.text)
        if meaning.full_length_tokens is not None and meaning.ratio is not None:
            held = tokens(meaning.full_length_tokens)
            console.print(
                f"requests of the greatest length hold {held} tokens at once, {meaning.ratio:.2f}x the printed"
            )
    if audit.binding:
        console.print(f"what binds: {audit.binding}")
    if naive is not None:
        ratio = f"; printed over that is {naive.ratio:.2f}" if naive.ratio is not None else ""
        _title(console, "Against a simple formula")
        console.print(f"{naive.formula}{ratio}")
        for reason in naive.reasons:
            console.print(f"- {reason}")


def _drift(console: Console, audit: Audit) -> None:
    if not audit.drift:
        return
    _title(console, "Against the earlier plan")
    table = plain_table("promise")
    for heading in ("planned", "came", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in audit.drift:
        table.add_row(item.name, f"{item.planned:,.2f}", f"{item.observed:,.2f}", _percent(item.error))
    console.print(table)


def _gain(gain: Gain) -> str:
    if gain.starts:
        return f"{gain.change}: starts, with {tokens(gain.after)} tokens"
    ratio = f", {gain.ratio:.2f}x" if gain.ratio is not None else ""
    return f"{gain.change}: {gain.after - gain.before:+,} tokens at full length{ratio}"


def _findings(console: Console, findings: tuple[Finding, ...]) -> None:
    if not findings:
        return
    _title(console, "Findings")
    for item in findings:
        where = f" [line {', '.join(map(str, item.lines))}]" if item.lines else ""
        console.print(f"{item.severity}: {item.says}{where} ({item.rule})")
        console.print(f"    fix: {item.fix}")
        if item.gain is not None:
            console.print(f"    gain: {_gain(item.gain)}")


def _figures(console: Console, audit: Audit) -> None:
    _title(console, "Figures in the log")
    table = Table.grid(padding=(0, 2))
    for figure in audit.figures:
        value = _size(int(figure.value)) if figure.unit == "bytes" else str(figure.value)
        who = " ".join(word for word in (figure.rank, figure.device) if word)
        table.add_row(f"line {figure.line}", figure.name.replace("_", " "), value, who)
    console.print(table)
    if audit.derivation:
        _title(console, "How the engine gets there")
        for line in audit.derivation:
            console.print(f"- {line}")
