"""One predicted figure held against one measured figure, and the document they add up to.

Pure: a recorded document is read back and judged again without a device and without torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from kvplan.errors import InputError, show
from kvplan.hardware.profile import DeviceProfile

SCHEMA_VERSION = 1
Rule: TypeAlias = Literal["equal", "at most", "at least", "within"]
Status: TypeAlias = Literal["pass", "fail", "info", "skipped"]
Figure: TypeAlias = int | float


@dataclass(frozen=True)
class Check:
    """One row of the verdict.

    `rule` holds `measured` against `predicted`: equal, at most, at least, or within the share `tolerance` of it. A row
    that is not `judged` only informs; one without `measured` was skipped, and `note` says why.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    section: str
    case: str
    name: str
    predicted: Figure | None
    measured: Figure | None
    unit: str
    rule: Rule = "equal"
    tolerance: float = 0.0
    judged: bool = True
    note: str = ""

    @property
    def error(self) -> Figure | None:
        """What `rule` looks at: measured - predicted, as a share of predicted under `within`."""
        if self.predicted is None or self.measured is None:
            return None
        difference = self.measured - self.predicted
        if self.rule != "within":
            return difference
        return difference / self.predicted if self.predicted else float("inf") if difference else 0.0

    @property
    def status(self) -> Status:
        error = self.error
        if self.measured is None:
            return "skipped"
        if not self.judged or error is None:
            return "info"
        held = {
            "equal": error == 0,
            "at most": error <= 0,
            "at least": error >= 0,
            "within": abs(error) <= self.tolerance,
        }[self.rule]
        return "pass" if held else "fail"  # a NaN compares false everywhere, so it fails


def skipped(section: str, case: str, name: str, reason: str, unit: str = "") -> Check:
    """A row for what could not be measured, with the reason."""
    return Check(section, case, name, None, None, unit, note=reason)


@dataclass(frozen=True)
class DeviceFacts:
    """What was measured on. `slice` names a MIG slice; None where the driver didn't tell."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    name: str
    kind: Literal["cuda", "cpu"]
    total_bytes: int
    free_bytes: int
    accelerator: str | None = None
    compute_capability: tuple[int, int] | None = None
    l2_bytes: int | None = None
    multiprocessors: int | None = None
    context_bytes: int | None = None
    slice: str | None = None
    driver: str | None = None
    power_limit_watts: float | None = None
    clock_mhz: int | None = None
    nvml: str | None = None


@dataclass(frozen=True)
class Series:
    """Points of a plot: decode bandwidth against length, capacity against requests."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    name: str
    x_label: str
    y_label: str
    x: list[float]
    y: list[float]
    spread: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """The document of one run: what ran where, every row, and the points behind the fits."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    command: Literal["validate"]
    schema_version: Literal[1]
    recorded: str
    device: DeviceFacts
    versions: dict[str, str]
    settings: dict[str, Any]
    checks: list[Check]
    series: list[Series] = field(default_factory=list)
    profile: DeviceProfile | None = None
    notes: list[str] = field(default_factory=list)

    def count(self, status: Status) -> int:
        return sum(check.status == status for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 when every judged row passes, 1 when one fails, 2 when nothing could be judged."""
        if self.count("fail"):
            return 1
        return 0 if self.count("pass") else 2

    @property
    def verdict(self) -> str:
        """One sentence."""
        passed, failed = self.count("pass"), self.count("fail")
        where = f"on {self.device.name}"
        rest = [f"{self.count(status)} {word}" for status, word in _OTHERS if self.count(status)]
        tail = f" ({', '.join(rest)})" if rest else ""
        if failed:
            first = next(check for check in self.checks if check.status == "fail")
            return (
                f"{failed} of {passed + failed} checks FAILED {where}, first {first.section} / {first.case} / "
                f"{first.name}{tail}."
            )
        if not passed:
            return f"Nothing could be judged {where}{tail}."
        return f"All {passed} checks pass {where}{tail}."

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; each row carries its status and error beside what they follow from."""
        data = asdict(self)
        data["checks"] = [
            {**asdict(check), "status": check.status, "error": _finite(check.error)} for check in self.checks
        ]
        return {**data, "verdict": self.verdict, "exit_code": self.exit_code}


_OTHERS: tuple[tuple[Status, str], ...] = (("info", "reported only"), ("skipped", "skipped"))


def _finite(value: Figure | None) -> Figure | None:
    return value if value is None or abs(value) != float("inf") else None


def read_result(path: Path) -> Result:
    """Read a recorded result and judge it again from its figures. Raises InputError naming the field at fault.

    A recorded status, error, verdict or exit code that doesn't follow from the figures is refused.
    """
    from pydantic import TypeAdapter, ValidationError

    from kvplan.files import read_json_object

    data = read_json_object(path)
    claimed = {key: data.pop(key, None) for key in ("verdict", "exit_code")}
    rows = data.get("checks")
    statuses: list[Any] = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            statuses.append(row.pop("status", None))
            row.pop("error", None)
    try:
        result = TypeAdapter(Result).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {place}: found {show(first['input'])}, {first['msg'].lower()}") from None
    _hold(path, result, statuses, claimed)
    return result


def _hold(path: Path, result: Result, statuses: Iterable[Any], claimed: Mapping[str, Any]) -> None:
    for check, status in zip(result.checks, statuses, strict=True):
        if status is not None and status != check.status:
            raise InputError(
                f"{path}: checks: {check.section} / {check.case} / {check.name}: found the status {show(status)}, "
                f"expected {check.status} from its figures"
            )
    if claimed["exit_code"] is not None and claimed["exit_code"] != result.exit_code:
        raise InputError(
            f"{path}: exit_code: found {show(claimed['exit_code'])}, expected {result.exit_code} from the rows"
        )
