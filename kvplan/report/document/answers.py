"""From a saved JSON answer to a document: verdict, pictures, what was asked, every figure, what it stands on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import kvplan
from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import parse_json, read_text
from kvplan.report.document.anything import blocks
from kvplan.report.document.blocks import Block, Code, Document, Heading, Items, Text, pairs
from kvplan.report.document.draw import pictures
from kvplan.report.document.sections import section
from kvplan.report.document.words import is_scalar

#: where the record of each command's answer is; a command without one has a plain document
_RECORDS = {
    "estimate": ("kvplan.estimator", "Estimate"),
    "estimate --engine": ("kvplan.served", "ServedEstimate"),
    "explain": ("kvplan.answers.explain", "Explanation"),
    "compare": ("kvplan.answers.compare", "Comparison"),
    "advise": ("kvplan.answers.advise", "Advice"),
    "techniques": ("kvplan.answers.techniques", "TechniqueList"),
    "techniques demo": ("kvplan.answers.techniques", "Miniatures"),
    "techniques map": ("kvplan.answers.techniques", "Map"),
    "audit": ("kvplan.evidence.audit", "Audit"),
    "audit-difference": ("kvplan.evidence.difference", "Difference"),
    "plan": ("kvplan.planner.answer", "Plan"),
    "plan --fit": ("kvplan.planner.fit", "FitAnswer"),
    "validate": ("kvplan.validate.checks", "Result"),
}
_PLAIN = ("simulate", "simulate --find max-rate", "simulate compare", "check")
_ASKED = (
    "asked", "model", "scenario", "context_tokens", "context_source", "batch", "dtypes", "contexts", "baseline", "sort",
    "engine", "version", "gpu", "gpus", "goal", "seed", "run_number", "device", "settings", "step_time",
)  # fmt: skip
_FIRST = ("schema_version", "command", "verdict", "constraint", "engine_command")
_LAST = ("assumptions", "warnings", "evidence", "notes", "definitions", "missing", "scheduler_rules")


def read_answer(path: Path) -> dict[str, Any]:
    """The answer that `path` holds, checked against its command's record. Raises InputError for anything else."""
    answer = parse_json(read_text(path), str(path))
    if not isinstance(answer, dict) or not isinstance(answer.get("command"), str):
        raise InputError(f"{path}: found no answer of kvplan, expected what a command prints with --json")
    command = _command(answer)
    if command not in _RECORDS and command not in _PLAIN:
        known = (*_RECORDS, *_PLAIN)
        raise InputError(
            f"{path}: command: found {show(command)}, expected one of {', '.join(known)}{did_you_mean(command, known)}"
        )
    if answer.get("schema_version") != 1:
        raise InputError(f"{path}: schema_version: found {show(answer.get('schema_version'))}, expected 1")
    if command in _RECORDS:
        _check(answer, command, path)
    return answer


def _command(answer: Mapping[str, Any]) -> str:
    return "estimate --engine" if answer["command"] == "estimate" and "engine" in answer else str(answer["command"])


def _check(answer: dict[str, Any], command: str, path: Path) -> None:
    from pydantic import TypeAdapter, ValidationError

    module, name = _RECORDS[command]
    try:
        TypeAdapter(getattr(import_module(module), name)).validate_python(answer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise InputError(
            f"{path}: {place}: found {show(first['input'])}, expected an answer of kvplan {command} ({first['msg']})"
        ) from None


def document(answer: Mapping[str, Any]) -> Document:
    """The document of an answer that `read_answer` took."""
    made: list[Block] = []
    verdict = answer.get("verdict") or answer.get("constraint")
    if isinstance(verdict, str):
        made.append(Text(verdict, _tone(answer)))
    made += pictures(answer)
    asked = {key: answer[key] for key in _ASKED if key in answer and not _is_result(key, answer)}
    made += blocks("what was asked", asked)
    rest = {key: found for key, found in answer.items() if key not in (*_FIRST, *_LAST, *asked)}
    made += blocks("in short", {key: found for key, found in rest.items() if is_scalar(found)})
    for key, found in rest.items():
        if not is_scalar(found):
            made += section(key, found, answer)
    if answer.get("engine_command"):
        made += [Heading("the engine's command"), Code(str(answer["engine_command"]))]
    for key in _LAST:
        made += blocks(key, answer.get(key))
    return Document(f"kvplan {_command(answer)}: {_subject(answer)}", (*made, *_versions(answer)))


def _is_result(key: str, answer: Mapping[str, Any]) -> bool:
    """An engine's section is its plan, where its name alone is a part of the question."""
    return key == "engine" and isinstance(answer[key], Mapping)


def _subject(answer: Mapping[str, Any]) -> str:
    model = answer.get("model")
    if isinstance(model, Mapping):
        return str(model.get("id"))
    for found in (model, answer.get("scenario"), answer.get("baseline")):
        if isinstance(found, str):
            return found
    device = answer.get("device")
    asked = answer.get("asked")
    if isinstance(device, Mapping):
        return str(device.get("name"))
    return ", ".join(asked["models"]) if isinstance(asked, Mapping) and "models" in asked else "an answer"


_GOOD: dict[str, Callable[[Mapping[str, Any]], bool | None]] = {
    "estimate": lambda answer: None if answer["fit"] is None else bool(answer["fit"]["fits"]),
    "estimate --engine": lambda answer: answer["engine"]["refused"] is None,
    "plan": lambda answer: bool(answer["options"]),
    "audit": lambda answer: all(found["severity"] == "note" for found in answer["findings"]),
}


def _tone(answer: Mapping[str, Any]) -> str:
    judge = _GOOD.get(_command(answer))
    good = None if judge is None else judge(answer)
    return "plain" if good is None else "good" if good else "bad"


def _versions(answer: Mapping[str, Any]) -> list[Block]:
    rows = [("document made by", f"kvplan {kvplan.__version__}"), ("answer's schema", str(answer["schema_version"]))]
    engine = answer.get("engine")
    if isinstance(engine, Mapping):
        rows.append(("engine", f"{engine['name']} {engine['version']}"))
    model = answer.get("model")
    if isinstance(model, Mapping):
        rows.append(("model's spec", f"{model['source']} ({model['confidence']})"))
    rows += [(str(name), str(text)) for name, text in (answer.get("versions") or {}).items()]
    return [Heading("versions"), pairs("versions", rows), Items(_SAYS)]


_SAYS = ("bytes are exact integers; a GiB is 2^30 bytes, a GB 10^9", "k is 1,024 tokens")
