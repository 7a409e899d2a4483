"""A check for machines: JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import kvplan
from kvplan.check.verdicts import RULES, Report, Verdict
from kvplan.report.check import name_of, sorted_out

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# What XML 1.0 can't hold.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def junit(report: Report) -> str:
    """JUnit XML: a suite for each file of expectations, a case for each verdict. Warnings and notes are output."""
    files = list(dict.fromkeys(verdict.stated_file for verdict in report.verdicts)) or list(report.files)
    suites = [_suite(name, [each for each in report.verdicts if each.stated_file == name]) for name in files]
    totals = _totals(report.verdicts)
    body = "".join(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="kvplan check" {totals}>\n{body}</testsuites>\n'


def _totals(verdicts: Iterable[Verdict]) -> str:
    cases = [verdict for verdict in verdicts if verdict.status in ("pass", "fail", "error")]
    failures = sum(case.status == "fail" for case in cases)
    errors = sum(case.status == "error" for case in cases)
    return f'tests="{len(cases)}" failures="{failures}" errors="{errors}" time="0"'


def _suite(name: str, verdicts: list[Verdict]) -> str:
    cases = [_case(verdict) for verdict in verdicts if verdict.status in ("pass", "fail", "error")]
    said = [
        f"{each.status}: {each.file}:{each.line}: {each.text}"
        for each in verdicts
        if each.status in ("warning", "note")
    ]
    output = f"    <system-out>{_text(chr(10).join(said))}</system-out>\n" if said else ""
    return (
        f'  <testsuite name={_attribute(name)} {_totals(verdicts)} skipped="0">\n{"".join(cases)}{output}'
        "  </testsuite>\n"
    )


def _case(verdict: Verdict) -> str:
    name = verdict.check if verdict.metric or not verdict.rule else f"{verdict.check} ({verdict.rule})"
    head = f'    <testcase classname={_attribute(name_of(verdict))} name={_attribute(name)} time="0"'
    if verdict.status == "pass":
        return f"{head}/>\n"
    tag = "failure" if verdict.status == "fail" else "error"
    where = f"{verdict.file}:{verdict.line}"
    return (
        f"{head}>\n      <{tag} type={_attribute(verdict.rule)} message={_attribute(verdict.text)}>"
        f"{_text(f'{where}: {verdict.text}')}</{tag}>\n    </testcase>\n"
    )


def _clean(value: str) -> str:
    return _FORBIDDEN.sub("?", value)


def _text(value: str) -> str:
    return escape(_clean(value))


def _attribute(value: str) -> str:
    return quoteattr(" ".join(_clean(value).split()))


def sarif(report: Report) -> str:
    """SARIF 2.1.0: one result for each failure, error and warning, at the line to look at."""
    shown = [verdict for verdict in sorted_out(report) if verdict.status != "pass"]
    rules = list(dict.fromkeys(verdict.rule for verdict in shown))
    driver: dict[str, Any] = {
        "name": "kvplan",
        "version": kvplan.__version__,
        "semanticVersion": kvplan.__version__,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(verdict, rules) for verdict in shown],
        "invocations": [{"executionSuccessful": not report.errors, "exitCode": report.exit_code}],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: str) -> dict[str, Any]:
    words = RULES.get(rule, rule.replace("-", " ").capitalize())
    return {"id": rule, "shortDescription": {"text": words}}


def _result(verdict: Verdict, rules: list[str]) -> dict[str, Any]:
    levels = {"fail": "error", "error": "error", "warning": "warning", "note": "note"}
    identity = f"{verdict.expectation}\n{verdict.place}\n{verdict.check}\n{verdict.rule}\n{verdict.metric}"
    return {
        "ruleId": verdict.rule,
        "ruleIndex": rules.index(verdict.rule),
        "level": levels[verdict.status],
        "message": {"text": f"{name_of(verdict)}: {verdict.check}: {verdict.text}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(verdict.file)},
                    "region": {"startLine": max(1, verdict.line)},
                }
            }
        ],
        "partialFingerprints": {"kvplanCheck/v1": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:32]},
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    posix = PurePath(path).as_posix()
    prefix = "file://" if posix.startswith("/") else ""
    return prefix + quote(posix, errors="replace")
