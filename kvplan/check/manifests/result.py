"""What the reading of one file has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan.check.manifests.reading import Finding, FoundCommand


@dataclass
class Result:
    """Commands in order, findings, and what can't be known about the file as a whole."""

    commands: list[FoundCommand] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Take over everything of another result."""
        self.commands += other.commands
        self.findings += other.findings
        self.notes += other.notes
        self.hints += other.hints
