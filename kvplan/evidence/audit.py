"""One start of an engine explained: where the memory went, what the figures mean, what to change."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from kvplan.engines.base import EngineAnswer
from kvplan.errors import InputError, KvplanError
from kvplan.evidence.ask import Ask, Given, ask_about, find_named_gpu, find_named_model
from kvplan.evidence.checks import Check, asked_blocks, refusal_of, run_checks
from kvplan.evidence.drift import Drift, drift
from kvplan.evidence.findings import SEVERITIES, Evidence, Finding, Severity, find_all
from kvplan.evidence.meaning import Meaning, Naive, meaning_of, naive_of
from kvplan.evidence.memory import Memory, memory_of
from kvplan.evidence.runs import Event, Figure, LogRun
from kvplan.record import record
from kvplan.units import tokens

SCHEMA_VERSION = 1
#: what each engine's log should tell, to say what was not found
_EXPECTED = {
    "vllm": ("version", "weights", "available", "tokens", "concurrency"),
    "sglang": ("free", "free_after_weights", "tokens"),
    "tensorrt-llm": ("version", "tokens", "kv"),
    "llama.cpp": ("weights", "kv", "compute"),
    "ollama": ("weights", "kv", "compute"),
    "ik_llama.cpp": ("weights", "kv", "compute"),
    "lmdeploy": ("blocks", "block"),
    "tgi": ("blocks",),
}


@record
class RunSummary:
    """One start in the log, in brief."""

    number: int
    engine: str
    version: str | None
    first_line: int
    last_line: int
    tokens: int | None
    refusals: tuple[Event, ...]
    troubles: tuple[Event, ...]


@record
class Audit:
    """The whole answer about one start, `run_number` of those in the log (from 1). Bytes are one GPU's.

    `answer_memory_bytes` are the cache bytes at which the engine's model was asked, `groups` its cache groups there;
    `checks` hold printed figures against it. `missing` names what the log has not.
    """

    schema_version: int
    command: Literal["audit"]
    verdict: str
    engine: str
    version: str | None
    model: str | None
    gpu: str
    run_number: int
    runs: tuple[RunSummary, ...]
    memory: Memory
    checks: tuple[Check, ...]
    meaning: Meaning | None
    naive: Naive | None
    binding: str | None
    findings: tuple[Finding, ...]
    figures: tuple[Figure, ...]
    settings: dict[str, Any]
    answer_memory_bytes: int | None
    derivation: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    drift: tuple[Drift, ...] = ()

    def exit_code(self, fail_on: Severity = "warning") -> int:
        """1 when a finding is at or above `fail_on`, else 0."""
        level = SEVERITIES.index(fail_on)
        return 1 if any(SEVERITIES.index(item.severity) <= level for item in self.findings) else 0

    def to_dict(self) -> dict[str, Any]:
        """The answer as the plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Audit.to_dict` returns."""
    from kvplan.answers.schema import document_schema

    return document_schema(Audit, "kvplan audit")


def audit(runs: tuple[LogRun, ...], given: Given, number: int | None = None, plan: Path | None = None) -> Audit:
    """Explain one of `runs`, the last unless `number` (from 1) is given; `plan` is an earlier estimate to hold it
    against. Raises InputError where there is no such run, or the plan is none.
    """
    if not runs:
        raise InputError("LOG: found no start of an engine, expected the log of one of " + ", ".join(_EXPECTED))
    chosen = len(runs) if number is None else number
    if not 1 <= chosen <= len(runs):
        raise InputError(f"--run: found {chosen}, expected one of the {len(runs)} starts in the log")
    run = runs[chosen - 1]
    given, taken = _completed(run, given)
    ask = ask_about(run, given)
    notes = [] if ask.why_not is None else [ask.why_not]
    answer, available, refused = _answer(run, ask)
    notes += refused
    checks: tuple[Check, ...] = ()
    if not refused:
        try:
            checks = run_checks(run, ask)
        except KvplanError as error:
            notes.append(refusal_of(error))
    memory, why = memory_of(run, ask)
    meaning = meaning_of(run, ask, answer)
    evidence = Evidence(run, ask, memory, meaning, checks, answer, available)
    return Audit(
        schema_version=SCHEMA_VERSION,
        command="audit",
        verdict=verdict_of(run, ask, checks),
        engine=ask.engine,
        version=ask.version,
        model=ask.loaded.spec.id if ask.loaded is not None else _named(run),
        gpu=f"{ask.device.name} ({ask.device_source})",
        run_number=chosen,
        runs=tuple(_summary(index, item) for index, item in enumerate(runs, 1)),
        memory=memory,
        checks=checks,
        meaning=meaning,
        naive=naive_of(run, ask, answer),
        binding=_binding(run, answer),
        findings=find_all(evidence),
        figures=run.figures,
        settings={name: value for name, value in {**run.flags, **ask.settings}.items() if name != "model"},
        answer_memory_bytes=available,
        derivation=answer.derivation if answer is not None else (),
        missing=_missing(run),
        warnings=(*notes, *why, *(answer.warnings if answer is not None else ())),
        assumptions=(*taken, *(answer.assumptions if answer is not None else ())),
        drift=() if plan is None else drift(plan, run.figures, run.flags),
    )


def _completed(run: LogRun, given: Given) -> tuple[Given, tuple[str, ...]]:
    """What the user gave, what the log names where the user gave nothing, and what was assumed."""
    model, taken = (given.model, None) if given.model is not None else find_named_model(run)
    named, source = given.accelerator, given.accelerator_source
    if named is None and given.device is None:
        named, source = find_named_gpu(run), "named in the log"
    return Given(model, named, given.device, given.engine, given.settings, source), (taken,) if taken else ()


def _named(run: LogRun) -> str | None:
    named = run.flags.get("model") or (run.last("model").value if run.last("model") else None)  # type: ignore[union-attr]
    return str(named) if named is not None else None


def _answer(run: LogRun, ask: Ask) -> tuple[EngineAnswer | None, int | None, list[str]]:
    """The engine model's answer at the printed memory, those bytes, and why there is none."""
    if ask.model is None or ask.loaded is None:
        return None, None, []
    printed, blocks = run.least("available"), asked_blocks(ask) or run.number("blocks")
    try:
        if printed is not None and asked_blocks(ask) is None:
            size = max(0, int(printed.value))
            return ask.plan(size), size, []
        if ask.engine == "vllm" and blocks is not None and blocks > 0:
            answer = ask.plan(1 << 60, num_gpu_blocks_override=blocks)
            return answer, blocks * max(answer.bytes_per_block), []
        if ask.engine in ("llama.cpp", "ik_llama.cpp", "ollama"):
            return ask.plan(1 << 60), None, []
        count = run.number("tokens")
        name = {"sglang": "max_total_tokens", "tensorrt-llm": "max_tokens"}.get(ask.engine)
        if name is not None and count is not None and count > 0:
            answer = ask.plan(1 << 60, **{name: count})
            return answer, None, []
    except KvplanError as error:
        return None, None, [refusal_of(error)]
    return None, None, []


def _binding(run: LogRun, answer: EngineAnswer | None) -> str | None:
    """Which pool limits what runs at once."""
    if answer is None:
        return None
    if answer.binding is not None:
        return answer.binding
    if not answer.groups:
        return answer.pools[0].name if answer.pools else None
    most = max(answer.groups, key=lambda group: group.blocks_per_request)
    of = answer.blocks_per_request or 1
    return f"{most.kind}: {most.blocks_per_request:,} of the {of:,} blocks of a request"


def _summary(number: int, run: LogRun) -> RunSummary:
    return RunSummary(
        number, run.engine, run.version, run.first_line, run.last_line, run.number("tokens"), run.refusals, run.troubles
    )


def _missing(run: LogRun) -> tuple[str, ...]:
    found = {figure.name for figure in run.figures}
    wanted = [name for name in _EXPECTED.get(run.engine, ()) if name not in found]
    if "blocks" in found:
        wanted = [name for name in wanted if name != "tokens"]
    if run.refusals:
        wanted = [name for name in wanted if name not in ("tokens", "concurrency", "blocks")]
    cut = [f"line {line} is cut off" for line in run.cut]
    return (*(name.replace("_", " ") for name in wanted), *cut)


def verdict_of(run: LogRun, ask: Ask, checks: tuple[Check, ...]) -> str:
    """The answer in one sentence."""
    who = f"{ask.engine} {ask.version}" if ask.version else ask.engine
    printed = run.least("tokens")
    if run.refusals:
        what = f"{who} refused to start ({run.refusals[0].kind})"
    elif printed is not None:
        what = f"{who} printed {tokens(int(printed.value))} tokens"
    elif (cells := run.first("cells")) is not None:
        what = f"{who} allocated {tokens(int(cells.value))} cells"
    elif (blocks := run.least("blocks")) is not None:
        what = f"{who} printed {tokens(int(blocks.value))} blocks"
    else:
        what = f"{who} printed no token count"
    if not checks:
        return f"{what}; {ask.why_not or 'there is nothing to hold it against'}."
    if all(check.agrees for check in checks):
        how = "exactly" if all(check.verdict == "exact" for check in checks) else "to the printed digit"
        if any(check.verdict == "rank minimum" for check in checks):
            how = "within what the poorest rank explains"
        return f"{what}; kvplan reproduces {_listed(checks)} {how}."
    off = [check for check in checks if not check.agrees]
    worst = max(off, key=lambda check: abs(check.error or 0))
    return f"{what}; kvplan predicts another {worst.name.replace('_', ' ')}, {(worst.error or 0):+.1%}."


def _listed(checks: tuple[Check, ...]) -> str:
    names = [check.name.replace("_", " ") for check in checks]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
