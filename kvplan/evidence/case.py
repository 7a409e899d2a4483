"""Starts of engines as cases: figures and settings, nothing personal, held against the engine's model again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvplan.engines.base import Device
from kvplan.errors import InputError, show
from kvplan.evidence.ask import Given
from kvplan.evidence.audit import Audit, audit
from kvplan.evidence.flags import NAMES
from kvplan.evidence.runs import Event, Figure, LogRun
from kvplan.files import parse_json, read_text, write_text_atomic
from kvplan.record import record
from kvplan.resources import data_dir
from kvplan.spec.resolve import LoadedModel, registry
from kvplan.units import GIB

SCHEMA_VERSION = 1
#: best first; a case may not fall to a later one
VERDICTS = ("exact", "within rounding", "rank minimum", "off", "not checkable")
MAX_CASES = 10_000

#: settings whose value is a word; any other word may be a path, a host or a name
_WORDS = {
    "kv_cache_dtype", "dtype", "quantization", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode",
    "mamba_ssm_dtype", "mamba_scheduler_strategy", "speculative_algorithm", "cache_type_k", "cache_type_v",
    "flash_attn", "attention_backend",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_]{1,32}")
_SETTINGS = {name for names in NAMES.values() for name in names.values()} | {
    "ctx_size", "parallel", "ubatch_size", "kv_unified", "flash_attn", "cache_type_k", "cache_type_v", "mla_use",
    "n_rs_seq", "tokens_per_block", "free_gpu_memory_fraction",
}  # fmt: skip
_FIGURE_TEXTS = {"version", "architecture", "capability"}


@record
class Case:
    """One start. `gpu` is a known accelerator's slug or None, `device` what the engine's model is asked with."""

    id: str
    run: LogRun
    model: str | None
    gpu: str | None
    device: Device | None
    verdict: str | None
    source: str


@record
class Outcome:
    """A case asked again: `verdict` is the worst of its checks, `error` the largest of their errors, `held` is False
    when it was better before."""

    id: str
    engine: str
    version: str | None
    model: str | None
    figure: str | None
    observed: float | None
    predicted: float | None
    error: float | None
    verdict: str
    recorded: str | None
    held: bool
    reason: str


def case_document(name: str, runs: tuple[LogRun, ...], given: Given, number: int | None = None) -> dict[str, Any]:
    """A start of a log as the JSON of a case.

    Kept are figures, and settings that are numbers, switches or words of a closed kind: no path, host, address, token
    or name of the log's gets in. The model is the id of a known one, else null. Raises InputError for a bad `name`.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,79}", name):
        raise InputError(f"--id: found {show(name)}, expected small letters, digits, dots and dashes")
    answer = audit(runs, given, number)
    run = runs[answer.run_number - 1]
    known = registry()
    model = answer.model if answer.model in known.ids() else None
    return {
        "schema_version": SCHEMA_VERSION,
        "id": name,
        "engine": run.engine,
        "version": _version(run.version),
        "model": model,
        "gpu": given.accelerator.slug if given.accelerator is not None else None,
        "settings": _settings({**run.flags, **(given.settings or {})}),
        "figures": [
            {"name": item.name, "value": item.value, "unit": item.unit, "half": item.half}
            for item in run.figures
            if item.unit != "setting" and (not isinstance(item.value, str) or item.name in _FIGURE_TEXTS)
        ],
        "refusals": [event.kind for event in run.refusals],
        "verdict": _verdict(answer),
        "source": "added by kvplan evidence add",
    }


def _version(text: str | None) -> str | None:
    match = re.match(r"b?[0-9]+(?:\.[0-9]+){0,3}(?:\.?(?:post|rc|dev)[0-9]+)*", text or "")
    return match.group() if match else None


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if name not in _SETTINGS or name == "model":
            continue
        if name == "speculative_config" and isinstance(value, dict):
            method, count = str(value.get("method", "")), value.get("num_speculative_tokens")
            if _WORD.fullmatch(method) and isinstance(count, int):
                found[name] = {"method": method, "num_speculative_tokens": count}
        elif isinstance(value, bool | int | float) or (
            isinstance(value, str) and name in _WORDS and _WORD.fullmatch(value)
        ):
            found[name] = value
    return found


def add_case(path: Path, document: dict[str, Any]) -> None:
    """Write a case. Raises InputError where a file of that name is already there or can't be written."""
    if path.exists():
        raise InputError(f"{path}: found a case of that name, expected a new --id")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, json.dumps(document, indent=1) + "\n")


