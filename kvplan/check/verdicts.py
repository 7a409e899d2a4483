"""What a check finds: one verdict for each sentence and each finding, and the report of a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from kvplan.record import record

Status = Literal["pass", "fail", "error", "warning", "note"]
SCHEMA_VERSION = 1

#: Short descriptions of the rules, for formats that list them.
RULES: dict[str, str] = {
    "length-over-pool": "One request of the greatest length needs more KV cache than there is",
    "weights-over-budget": "Weights and activations leave no room for the KV cache",
    "more-ranks-than-devices": "The engine's ranks need more GPUs than there are",
    "engine-refuses": "The engine would not take these flags",
    "does-not-fit": "Weights and KV cache need more memory than the device has",
    "fits-unexpectedly": "The configuration fits where it was expected not to",
    "figure": "A figure is not as expected",
    "baseline": "A figure is worse than the baseline allows",
    "not-evaluated": "The expectation could not be evaluated",
    "unsupported-architecture": "The model's cache layout can't be derived without guessing",
    "share-too-high": "The memory share leaves little for what comes on top of it",
    "states-over-pool": "max_num_seqs is more than the blocks that hold recurrent states",
    "idle-capacity": "GPUs stay idle that would hold more tokens",
    "format-unsupported": "The GPU generation lacks this number format",
}


@record
class Verdict:
    """One verdict. `file` and `line` are what to look at (a flag in a manifest, else the sentence itself),
    `stated_file` and `stated_line` where the expectation stands. `text` is the whole of it in one sentence."""

    expectation: str
    place: str
    check: str
    status: Status
    rule: str
    text: str
    file: str
    line: int
    stated_file: str
    stated_line: int
    metric: str = ""
    expected: str = ""
    got: str = ""
    by: str = ""
    blame: str = ""
    change: str = ""
    value: float | int | None = None


@record
class Report:
    """All verdicts of one run. `errors` are the sentences of what could not be evaluated."""

    verdicts: tuple[Verdict, ...]
    files: tuple[str, ...]
    strict: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """How many verdicts there are of each status."""
        found = Counter(verdict.status for verdict in self.verdicts)
        return {status: found.get(status, 0) for status in ("pass", "fail", "error", "warning", "note")}

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """What makes the check fail: failed sentences, and warnings where the check is strict."""
        bad = ("fail", "warning") if self.strict else ("fail",)
        return tuple(verdict for verdict in self.verdicts if verdict.status in bad)

    @property
    def errors(self) -> tuple[Verdict, ...]:
        """What could not be evaluated."""
        return tuple(verdict for verdict in self.verdicts if verdict.status == "error")

    @property
    def exit_code(self) -> int:
        """0 all hold, 1 one fails, 2 one could not be evaluated, 3 a model's architecture is not supported."""
        if self.errors:
            return 3 if all(error.rule == "unsupported-architecture" for error in self.errors) else 2
        return 1 if self.failures else 0

    @property
    def verdict(self) -> str:
        """The whole in one sentence."""
        counts = self.counts
        checked = counts["pass"] + counts["fail"]
        said = f"{counts['pass']} of {checked} checks hold"
        more = [
            f"{counts[status]} {name}{'s' if counts[status] > 1 else ''}"
            for status, name in (("error", "could not be evaluated"), ("warning", "warning"))
            if counts[status]
        ]
        more = [item.replace("evaluateds", "evaluated") for item in more]
        return f"{said}{''.join(f', {item}' for item in more)}."

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema_version": SCHEMA_VERSION,
            "command": "check",
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "strict": self.strict,
            "files": list(self.files),
            "counts": self.counts,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }


def report_from(document: Mapping[str, Any]) -> Report:
    """The report that `Report.to_dict` wrote."""
    verdicts: Sequence[Mapping[str, Any]] = document["verdicts"]
    return Report(tuple(Verdict(**item) for item in verdicts), tuple(document["files"]), document["strict"])


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the report."""
    from pydantic import TypeAdapter

    verdict = TypeAdapter(Verdict).json_schema(mode="serialization")
    counts = {status: {"type": "integer", "minimum": 0} for status in ("pass", "fail", "error", "warning", "note")}
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "command": {"const": "check"},
        "verdict": {"type": "string"},
        "exit_code": {"enum": [0, 1, 2, 3]},
        "strict": {"type": "boolean"},
        "files": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False},
        "verdicts": {"type": "array", "items": verdict},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvplan check --json",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
