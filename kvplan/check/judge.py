"""From one expectation to its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan.check.baseline import Baseline, Entry
from kvplan.check.blame import blamed
from kvplan.check.capacity_findings import capacity_findings
from kvplan.check.expectations import Placed
from kvplan.check.figures import EngineRefusesError, Figures
from kvplan.check.manifests import Finding
from kvplan.check.metrics import FITS, KEPT, METRICS, Condition, Metric, difference, plain, spelt
from kvplan.check.remedies import Remedy, smallest_change, what_would_start
from kvplan.check.subjects import Reader, Subject
from kvplan.check.verdicts import Status, Verdict
from kvplan.errors import InputError, KvplanError, UnsupportedArchitectureError
from kvplan.record import record
from kvplan.units import gib

DEFAULT_TOLERANCE = 2.0
NOTHING_HELPS = "nothing found: no single change of a flag makes it hold"


@record
class Judged:
    """The verdicts of one expectation, and its figures for a baseline."""

    verdicts: tuple[Verdict, ...]
    entries: tuple[tuple[str, Entry], ...] = ()


class Judge:
    """Judges expectations one by one. With `keep` the figures for a baseline are worked out as well."""

    def __init__(self, reader: Reader, baseline: Baseline | None, keep: bool) -> None:
        self.reader, self.baseline, self.keep = reader, baseline, keep

    def judge(self, placed: Placed) -> Judged:
        """All verdicts of one expectation; what can't be evaluated becomes a verdict too."""
        try:
            subjects, findings = self.reader.subjects(placed)
        except KvplanError as error:
            return Judged((_error(placed, None, placed.asked.name, placed.line, error),))
        verdicts: list[Verdict] = []
        entries: list[tuple[str, Entry]] = []
        more = list(findings)
        for subject in subjects:
            figures = Figures(subject, self.reader)
            for condition, line in zip(placed.conditions, placed.expect_lines, strict=True):
                if condition.metric is not None:
                    verdicts.append(self._condition(figures, condition, line))
            if any(verdict.status == "error" for verdict in verdicts):
                continue
            name = placed.asked.name if len(subjects) == 1 else f"{placed.asked.name} / {subject.place}"
            verdicts += self._against_baseline(figures, name)
            if self.keep:
                entries.append((name, _entry(figures)))
            if subject.found is not None:
                more += capacity_findings(figures)
        accepted = placed.asked.allow
        shown = [_finding(placed, subjects, item) for item in more if item.rule not in accepted]
        return Judged((*verdicts, *shown), tuple(entries))

    def _condition(self, figures: Figures, condition: Condition, line: int) -> Verdict:
        metric, placed = condition.metric, figures.subject.placed
        assert metric is not None
        try:
            got = figures.value(metric, condition.at)
            if condition.holds(got):
                return _passed(figures, condition, line, got)
            if metric.source == "engine" and figures.subject.larger_weights and _counts_weights(figures):
                raise InputError(figures.subject.larger_weights)
            return _failed(
                figures, condition, line, got, blamed(figures, condition), smallest_change(figures, condition)
            )
        except EngineRefusesError as error:
            subject, wanted = figures.subject, metric.name == FITS and not condition.value
            said = f"{subject.engine} refuses the command: {error}"
            place = _flag_line(subject, str(error)) or subject.line
            return _verdict(
                figures.subject, condition.text, "pass" if wanted else "fail", "engine-refuses", said, line,
                at=(str(subject.file), place), metric=metric.name, expected=condition.expected, got="refused",
                blame=str(error),
            )  # fmt: skip
        except KvplanError as error:
            return _error(placed, figures.subject, condition.text, line, error)

    def _against_baseline(self, figures: Figures, name: str) -> Iterator[Verdict]:
        placed = figures.subject.placed
        asked = [
            (condition, line)
            for condition, line in zip(placed.conditions, placed.expect_lines, strict=True)
            if condition.metric is None
        ]
        if self.keep or (self.baseline is None and not asked):
            return
        condition, line = asked[0] if asked else (None, placed.line)
        tolerance = condition.value if condition else DEFAULT_TOLERANCE
        text = condition.text if condition else f"no worse than the baseline by {tolerance:g} %"
        try:
            if self.baseline is None:
                raise InputError("found no baseline, expected --baseline FILE, or baseline: in the file")
            before = self.baseline.entry(name)
            yield from _compared(figures, before, tolerance, text, line)
        except KvplanError as error:
            yield _error(placed, figures.subject, text, line, error)


