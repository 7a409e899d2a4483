"""What an engine printed against what its model says of the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from kvplan.engines.base import EngineAnswer
from kvplan.engines.sglang.budget import static_budget
from kvplan.errors import InputError, KvplanError
from kvplan.evidence.ask import UNBOUNDED, Ask
from kvplan.evidence.runs import Figure, LogRun
from kvplan.record import record
from kvplan.units import gib, tokens

Verdict = Literal["exact", "within rounding", "rank minimum", "off"]
#: the poorest of several ranks sets the pool, the memory of another may be the one printed
RANK_SPREAD = 0.015
#: SGLang's pool also gives way to a request table and to what other ranks hold, and its log rounds three figures
SGLANG_SPREAD = 0.02


@record
class Check:
    """One printed figure (`observed`, line `line`) and the model's: `low` to `high` cover the rounding of the memory
    or figure it stands on (`basis`). `error` is (predicted - observed) / observed, None for an observed zero."""

    name: str
    unit: str
    observed: float
    predicted: float
    low: float
    high: float
    error: float | None
    verdict: Verdict
    line: int
    basis: str

    @property
    def agrees(self) -> bool:
        return self.verdict != "off"


def _check(
    figure: Figure,
    predicted: float,
    low: float,
    high: float,
    basis: str,
    *,
    slack: float = 0,
    ranks: int = 1,
    spread: float = RANK_SPREAD,
) -> Check:
    observed = float(figure.value)
    error = (predicted - observed) / observed if observed else None
    verdict: Verdict = "off"
    if low == predicted == high == observed:
        verdict = "exact"
    elif low - slack <= observed <= high + slack:
        verdict = "within rounding"
    elif ranks > 1 and error is not None and abs(error) <= spread:
        verdict = "rank minimum"
    return Check(figure.name, figure.unit, observed, predicted, low, high, error, verdict, figure.line, basis)


def run_checks(run: LogRun, ask: Ask) -> tuple[Check, ...]:
    """Every printed figure that the engine's model predicts from other printed figures.

    Raises InputError or UnsupportedArchitectureError where the engine's model refuses the settings.
    """
    if ask.model is None or ask.loaded is None:
        return ()
    readers = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm, "llama.cpp": _llama_cpp,
               "ik_llama.cpp": _llama_cpp, "ollama": _llama_cpp}  # fmt: skip
    reader = readers.get(ask.engine)
    return () if reader is None else tuple(reader(run, ask))


def pool_memory(run: LogRun) -> Figure | None:
    """The cache memory that the log prints, of the poorest rank."""
    return run.least("available")


def asked_blocks(ask: Ask) -> int | None:
    """The blocks that --num-gpu-blocks-override sets, None where it isn't given or is no number."""
    value = ask.settings.get("num_gpu_blocks_override")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _vllm(run: LogRun, ask: Ask) -> Iterator[Check]:
    memory, ranks = pool_memory(run), ask.parallel.tensor * ask.parallel.pipeline * ask.parallel.data
    override = asked_blocks(ask)
    if memory is not None and not override:
        half = int(memory.half)
        answers = [ask.plan(max(0, int(memory.value) + move)) for move in (0, -half, half)]
        basis = f"{gib(max(0, int(memory.value)))} available, line {memory.line}"
    elif (count := override or run.number("blocks")) is not None and count > 0:
        answers = [ask.plan(UNBOUNDED, num_gpu_blocks_override=count)] * 3
        basis = f"{tokens(count)} blocks"
    else:
        answers = [ask.plan(UNBOUNDED)] * 3
        basis = "the settings"
    known = memory is not None or override or run.number("blocks")
    yield from _blocks(run, answers, basis, ranks)
    if known and not run.refused():
        yield from _started(run, answers, basis, ranks)
    if (needed := run.last("needed")) is not None:
        size = answers[0].needed_bytes_one_request
        yield _check(needed, size, size, size, "the settings", slack=needed.half)
    if (longest := run.last("estimated_length")) is not None and known:
        found = [answer.estimated_max_model_len or 0 for answer in answers]
        yield _check(longest, found[0], found[1], found[2], basis)
    printed = run.last("tokens")
    if run.refused() and printed is not None and known and not run.all("estimated_length"):
        # V0 refused with the tokens of its whole pool, which is what its longest request takes.
        found = [_whole_pool(ask, answer) for answer in answers]
        yield _check(printed, found[0], found[1], found[2], basis, ranks=ranks)


def _whole_pool(ask: Ask, answer: EngineAnswer) -> int:
    return answer.capacity_tokens or answer.estimated_max_model_len or 0


def _blocks(run: LogRun, answers: list[EngineAnswer], basis: str, ranks: int) -> Iterator[Check]:
    printed = run.least("blocks")
    if printed is not None and "blocks" not in basis and all(answer.num_blocks is not None for answer in answers):
        found = [answer.num_blocks or 0 for answer in answers]
        yield _check(printed, found[0], found[1], found[2], basis, ranks=ranks)


