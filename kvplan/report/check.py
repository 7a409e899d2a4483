"""A check for people and for GitHub: text, Markdown for a pull request, workflow annotations."""

from __future__ import annotations

import json

from kvplan.check.verdicts import Report, Verdict

TYPE_WORDS = {"pass": "PASS", "fail": "FAIL", "error": "ERROR", "warning": "WARN", "note": "note"}
SHOWN_PASSES = 50
SHOWN_ROWS = 200


def render(report: Report, form: str) -> str:
    """The report in one of the formats of `kvplan check --format`."""
    if form == "json":
        return json.dumps(report.to_dict(), indent=2) + "\n"
    if form in ("junit", "sarif"):
        from kvplan.report import check_ci

        return check_ci.junit(report) if form == "junit" else check_ci.sarif(report)
    return {"github": github, "markdown": markdown, "text": text}[form](report)


def name_of(verdict: Verdict) -> str:
    """The expectation and, where a manifest has several commands, the one it is about."""
    return f"{verdict.expectation}: {verdict.place}" if verdict.place else verdict.expectation


def sorted_out(report: Report) -> list[Verdict]:
    """What needs attention first: errors, failures, warnings, each in order."""
    rank = {"error": 0, "fail": 1, "warning": 2, "note": 3, "pass": 4}
    return sorted(report.verdicts, key=lambda verdict: rank[verdict.status])


# --- text --------------------------------------------------------------------------------------------------------


def text(report: Report) -> str:
    """One line for what holds, a paragraph for what doesn't, and the sum."""
    passes = [verdict for verdict in report.verdicts if verdict.status == "pass"]
    lines = [f"PASS   {name_of(verdict)}: {verdict.check}{_got(verdict)}" for verdict in passes[:SHOWN_PASSES]]
    if len(passes) > SHOWN_PASSES:
        lines.append(f"...    and {len(passes) - SHOWN_PASSES:,} more that hold")
    for status in ("note", "warning", "fail", "error"):
        for verdict in report.verdicts:
            if verdict.status == status:
                lines += _paragraph(verdict)
    return "\n".join([*lines, report.verdict, ""])


def _got(verdict: Verdict) -> str:
    return f" (got {verdict.got})" if verdict.got and verdict.metric != "fits" else ""


def _paragraph(verdict: Verdict) -> list[str]:
    head = f"{TYPE_WORDS[verdict.status]:<6} {name_of(verdict)}: {verdict.check} [{verdict.rule}]"
    lines = [head, f"       at {verdict.file}:{verdict.line}"]
    if (verdict.stated_file, verdict.stated_line) != (verdict.file, verdict.line) and verdict.metric:
        lines.append(f"       expected at {verdict.stated_file}:{verdict.stated_line}")
    parts = [
        ("expected", verdict.expected), ("got", f"{verdict.got}{f', {verdict.by}' if verdict.by else ''}"),
        ("because", verdict.blame), ("change", verdict.change),
    ]  # fmt: skip
    if verdict.status == "fail" and verdict.expected:
        return [*lines, *(f"       {label:<10} {said}" for label, said in parts if said)]
    return [*lines, f"       {verdict.text}"]


def manifest_text(reading: object) -> str:
    """What was read from a deployment file, for people. `reading` is a ManifestReading."""
    from kvplan.check.manifests import ManifestReading

    assert isinstance(reading, ManifestReading)
    count = len(reading.commands)
    lines = [f"{reading.path}: {reading.kind}, {count} launch command{'s' if count != 1 else ''}"]
    for found in reading.commands:
        command, device = found.command, found.accelerator
        version = f" {command.version}" if command.version else ""
        lines.append(f"  {reading.path}:{found.line}  {found.place}: {command.engine}{version}")
        lines.append(f"    model     {command.model or command.model_hint or 'not known'}")
        lines += [f"    flag      {name} = {value}" for name, value in command.flags.items()]
        if command.ignored:
            lines.append(f"    ignored   {', '.join(command.ignored)}")
        if command.unknown:
            lines.append(f"    unknown   {', '.join(command.unknown)}")
        devices = f"{device.count if device.count is not None else '?'} x {device.name or 'a GPU that is not named'}"
        lines.append(f"    devices   {devices} ({device.certainty}); replicas {found.replicas}, nodes {found.nodes}")
        lines += [f"    not known {item}" for item in (*command.not_knowable, *found.not_knowable)]
    lines += [f"  {item.level:<8} {reading.path}:{item.line} {item.text} [{item.rule}]" for item in reading.findings]
    lines += [f"  not known {item}" for item in reading.not_knowable]
    lines += [f"  no launch command: {item}" for item in reading.hints]
    return "\n".join(lines) + "\n"


# --- GitHub ------------------------------------------------------------------------------------------------------


def github(report: Report) -> str:
    """Workflow commands that GitHub shows at the lines they name, then the sum as a notice."""
    levels = {"error": "error", "fail": "error", "warning": "warning", "note": "notice"}
    lines = [
        f"::{levels[verdict.status]} file={_property(verdict.file)},line={verdict.line},"
        f"title={_property(f'kvplan: {name_of(verdict)}')}::{_data(f'{verdict.check}: {verdict.text}')}"
        for verdict in sorted_out(report)
        if verdict.status in levels
    ]
    return "\n".join([*lines, f"::notice title=kvplan::{_data(report.verdict)}", ""])


def _data(value: str) -> str:
    """A message of a workflow command: line ends and percent signs escaped (actions/toolkit command.ts)."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


# --- Markdown ----------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """A comment for a pull request: the sum, a table of what needs attention, and what holds folded away."""
    mark = {0: "pass", 1: "fail"}.get(report.exit_code, "not evaluated")
    lines = [f"### kvplan check: {mark}", "", report.verdict, ""]
    attention = [verdict for verdict in sorted_out(report) if verdict.status in ("error", "fail", "warning")]
    if attention:
        lines += [
            "| | what | expected | got | why, and what would pass | where |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_row(verdict) for verdict in attention[:SHOWN_ROWS]]
        lines += _rest(len(attention) - SHOWN_ROWS)
    passes = [verdict for verdict in report.verdicts if verdict.status == "pass"]
    if passes:
        lines += ["", f"<details><summary>{len(passes)} that hold</summary>", "", "| what | check | got |"]
        lines += ["| --- | --- | --- |"]
        lines += [_cells(name_of(each), each.check, each.got) for each in passes[:SHOWN_ROWS]]
        lines += [*_rest(len(passes) - SHOWN_ROWS), "", "</details>"]
    return "\n".join([*lines, ""])


def _rest(count: int) -> list[str]:
    return ["", f"and {count:,} more"] if count > 0 else []


def _row(verdict: Verdict) -> str:
    why = verdict.blame or verdict.text
    if not verdict.expected:
        why = verdict.text
    elif verdict.change:
        why = f"{why}; {verdict.change}"
    got = f"{verdict.got}, {verdict.by}" if verdict.by else verdict.got
    where = f"{verdict.file}:{verdict.line}"
    return _cells(TYPE_WORDS[verdict.status], f"{name_of(verdict)}: {verdict.check}", verdict.expected, got, why, where)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(value: str) -> str:
    """Text that stays in its cell and is no markup."""
    flat = " ".join(value.split())
    for mark in "\\|`*_<>[]":
        flat = flat.replace(mark, f"\\{mark}")
    return flat.replace("@", "@\u200b")