def _counts_weights(figures: Figures) -> bool:
    """Whether the engine's plan stands on the size of the weights."""
    return figures.subject.placed.asked.available_memory is None and figures.loaded.spec.quantization is None


def _kept(figures: Figures) -> dict[str, float]:
    """The figures that a baseline keeps, as far as they can be known."""
    names = [*KEPT]
    names += [
        each.metric.name
        for each in figures.subject.placed.conditions
        if each.metric and each.metric.source == "scenario"
    ]
    found: dict[str, float] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = figures.value(METRICS[name])
        except EngineRefusesError:
            found[name] = 0.0
        except InputError:
            continue
    return found


def _entry(figures: Figures) -> Entry:
    subject = figures.subject
    settings = dict(sorted(subject.settings.items()))
    return Entry(_kept(figures), {"model": subject.model, "gpu": subject.gpu, "gpus": subject.gpus, **settings})


def _compared(figures: Figures, before: Entry, tolerance: float, text: str, line: int) -> Iterator[Verdict]:
    now = _entry(figures)
    changed = [
        name for name in dict.fromkeys([*before.settings, *now.settings])
        if before.settings.get(name) != now.settings.get(name)
    ]  # fmt: skip
    words = [f"{name} {before.settings.get(name)} -> {now.settings.get(name)}" for name in changed]
    subject = figures.subject
    flagged = next((subject.lines[name] for name in changed if name in subject.lines), None)
    worse = False
    for name, old in before.figures.items():
        metric, new = METRICS[name], now.figures.get(name)
        if new is None or not _is_worse(metric, old, new, tolerance):
            continue
        worse = True
        share = f"{abs(new - old) / old:.1%} worse" if old else "worse"
        blame = ", ".join(words) or "no setting: the model, or kvplan's own rules, changed"
        said = (
            f"{name} was {spelt(metric, old)} and is {spelt(metric, new)}, {share}; at most {tolerance:g} % is allowed"
        )
        yield _verdict(
            subject, text, "fail", "baseline", f"{said}; changed since: {blame}", line,
            at=(str(subject.file), flagged or subject.line), metric=name,
            expected=f"{spelt(metric, old)} within {tolerance:g} %", got=spelt(metric, new), by=share, blame=blame,
            change="undo the change, or accept it with --update-baseline", value=plain(new),
        )  # fmt: skip
    if not worse:
        yield _verdict(subject, text, "pass", "baseline", f"none of {len(before.figures)} figures is worse", line)


def _is_worse(metric: Metric, old: float, new: float, tolerance: float) -> bool:
    if metric.more_is_better:
        return new * 100 < old * (100 - tolerance)
    return new * 100 > old * (100 + tolerance)


def _passed(figures: Figures, condition: Condition, line: int, got: float) -> Verdict:
    metric = condition.metric
    assert metric is not None
    return _verdict(
        figures.subject, condition.text, "pass", "figure", f"{metric.name}: {spelt(metric, got)}", line,
        metric=metric.name, expected=condition.expected, got=spelt(metric, got), value=plain(got),
    )  # fmt: skip