def _started(run: LogRun, answers: list[EngineAnswer], basis: str, ranks: int) -> Iterator[Check]:
    printed = run.least("tokens")
    if printed is not None:
        found = [answer.capacity_tokens or answer.estimated_max_model_len or 0 for answer in answers]
        yield _check(printed, found[0], found[1], found[2], basis, ranks=ranks)
    concurrency = run.least("concurrency")
    if concurrency is not None and all(answer.max_concurrency is not None for answer in answers):
        rates = [answer.max_concurrency or 0.0 for answer in answers]
        yield _check(concurrency, rates[0], rates[1], rates[2], basis, slack=0.0051, ranks=ranks)


def _sglang(run: LogRun, ask: Ask) -> Iterator[Check]:
    printed = run.least("tokens")
    if printed is None:
        return
    before, after = run.first("free"), run.first("free_after_weights")
    share = run.flags.get("mem_fraction_static") or ask.settings.get("mem_fraction_static")
    if before is not None and after is not None and isinstance(share, int | float):
        found = _sglang_tokens(ask, before, after, float(share))
        if found is not None:
            basis = f"{gib(int(before.value))} free before and {gib(int(after.value))} after the weights, {share}"
            yield _check(printed, found[0], found[1], found[2], basis, ranks=2, spread=SGLANG_SPREAD)
    answer = ask.plan(UNBOUNDED, max_total_tokens=int(printed.value), mem_fraction_static=None)
    pools = {pool.name: pool for pool in answer.pools}
    scale = int(printed.value) / (answer.capacity_tokens or int(printed.value))
    sizes = _sglang_sizes(pools, scale)
    for name, size in sizes.items():
        figure = run.first(name)  # a draft model's pool comes after the target's
        if figure is not None and size is not None:
            yield _check(figure, size, size, size, f"{tokens(int(printed.value))} tokens", slack=figure.half * 2.2)
    window = run.last("window_tokens")
    if window is not None and "window slots" in pools:
        slots = pools["window slots"].slots - 1
        yield _check(window, slots, slots, slots, f"{tokens(int(printed.value))} tokens")


def _sglang_sizes(pools: dict[str, Any], scale: float) -> dict[str, float | None]:
    slots, states = pools.get("token slots"), pools.get("state slots")
    sizes: dict[str, float | None] = {}
    if slots is not None:
        sizes |= {"kv": slots.bytes * scale, "key": None, "value": None}
        if {"K", "V"} <= set(slots.parts):
            sizes |= {"key": slots.parts["K"] * scale, "value": slots.parts["V"] * scale}
    if states is not None and {"conv", "ssm"} <= set(states.parts):
        sizes |= {"conv": states.parts["conv"], "ssm": states.parts["ssm"]}
    return sizes


def _sglang_tokens(ask: Ask, before: Figure, after: Figure, share: float) -> list[int] | None:
    found = []
    for move in (0, -1, 1):
        try:
            budget = static_budget(
                int(before.value) - int(move * before.half), int(after.value) + int(move * after.half), share
            )
        except InputError:
            return None
        answer = ask.plan(budget, max_total_tokens=None)
        found.append(answer.capacity_tokens or 0)
    return found


def _tensorrt_llm(run: LogRun, ask: Ask) -> Iterator[Check]:
    printed, size = run.least("tokens"), run.last("kv")
    if printed is None or size is None or not size.value:
        return
    answer = ask.plan(UNBOUNDED, max_tokens=int(printed.value))
    basis = f"{tokens(int(printed.value))} tokens"
    pool = sum(pool.bytes for pool in answer.pools[:1])
    yield _check(size, pool, pool, pool, basis, slack=size.half * 1.2)
    blocks = run.last("blocks")
    if blocks is not None and answer.num_blocks is not None:
        yield _check(blocks, answer.num_blocks, answer.num_blocks, answer.num_blocks, basis)


def _llama_cpp(run: LogRun, ask: Ask) -> Iterator[Check]:
    printed = run.all("kv")
    if not printed and not run.all("state"):
        return
    answer = ask.plan(UNBOUNDED)
    caches = [pool for pool in answer.pools if pool.name.endswith("KV cache")]
    basis = f"{ask.settings.get('ctx_size', '?')} cells asked for"
    for name, size in (
        ("kv", sum(pool.bytes for pool in caches)),
        ("key", sum(pool.parts.get("K", 0) for pool in caches)),
        ("value", sum(pool.parts.get("V", 0) for pool in caches)),
        ("state", sum(pool.bytes for pool in answer.pools if pool.name == "recurrent state")),
    ):
        figures = run.all(name)
        if figures:
            yield _check(_total(figures), size, size, size, basis, slack=sum(figure.half for figure in figures) * 1.2)


def _total(figures: tuple[Figure, ...]) -> Figure:
    """Several pools of one kind, such as windowed and full layers, as one figure."""
    last = figures[-1]
    total = sum(int(figure.value) for figure in figures)
    return Figure(last.name, total, last.unit, last.half, last.line, last.rank, last.device, last.seen)


def refusal_of(error: KvplanError) -> str:
    """Why the engine's model gives no answer, as a clause."""
    return f"the engine's model refuses the settings: {error}"
