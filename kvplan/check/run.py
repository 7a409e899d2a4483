"""A whole check: read the files, judge every expectation on all cores, keep the answer for a run without changes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

from kvplan.check.baseline import Baseline, Entry, read_baseline, write_baseline
from kvplan.check.expectations import Expectation, Placed, read_expectations
from kvplan.check.inputs import Inputs
from kvplan.check.judge import Judge, Judged
from kvplan.check.metrics import FITS, parse_condition
from kvplan.check.request import Request
from kvplan.check.subjects import Reader
from kvplan.check.verdicts import Report, Verdict
from kvplan.errors import InputError

#: Fewer than this many are faster judged in one process.
WORTH_FORKING = 128


def run_check(request: Request, inputs: Inputs) -> Report:
    """Check everything. Raises InputError for a file that is wrong; notes every file read in `inputs`."""
    reader = Reader(request.given, inputs)
    _no_twins((*request.files, *request.manifests))
    verdicts: list[Verdict] = []
    jobs: list[tuple[Judge, Placed]] = []
    named: set[Path] = set()
    for path in request.files:
        expectations = read_expectations(path)
        inputs.add(path)
        place = _baseline_path(request, path, expectations.baseline)
        if place is not None:
            named.add(place)
        baseline = None if place is None or request.update else _read(place, inputs)
        jobs += [(Judge(reader, baseline, request.update), placed) for placed in expectations.items]
    for path in request.manifests:
        inputs.add(path)
        placed = manifest_expectation(path)
        jobs.append((Judge(reader, None, False), placed))
    judged = _judge_all(jobs, inputs)
    verdicts = _once([verdict for item in judged for verdict in item.verdicts])
    report = Report(
        tuple(verdicts), tuple(str(path) for path in (*request.files, *request.manifests)), request.given.strict
    )
    if request.update:
        _update(named, judged, report)
    return report


def manifest_expectation(path: Path) -> Placed:
    """What is expected of a manifest that is named alone: every engine in it starts."""
    asked = Expectation(name=str(path), manifest=path.name, expect=(FITS,))
    return Placed(asked, (parse_condition(FITS, "expect"),), path, 1, {}, (1,))


def _no_twins(paths: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(f"{path}: found the same file twice (also as {seen[real]}), expected each file once")
        seen[real] = path


def _baseline_path(request: Request, path: Path, named: str | None) -> Path | None:
    if request.baseline is not None:
        return request.baseline
    return None if named is None else path.parent / named


def _read(path: Path, inputs: Inputs) -> Baseline:
    inputs.add(path)
    return read_baseline(path)


def _update(named: set[Path], judged: Sequence[Judged], report: Report) -> None:
    if len(named) != 1:
        raise InputError(f"--update-baseline: found {len(named)} baselines, expected one: --baseline FILE")
    if report.errors:
        raise InputError(f"--update-baseline: {report.errors[0].text}; nothing was written")
    entries: dict[str, Entry] = {}
    for name, entry in (pair for item in judged for pair in item.entries):
        if name in entries:
            raise InputError(
                f"--update-baseline: found two expectations named {name!r}, expected names that differ between files"
            )
        entries[name] = entry
    write_baseline(next(iter(named)), entries.items())


def _once(verdicts: list[Verdict]) -> list[Verdict]:
    """Findings of a manifest that several expectations name are told once."""
    seen: set[tuple[str, int, str, str]] = set()
    kept: list[Verdict] = []
    for verdict in verdicts:
        if not verdict.metric and verdict.status != "pass" and verdict.rule not in ("baseline", "not-evaluated"):
            key = (verdict.file, verdict.line, verdict.rule, verdict.text)
            if key in seen:
                continue
            seen.add(key)
        kept.append(verdict)
    return kept


_JOBS: list[tuple[Judge, Placed]] = []


def _judge_all(jobs: list[tuple[Judge, Placed]], inputs: Inputs) -> list[Judged]:
    """Judge in order; in several processes where that is faster and the system can fork."""
    workers = min(os.cpu_count() or 1, 8, len(jobs) // (WORTH_FORKING // 2))
    if len(jobs) < WORTH_FORKING or workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [judge.judge(placed) for judge, placed in jobs]
    _JOBS[:] = jobs
    size = -(-len(jobs) // (4 * workers))
    parts = [range(start, min(start + size, len(jobs))) for start in range(0, len(jobs), size)]
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            done = pool.map(_judge_part, parts, chunksize=1)
    finally:
        _JOBS.clear()
    inputs.add(*(path for _, paths in done for path in paths))
    return [judged for part, _ in done for judged in part]


def _judge_part(part: range) -> tuple[list[Judged], set[Path]]:
    judged = [_JOBS[number][0].judge(_JOBS[number][1]) for number in part]
    return judged, _JOBS[part.start][0].reader.inputs.paths
