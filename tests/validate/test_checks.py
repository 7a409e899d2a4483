"""What makes a row pass, and how a recorded result is judged again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.validate.checks import Check, DeviceFacts, Result, Status, read_result, skipped


def row(**fields: Any) -> Check:
    base: dict[str, Any] = {"section": "pools", "case": "m", "name": "n", "predicted": 10, "measured": 10, "unit": "B"}
    return Check(**{**base, **fields})


def result(*checks: Check) -> Result:
    device = DeviceFacts("CPU", "cpu", 10, 5)
    return Result("validate", 1, "2026-11-29T00:00:00+00:00", device, {"kvplan": "0"}, {"seed": 1}, list(checks))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "pass"),
        ({"measured": 11}, "fail"),
        ({"measured": 9}, "fail"),
        ({"rule": "at most", "measured": 10}, "pass"),
        ({"rule": "at most", "measured": 10.1}, "fail"),
        ({"rule": "at least", "measured": 9.9}, "fail"),
        ({"rule": "within", "tolerance": 0.15, "measured": 11.5}, "pass"),
        ({"rule": "within", "tolerance": 0.15, "measured": 11.6}, "fail"),
        ({"rule": "within", "tolerance": 0.15, "measured": 8.4}, "fail"),
        ({"measured": math.nan}, "fail"),
        ({"rule": "at most", "measured": math.nan}, "fail"),
        ({"rule": "at most", "measured": math.inf}, "fail"),
        ({"rule": "within", "tolerance": 0.15, "predicted": 0, "measured": 1}, "fail"),
        ({"measured": 11, "judged": False}, "info"),
        ({"measured": None}, "skipped"),
    ],
)
def test_status(fields: dict[str, Any], status: Status) -> None:
    assert row(**fields).status == status


def test_exit_code_and_verdict() -> None:
    good, bad = row(), row(name="pool bytes", measured=9)
    assert result(good).exit_code == 0
    assert result(good, bad).exit_code == 1
    assert "1 of 2 checks FAILED on CPU, first pools / m / pool bytes" in result(good, bad).verdict
    nothing = result(skipped("pools", "m", "n", "no device"), row(judged=False))
    assert nothing.exit_code == 2
    assert nothing.verdict == "Nothing could be judged on CPU (1 reported only, 1 skipped)."


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    before = result(row(), row(measured=None, note="why"), row(measured=0.25, judged=False))
    before = replace(before, device=replace(before.device, compute_capability=(9, 0)))
    assert read_result(written(tmp_path / "r.json", before.to_dict())) == before


def test_a_result_that_claims_more_than_its_figures_is_refused(tmp_path: Path) -> None:
    document = result(row(measured=9)).to_dict()
    assert document["checks"][0]["status"] == "fail"
    document["checks"][0]["status"] = "pass"
    with pytest.raises(InputError, match="found the status 'pass', expected fail from its figures"):
        read_result(written(tmp_path / "r.json", document))
    document = result(row(measured=9)).to_dict()
    document["exit_code"] = 0
    with pytest.raises(InputError, match="exit_code: found 0, expected 1"):
        read_result(written(tmp_path / "r.json", document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": {"name": "x"}}, "device"),
        ({"checks": [{"section": 1}]}, "checks.0.section"),
        ({"checks": "all good"}, "checks: found 'all good'"),
        ({"schema_version": 2}, "schema_version: found 2"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_file_names_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "r.json", {**result(row()).to_dict(), **change})
    with pytest.raises(InputError, match=message):
        read_result(path)


def test_what_is_no_json_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="expected an object"):
        read_result(path)
