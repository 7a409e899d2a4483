"""A plan on an engine for people: where the memory goes, the three sizes, the pools, what would help, the command."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.memory.budget import Budget
from kvplan.report.console import notes, plain_table, stdout
from kvplan.served import ServedEstimate
from kvplan.serving import EngineSection
from kvplan.units import both, gib, tokens

BAR_WIDTH = 76
LETTERS = "abcdefghijklmnop"


def print_served(answer: ServedEstimate, *, explain: bool = False) -> None:
    """Print the verdict, the memory of one GPU, the three sizes, groups and pools, what would help, the command."""
    console = stdout()
    console.print(Text(answer.verdict, style="bold"))
    if answer.memory is not None:
        _bar(console, answer.memory)
    _sizes(console, answer)
    _groups(console, answer.engine)
    _pools(console, answer.engine)
    if answer.feasible is not None and answer.memory is not None and answer.memory.share is not None:
        console.print()
        console.print(f"Memory flag, now {answer.memory.share:g}: {answer.feasible.says}.")
    if answer.changes:
        _title(console, "What would help, cheapest first")
        for change in answer.changes:
            console.print(f"- {change.flag} {change.value}: {change.effect} (cost: {change.cost})")
    if explain:
        _explain(console, answer.engine)
    notes(console, answer.assumptions, answer.warnings)
    if answer.engine_command:
        _title(console, "Command")
        console.print(answer.engine_command, soft_wrap=True)


def _explain(console: Console, engine: EngineSection) -> None:
    _title(console, "How the engine gets there")
    for line in engine.derivation:
        console.print(f"- {line}")
    for name, value in engine.settings.items():
        console.print(f"  {name} = {value}  [{engine.setting_sources[name]}]")


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _bar(console: Console, budget: Budget) -> None:
    """One GPU's memory as a bar of letters and its legend: readable without colours and by a screen reader."""
    _title(console, f"Memory of one GPU: {both(budget.total_bytes)}")
    stage = budget.poorest
    shares = [(term.name, term.nominal, _spread(term.low, term.high)) for term in stage.terms]
    shares.append(("KV cache", max(0, stage.nominal), _spread(stage.low, stage.high)))
    left = max(0, budget.total_bytes - sum(size for _, size, _ in shares))
    shares.append(("not used", left, ""))
    bar, rows = "", Table.grid(padding=(0, 2))
    for letter, (name, size, spread) in zip(LETTERS, shares, strict=False):
        bar += letter * round(BAR_WIDTH * size / budget.total_bytes)
        rows.add_row(letter, name, gib(size), spread)
    console.print(f"|{bar[:BAR_WIDTH].ljust(BAR_WIDTH)}|")
    console.print(rows)
    console.print(f"KV cache = {budget.identity}")


def _spread(low: int, high: int) -> str:
    return "" if low == high else f"{gib(max(0, low))} to {gib(max(0, high))}"


def _sizes(console: Console, answer: ServedEstimate) -> None:
    engine = answer.engine
    _title(console, f"One request of {tokens(engine.max_model_len)} tokens, and what the engine logs")
    rows = Table.grid(padding=(0, 2))
    rows.add_row("needed", f"{both(answer.needed_bytes_per_gpu)} a tensor-parallel rank, by the mathematics")
    rows.add_row("reserved", f"{both(engine.reserved_bytes_one_request)} a rank, by {engine.name}'s rules")
    rows.add_row("available", " / ".join(both(size) for size in engine.available_bytes))
    if engine.refused is not None:
        whole = engine.refused.needed_bytes == engine.needed_bytes_one_request
        least = "one request needs" if whole else "a start needs at least"
        rows.add_row("refused", f"{least} {both(engine.refused.needed_bytes)}")
        longest = engine.refused.estimated_max_model_len
        rows.add_row("longest that fits", f"{tokens(longest)} tokens" if longest else "none")
    for line in engine.log_lines:
        rows.add_row("logged", line)
    console.print(rows)


def _groups(console: Console, engine: EngineSection) -> None:
    if not engine.groups:
        return
    one_pool = len(engine.pools) < 2 or engine.name == "vllm"
    _title(console, "Cache groups, all in one pool of blocks" if one_pool else "Cache groups")
    table = plain_table("group")
    for heading in ("layers", "tokens/block", "B/block", "blocks/request"):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in engine.groups:
        table.add_row(
            group.kind, str(group.layers), tokens(group.block_tokens), tokens(group.bytes_per_block),
            tokens(group.blocks_per_request),
        )  # fmt: skip
    console.print(table)
    if one_pool and engine.num_blocks is not None and engine.blocks_per_request:
        sizes = engine.bytes_per_block if isinstance(engine.bytes_per_block, tuple) else (engine.bytes_per_block,)
        each = " / ".join(tokens(size) for size in sizes)
        request = tokens(engine.blocks_per_request)
        console.print(f"{tokens(engine.num_blocks)} blocks of {each} B; one request takes {request}")


def _pools(console: Console, engine: EngineSection) -> None:
    if not engine.pools:
        return
    _title(console, "Pools")
    table = plain_table("pool")
    for heading in ("layers", "slots", "B/slot", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pool in engine.pools:
        name = f"{pool.name} (binds)" if pool.name == engine.binding else pool.name
        table.add_row(name, str(pool.layers), tokens(pool.slots), tokens(pool.bytes_per_slot), gib(pool.bytes))
    console.print(table)
