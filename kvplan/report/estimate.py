"""An estimate for people: the verdict, the table of components, where each number comes from."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.answers.composed import Composed
from kvplan.answers.records import Component, Fit
from kvplan.estimator import Estimate
from kvplan.report.console import notes, plain_table, stdout
from kvplan.units import KIB, both, counted, gib, seconds, si, tokens

WIDE = 130


def print_estimate(answer: Estimate, *, explain: bool = False) -> None:
    """Print the answer to stdout, wider where the terminal is; colours only on one that wants them."""
    console = stdout()
    console.print(Text(answer.verdict, style="bold"))
    console.print(f"Context: {counted(answer.context_tokens, 'token')} ({answer.context_source})")
    console.print()
    _components(console, answer)
    _totals(console, answer)
    if answer.composition is not None:
        print_composition(console, answer.composition, answer.batch)
    if answer.fit is not None:
        _fit(console, answer.fit, answer.batch)
    if explain:
        _derivations(console, answer)
    notes(console, answer.assumptions, answer.warnings)


def _components(console: Console, answer: Estimate) -> None:
    wide = console.width >= WIDE
    table = plain_table("component", "kind", *(("dtype",) if wide else ()))
    for column, texts in zip(table.columns, (_names(answer), _kinds(answer)), strict=False):
        column.min_width = max(len(word) for text in texts for word in text.split())
    for heading in ("layers", "entries", "B/token", "GiB (GB)"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("arithmetic")
    for part in answer.cache.components:
        row = [part.name, _kind(part), *((part.dtype,) if wide else ()), str(part.layers)]
        row += [
            tokens(part.entries) if part.part != "state" else "-",
            tokens(part.bytes_per_token) if part.bytes_per_token else "-",
        ]
        table.add_row(*row, _size(part.bytes), *((part.derivation.formula,) if wide else ()))
    console.print(table)
    if not wide:
        console.print()
        console.print("Arithmetic, one sequence:")
        for part in answer.cache.components:
            console.print(f"  {part.name} = {part.derivation.formula}", soft_wrap=False)


def _kind(part: Component) -> str:
    return part.kind.replace("_", " ")


def _names(answer: Estimate) -> list[str]:
    return [part.name for part in answer.cache.components]


def _kinds(answer: Estimate) -> list[str]:
    return [_kind(part) for part in answer.cache.components]


def _size(count: int) -> str:
    return both(count) if count else "0"


def _totals(console: Console, answer: Estimate) -> None:
    cache = answer.cache
    console.print()
    rows = Table.grid(padding=(0, 2))
    per = "" if answer.batch == 1 else f" = {answer.batch:,} x {both(cache.needed_bytes_per_sequence)}"
    sizes = {"growing": cache.growing_bytes, "state": cache.state_bytes, "cross": cache.cross_bytes}
    parts = [f"{name} {gib(size)}" for name, size in sizes.items() if size]
    what = f": {' + '.join(parts)}" if len(parts) > 1 else f", all {parts[0].split()[0]}" if parts else ""
    total = f"{cache.needed_bytes:,} B = {both(cache.needed_bytes)}" if cache.needed_bytes >= KIB else ""
    rows.add_row("stored (needed)", f"{total or both(cache.needed_bytes)}{per}{what}")
    rows.add_row("read per decode step", both(cache.read_bytes_per_step))
    rows.add_row("one more token", f"{tokens(cache.bytes_per_token_marginal)} B")
    grow = f"{counted(cache.total_layers, 'layer')} grow{'s' if cache.total_layers == 1 else ''} with context"
    rows.add_row("growth", f"{cache.growing_layers} of {grow}")
    if answer.weights is not None:
        rows.add_row("weights", f"{both(answer.weights.bytes)}, {answer.weights.source}")
    console.print(rows)


def print_composition(console: Console, cache: Composed, batch: int) -> None:
    """What the techniques made of the batch's cache: stored, read and computed apart."""
    console.print()
    rows = Table.grid(padding=(0, 2))
    rows.add_row("after techniques", ", ".join(cache.applied) or "none")
    if cache.sequence_bytes != cache.needed_bytes_per_sequence:
        rows.add_row("whole blocks", f"{both(cache.sequence_bytes)} a sequence")
    shared = f", {both(cache.shared_bytes)} shared" if cache.shared_bytes else ""
    rows.add_row("stored", f"{both(cache.stored_bytes)}{f' by {batch:,} sequences' if batch > 1 else ''}{shared}")
    if cache.tier is not None:
        rows.add_row("on the device", both(cache.device_bytes))
        rows.add_row(f"on {cache.tier}", f"{both(cache.moved_bytes)}, back in {seconds(cache.resume_seconds)}")
    rows.add_row("read per decode step", both(cache.read_bytes_per_step))
    rows.add_row("attention per step", f"{si(cache.attention_flops_per_step)}FLOP")
    if cache.prefill_bytes > cache.sequence_bytes:
        rows.add_row("one prompt's peak", f"{both(cache.prefill_bytes)} before eviction")
    console.print(rows)


def _fit(console: Console, fit: Fit, batch: int) -> None:
    console.print()
    rows = Table.grid(padding=(0, 2))
    rows.add_row("device", f"{fit.count} x {fit.gpu}: {both(fit.memory_bytes_per_gpu)} each ({fit.memory_source})")
    rows.add_row("usable per GPU", both(fit.usable_bytes_per_gpu))
    rows.add_row("weights per GPU", both(fit.weights_bytes_per_gpu))
    asked = f" x {batch:,}" if batch > 1 else ""
    rows.add_row("KV cache per GPU", f"{both(fit.kv_bytes_per_sequence_per_gpu)} a sequence{asked}")
    rows.add_row("full-length sequences", tokens(fit.max_full_length_sequences))
    longest = counted(fit.longest_context_tokens, "token")
    words = {"memory": longest, "model": f"{longest} (the model's limit)", "none": "no limit: nothing grows with it"}
    rows.add_row("longest context for one", words[fit.longest_context_bound])
    console.print(rows)


def _derivations(console: Console, answer: Estimate) -> None:
    console.print()
    console.print(Text("Derivations", style="bold"))
    for part in answer.cache.components:
        console.print(f"{part.name} = {part.derivation.formula} = {part.bytes:,} B")
        for item in part.derivation.inputs:
            console.print(f"    {item.name}: {item.value}  [{item.source}]", markup=False)
    if answer.weights is not None:
        console.print(f"weights = {answer.weights.bytes:,} B  [{answer.weights.source}]", markup=False)
