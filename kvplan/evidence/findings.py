"""What is worth changing: ranked findings, each under a stable id of `rules.yaml`, with the gain in tokens.

A gain is the engine model's answer to the same question with one setting changed and the same cache bytes: requests of
the greatest length times that length, after over before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvplan.engines.base import EngineAnswer
from kvplan.evidence.ask import Ask
from kvplan.evidence.checks import Check
from kvplan.evidence.meaning import Meaning
from kvplan.evidence.memory import Memory
from kvplan.evidence.runs import LogRun
from kvplan.record import record

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
RULES_PATH = Path(__file__).with_name("rules.yaml")


@record
class Gain:
    """What one change gives: tokens held by requests of the greatest length, before and after; `starts` tells that a
    refused start would start."""

    change: str
    before: int
    after: int
    ratio: float | None
    starts: bool


@record
class Finding:
    """One finding. `says` has the figures, `fix` what to do, `lines` where the log says so, `documentation` the section
    that explains the rule."""

    rule: str
    severity: Severity
    title: str
    says: str
    fix: str
    gain: Gain | None
    lines: tuple[int, ...]
    documentation: str


@record
class Evidence:
    """What the rules look at. `answer` is the engine model's at the printed memory, `available` those bytes."""

    run: LogRun
    ask: Ask
    memory: Memory
    meaning: Meaning | None
    checks: tuple[Check, ...]
    answer: EngineAnswer | None
    available: int | None

    def setting(self, name: str) -> Any:
        """A setting of the log, or as the engine's model resolves it; None where neither has it."""
        if name in self.ask.settings:
            return self.ask.settings[name]
        found = [item.value for item in self.answer.settings if item.name == name] if self.answer is not None else []
        return found[0] if found else None

    def gain(self, change: str, **settings: Any) -> Gain | None:
        """The gain of some settings, None where it can't be asked or is none."""
        if self.answer is None or self.available is None:
            return None
        other = self.ask.try_plan(self.available, num_gpu_blocks_override=None, **settings)
        return None if other is None else gain_of(change, self.answer, other)


def gain_of(change: str, before: EngineAnswer, after: EngineAnswer) -> Gain | None:
    """The gain of one answer over another; None where nothing is gained."""
    if after.refused is not None:
        return None
    old, new = _held(before), _held(after)
    starts = before.refused is not None
    if not starts and new <= old:
        return None
    return Gain(change, old, new, new / old if old else None, starts)


def _held(answer: EngineAnswer) -> int:
    if answer.refused is not None:
        return 0
    if answer.max_concurrency is None:
        return answer.capacity_tokens or 0
    return int(answer.max_concurrency * answer.max_model_len)


@cache
def rules() -> dict[str, dict[str, str]]:
    """Severity and title of every rule."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded: dict[str, dict[str, str]] = yaml.load(RULES_PATH.read_bytes(), Loader=loader)  # noqa: S506
    return loaded


def finding(rule: str, says: str, fix: str, *, gain: Gain | None = None, lines: tuple[int, ...] = ()) -> Finding:
    """A finding under `rule`, with the rule's title and severity."""
    entry = rules()[rule]
    severity: Severity = entry["severity"]  # type: ignore[assignment]
    return Finding(rule, severity, entry["title"], says, fix, gain, lines, f"docs/findings.md#{rule}")


Rule = Callable[[Evidence], Iterator[Finding]]


def find_all(evidence: Evidence) -> tuple[Finding, ...]:
    """Every finding, worst first; among equals the largest gain first, then by rule."""
    from kvplan.evidence.rules_layout import LAYOUT_RULES
    from kvplan.evidence.rules_memory import MEMORY_RULES
    from kvplan.evidence.rules_start import START_RULES

    found = [item for rule in (*START_RULES, *MEMORY_RULES, *LAYOUT_RULES) for item in rule(evidence)]
    kept = {(item.rule, item.says): item for item in found}
    return tuple(
        sorted(
            kept.values(),
            key=lambda item: (
                SEVERITIES.index(item.severity),
                -(item.gain.ratio or 9e9) if item.gain else 0,
                item.rule,
            ),
        )
    )
