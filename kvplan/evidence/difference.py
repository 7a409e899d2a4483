"""Two starts held against each other: what was changed, and what that did to the memory and the tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from kvplan.evidence.ask import Ask, Given, ask_about, find_named_gpu, find_named_model
from kvplan.evidence.audit import SCHEMA_VERSION, Audit, audit
from kvplan.evidence.checks import pool_memory
from kvplan.evidence.runs import LogRun
from kvplan.record import record
from kvplan.units import gib, tokens


@record
class Changed:
    """One thing that differs: `kind` is version, setting or memory. `effect_tokens` is what this change alone does to
    the tokens of full-length requests, from the first start's answer, None where it can't be asked."""

    kind: Literal["version", "setting", "memory"]
    name: str
    before: str
    after: str
    effect_tokens: int | None
    says: str


@record
class Difference:
    """Both starts, what changed between them, and how much of the difference the changes explain."""

    schema_version: int
    command: Literal["audit-difference"]
    verdict: str
    before: Audit
    after: Audit
    changes: tuple[Changed, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Difference.to_dict` returns."""
    from kvplan.answers.schema import document_schema

    return document_schema(Difference, "kvplan audit A B")


def difference(first: tuple[LogRun, ...], second: tuple[LogRun, ...], given: Given) -> Difference:
    """Explain how the last start of `second` differs from that of `first`. Raises InputError where one has none."""
    before, after = audit(first, given), audit(second, given)
    runs = first[before.run_number - 1], second[after.run_number - 1]
    asks = tuple(_ask(run, given) for run in runs)
    changes = (*_version(runs, asks), *_settings(runs, asks), *_memory(before, after), *_pool(runs, asks))
    return Difference(SCHEMA_VERSION, "audit-difference", _verdict(before, after, changes), before, after, changes)


def _ask(run: LogRun, given: Given) -> Ask:
    named = given.accelerator or (find_named_gpu(run) if given.device is None else None)
    return ask_about(
        run, Given(given.model or find_named_model(run)[0], named, given.device, given.engine, given.settings)
    )


def _held(ask: Ask, available: int | None, **changes: Any) -> int | None:
    if available is None:
        return None
    answer = ask.try_plan(available, **changes)
    if answer is None or answer.refused is not None or answer.max_concurrency is None:
        return None
    return int(answer.max_concurrency * answer.max_model_len)


def _available(run: LogRun) -> int | None:
    figure = pool_memory(run)
    return int(figure.value) if figure is not None and int(figure.value) > 0 else None


def _effect(ask: Ask, other: Ask | None, available: int | None, **changes: Any) -> int | None:
    base, moved = _held(ask, available), _held(other or ask, available, **changes)
    return None if base is None or moved is None else moved - base


def _version(runs: tuple[LogRun, LogRun], asks: tuple[Ask, ...]) -> list[Changed]:
    one, two = asks
    if one.engine == two.engine and one.version == two.version:
        return []
    effect = None
    if one.engine == two.engine:
        moved = Ask(
            one.engine, two.version, one.model, one.loaded, one.device, one.device_source, one.accelerator,
            one.settings, one.parallel,
        )  # fmt: skip
        effect = _effect(one, moved, _available(runs[0]))
    return [
        Changed(
            "version", "engine", f"{one.engine} {one.version or '?'}", f"{two.engine} {two.version or '?'}", effect,
            "rules of layout and of the token line differ between releases",
        )
    ]  # fmt: skip


def _settings(runs: tuple[LogRun, LogRun], asks: tuple[Ask, ...]) -> list[Changed]:
    """Every setting that differs, each with what it does alone to the first start."""
    one, two = asks
    found = []
    for name in sorted({*one.settings, *two.settings}):
        before, after = one.settings.get(name), two.settings.get(name)
        if before != after:
            effect = _effect(one, None, _available(runs[0]), **{name: after})
            found.append(Changed("setting", name, _shown(before), _shown(after), effect, "alone, in the same bytes"))
    return found


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _memory(before: Audit, after: Audit) -> list[Changed]:
    old = {term.name: term.observed for term in before.memory.terms}
    found = []
    if before.memory.share != after.memory.share:
        found.append(Changed("memory", "share", _shown(before.memory.share), _shown(after.memory.share), None, ""))
    for term in after.memory.terms:
        was = old.get(term.name)
        if was is not None and term.observed is not None and abs(was - term.observed) > 2 * term.half:
            moved = term.observed - was
            sign = "+" if moved > 0 else "-"
            says = f"{sign}{gib(abs(moved))}"
            found.append(Changed("memory", term.name, _signed(was), _signed(term.observed), None, says))
    return found


def _signed(size: int) -> str:
    return gib(size) if size >= 0 else f"-{gib(-size)}"


def _pool(runs: tuple[LogRun, LogRun], asks: tuple[Ask, ...]) -> list[Changed]:
    """What the other start's cache memory does alone to the first."""
    available, other = _available(runs[0]), _available(runs[1])
    base, moved = _held(asks[0], available), _held(asks[0], other)
    if available is None or other is None or available == other or base is None or moved is None:
        return []
    return [Changed("memory", "KV cache alone", gib(available), gib(other), moved - base, "with the first's settings")]


def _verdict(before: Audit, after: Audit, changes: tuple[Changed, ...]) -> str:
    old, new = before.meaning, after.meaning
    if old is None or new is None or not old.printed or new.printed is None:
        what = "one of the starts printed no token count"
    else:
        what = f"{tokens(old.printed)} tokens became {tokens(new.printed)}, {new.printed / old.printed:.2f}x"
        if old.rule != new.rule:
            what += " (counted by different rules)"
    effects = [change for change in changes if change.effect_tokens]
    if not effects:
        kinds = sorted({change.kind for change in changes})
        return f"{what}; what differs: {', '.join(kinds)}." if kinds else f"{what}; nothing else differs."
    most = max(effects, key=lambda change: abs(change.effect_tokens or 0))
    effect = f"{most.name}, {most.before} -> {most.after}: {most.effect_tokens or 0:+,} tokens"
    return f"{what}; the largest effect is {effect}."