def read_cases(folder: Path | None = None) -> tuple[Case, ...]:
    """The cases of a folder, else the record that ships with kvplan. Raises InputError for a file that is no case."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"--dir: found no folder {show(str(folder))}, expected a folder of cases")
    found: list[Case] = []
    for path in sorted(folder.glob("*.json")) if folder is not None else _shipped():
        found += _cases_of(parse_json(read_text(path), str(path)), str(path))
        if len(found) > MAX_CASES:
            raise InputError(f"--dir: found more than {MAX_CASES:,} cases, expected at most that many")
    return tuple(found)


def _shipped() -> list[Path]:
    place = data_dir("tests/evidence/vllm-logs")
    return [place / "cases.json", place / "start_ups.json"]


def _cases_of(data: Any, name: str) -> Iterator[Case]:
    if isinstance(data, dict) and "figures" in data:
        yield _own(data, name)
        return
    listed = data if isinstance(data, list) else data.get("cases", []) if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise InputError(f"{name}: found something else than a case, expected the output of kvplan evidence add")
    for entry in listed:
        yield _published(entry, name)


def _own(data: dict[str, Any], name: str) -> Case:
    try:
        figures = tuple(
            Figure(
                str(item["name"]), _plain(item["value"]), str(item["unit"]), float(item["half"]), 0, None, None, "case"
            )
            for item in data["figures"]
        )
        settings = data["settings"]
        if not isinstance(settings, dict):
            raise TypeError
        run = LogRun(
            str(data["engine"]), data["version"], figures, settings, {},
            tuple(Event(str(kind), 0) for kind in data["refusals"]), (), 0, 0,
        )  # fmt: skip
        return Case(str(data["id"]), run, data["model"], data["gpu"], None, data["verdict"], str(data["source"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: found no whole case ({error}), expected one by kvplan evidence add") from None


def _plain(value: Any) -> int | float | str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"the value {show(value)}")
    return value


#: figures of the published vLLM cases: name, and whether it is GiB of two decimals
_PUBLISHED = {
    "available_kv_gib": ("available", True), "needed_kv_gib": ("needed", True), "kv_tokens": ("tokens", False),
    "max_conc": ("concurrency", False), "est_max_len": ("estimated_length", False), "num_blocks": ("blocks", False),
    "cpu_blocks": ("cpu_blocks", False),
}  # fmt: skip


def _published(entry: dict[str, Any], name: str) -> Case:
    """A case of the shipped record, mined from public threads."""
    try:
        figures, seen, arguments = [], entry["observed"], entry["engine_args"]
        for key, value in seen.items():
            if key not in _PUBLISHED:
                continue
            figure, in_gib = _PUBLISHED[key]
            unit = "bytes" if in_gib else "ratio" if figure == "concurrency" else "count"
            size = round(value * GIB) if in_gib else value
            half = GIB * 0.005 if in_gib else 0.005 if unit == "ratio" else 0
            figures.append(Figure(figure, size, unit, half, 0, None, None, entry["source"]))
        over = seen.get("kv_tokens", 1 << 60) < arguments["max_model_len"]
        refused = "needed_kv_gib" in seen or (over and entry["version"] < "0.8")
        capability = entry["capability"]
        pair = None if capability is None else (int(capability[0]), int(capability[1]))
        device = Device(entry["gpu"], entry["memory_gib"] * GIB, pair, entry.get("kind", "cuda"))
        run = LogRun(
            "vllm", entry["version"], tuple(figures), dict(arguments), {},
            (Event("length-exceeds-pool", 0),) if refused else (), (), 0, 0,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name}: found no whole case ({error!r}), expected one of the record") from None
    recorded = "off" if "known_miss" in entry else "rank minimum" if entry.get("poorest_rank") else "within rounding"
    return Case(entry["id"], run, entry["model"], None, device, recorded, entry["source"])


def run_case(case: Case) -> Outcome:
    """Ask the engine's model again. A model or GPU that isn't known makes the case not checkable."""
    loaded, accelerator = None, None
    try:
        if case.model is not None:
            loaded = LoadedModel(registry().find(case.model))
        if case.gpu is not None:
            from kvplan.hardware.accelerators import find

            accelerator = find(case.gpu)
        answer = audit((case.run,), Given(loaded, accelerator, case.device))
    except InputError as error:
        return _outcome(case, None, "not checkable", str(error))
    return _outcome(case, answer, _verdict(answer), "; ".join(answer.warnings[:1]) if not answer.checks else "")


def _outcome(case: Case, answer: Audit | None, verdict: str, reason: str) -> Outcome:
    checks = answer.checks if answer is not None else ()
    worst = max(checks, key=lambda check: (VERDICTS.index(check.verdict), abs(check.error or 0)), default=None)
    before = VERDICTS.index(case.verdict) if case.verdict in VERDICTS else len(VERDICTS)
    return Outcome(
        case.id, case.run.engine, case.run.version, case.model,
        None if worst is None else worst.name, None if worst is None else worst.observed,
        None if worst is None else worst.predicted, None if worst is None else worst.error,
        verdict, case.verdict, VERDICTS.index(verdict) <= before, reason,
    )  # fmt: skip


def _verdict(answer: Audit) -> str:
    """The worst verdict of the checks."""
    return max((check.verdict for check in answer.checks), key=VERDICTS.index, default="not checkable")