def _failed(
    figures: Figures, condition: Condition, line: int, got: float, blame: str, remedy: Remedy | None
) -> Verdict:
    metric, subject = condition.metric, figures.subject
    assert metric is not None
    rule = _rule(figures, condition)
    by = _missing(figures) if metric.unit == "truth" else difference(metric, got, condition.value)
    change = remedy.text if remedy else NOTHING_HELPS
    if rule == "weights-over-budget" and metric.name == FITS and (more := what_would_start(figures)):
        change = f"{change}; {more}"
    place = subject.lines.get(remedy.flag) if remedy else None
    if place is None and rule in ("length-over-pool", "does-not-fit"):
        place = next((subject.lines[name] for name in _LENGTHS if name in subject.lines), None)
    at = (str(subject.file), place or subject.line) if subject.found is not None else None
    said = f"expected {condition.expected}, got {spelt(metric, got)}{f', {by}' if by else ''}"
    ends = f"; {blame}" if blame else ""
    help_ = f"; smallest change: {change}" if remedy else f"; {change}"
    return _verdict(
        subject, condition.text, "fail", rule, f"{said}{ends}{help_}", line, at=at, metric=metric.name,
        expected=condition.expected, got=spelt(metric, got), by=by, blame=blame, change=change, value=plain(got),
    )  # fmt: skip


_LENGTHS = ("max_model_len", "context_length", "max_seq_len", "session_len", "ctx_size", "num_ctx")


def _rule(figures: Figures, condition: Condition) -> str:
    metric = condition.metric
    assert metric is not None
    if metric.source != "engine":
        return "figure"
    if metric.unit == "truth" and not condition.value:
        return "fits-unexpectedly"
    if figures.subject.engine is None:
        return "does-not-fit"
    answer, budget = figures.plan()
    if figures.missing_gpus():
        return "more-ranks-than-devices"
    if answer.refused is None:
        return "figure"
    none_left = budget is not None and budget.poorest.nominal <= 0
    return "weights-over-budget" if none_left else "length-over-pool"


def _missing(figures: Figures) -> str:
    if figures.subject.engine is None or figures.missing_gpus():
        return ""
    answer, budget = figures.plan()
    if answer.refused is None:
        return ""
    available = answer.refused.available_bytes if budget is None else budget.poorest.nominal
    return f"{gib(answer.refused.needed_bytes - available)} missing"


def _flag_line(subject: Subject, text: str) -> int | None:
    word = text.partition(":")[0].lstrip("-").replace("-", "_")
    return subject.lines.get(word)


def _verdict(
    subject: Subject, check: str, status: Status, rule: str, text: str, line: int,
    at: tuple[str, int] | None = None, **more: Any,
) -> Verdict:  # fmt: skip
    stated = str(subject.placed.file)
    file, where = at or (stated, line)
    notes = f" ({'; '.join(subject.notes)})" if subject.notes and status == "fail" else ""
    return Verdict(
        subject.placed.asked.name,
        subject.place,
        check,
        status,
        rule,
        f"{text}{notes}",
        file,
        where,
        stated,
        line,
        **more,
    )


def _error(placed: Placed, subject: Subject | None, check: str, line: int, error: KvplanError) -> Verdict:
    unsupported = isinstance(error, UnsupportedArchitectureError)
    rule = "unsupported-architecture" if unsupported else "not-evaluated"
    place = subject.place if subject is not None else ""
    file, where = str(placed.file), line
    if subject is not None and subject.found is not None:
        file, where = str(subject.file), subject.line
    return Verdict(placed.asked.name, place, check, "error", rule, str(error), file, where, str(placed.file), line)


def _finding(placed: Placed, subjects: list[Subject], item: Finding) -> Verdict:
    levels: dict[str, Status] = {"error": "fail", "warning": "warning", "note": "note"}
    file = str(subjects[0].file if subjects else placed.file)
    return Verdict(
        placed.asked.name, item.place, "the launch command is sound", levels[item.level], item.rule, item.text, file,
        item.line, str(placed.file), placed.line, blame=f"--{item.flag.replace('_', '-')}" if item.flag else "",
    )  # fmt: skip
