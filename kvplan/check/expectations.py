"""The file of expectations: read strictly, with the line of everything in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kvplan.check.metrics import Condition, metric_names, parse_condition
from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import YamlNode, compose_yaml, parse_yaml, read_text
from kvplan.record import record
from kvplan.units import parse_bytes, parse_tokens

MAX_EXPECTATIONS = 100_000
SCHEMA_VERSION = 1
_HARDWARE = re.compile(r"\s*(?:([0-9]{1,5})\s*(?:x|\*)\s*)?([A-Za-z].*?)\s*")
_SENTENCE = (
    r"^\s*((not\s+)?fits|no\s+worse\s+than\s+(the\s+)?baseline(\s+by\s+[0-9.]+\s*%)?|("
    + "|".join(name for name in metric_names() if name != "fits")
    + r")\s*(>=|<=|==|=|>|<)\s*\S.*)$"
)


def _hardware(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        return value
    match = _HARDWARE.fullmatch(str(value))
    if match is None:
        raise ValueError("expected a device such as h100, or 2 x h100")
    return {"gpu": match[2], **({"count": int(match[1])} if match[1] else {})}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _read(parse: Any, example: str) -> Any:
    def read(value: Any) -> Any:
        try:
            return parse(value, "")
        except InputError:
            raise ValueError(f"expected {example}") from None

    return read


def _text_map(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): str(item) if isinstance(item, int | float) else item for name, item in value.items()}
    return value


Tokens = Annotated[
    int,
    BeforeValidator(_read(parse_tokens, "a token count such as 32k"), json_schema_input_type=int | str),
    Field(ge=1),
]
Size = Annotated[
    int, BeforeValidator(_read(parse_bytes, "a size such as 20GiB"), json_schema_input_type=int | str), Field(ge=1)
]
Line = Annotated[str, Field(min_length=1, max_length=200)]
Sentence = Annotated[str, Field(json_schema_extra={"pattern": _SENTENCE})]


class Part(BaseModel):
    """A part of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Hardware(Part):
    """The device and how many the engine has; without a count, as many as the manifest asks for or the ranks need."""

    gpu: str = Field(min_length=1, max_length=200)
    count: int | None = Field(default=None, ge=1, le=100_000)


class Expectation(Part):
    """What is served on what, and what must hold. `at` picks commands of a manifest by a part of their place; `allow`
    lists findings that are known and accepted."""

    name: Line
    expect: Annotated[
        tuple[Sentence, ...],
        BeforeValidator(_listed, json_schema_input_type=Sentence | list[Sentence]),
        Field(min_length=1, max_length=100),
    ]
    model: str | None = Field(default=None, min_length=1, max_length=1000)
    command: str | None = Field(default=None, min_length=1, max_length=100_000)
    manifest: str | None = Field(default=None, min_length=1, max_length=1000)
    at: str | None = Field(default=None, min_length=1, max_length=200)
    set: Annotated[dict[str, str], BeforeValidator(_text_map)] = {}
    engine: str | None = Field(default=None, min_length=1, max_length=100)
    flags: dict[str, Any] = {}
    hardware: Annotated[Hardware | None, BeforeValidator(_hardware, json_schema_input_type=str | Hardware | None)] = (
        None
    )
    available_memory: Size | None = None
    ctx: Tokens | None = None
    batch: int = Field(default=1, ge=1, le=10**9)
    kv_cache_dtype: str = "auto"
    scenario: str | None = Field(default=None, min_length=1, max_length=1000)
    allow: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_subject(self) -> Expectation:
        if self.command is not None and self.manifest is not None:
            raise ValueError("found both command and manifest, expected one of them")
        if self.at is not None and self.manifest is None:
            raise ValueError("found at without a manifest, expected a manifest beside it")
        if self.flags and self.engine is None:
            raise ValueError("found flags without an engine, expected an engine beside them, or a command")
        if self.flags and (self.command or self.manifest):
            raise ValueError("found flags beside a launch command, expected them inside the command")
        if not (self.model or self.command or self.manifest or self.scenario):
            raise ValueError("found no model, command, manifest or scenario, expected one of them")
        return self


class CheckFile(Part):
    """A file of expectations. `baseline` names the file of figures that must not get worse."""

    schema_version: Literal[1] = 1
    baseline: str | None = Field(default=None, min_length=1, max_length=1000)
    expectations: tuple[Expectation, ...] = Field(min_length=1, max_length=MAX_EXPECTATIONS)


@record
class Placed:
    """One expectation and where it stands: the line it begins at, and those of its keys and of each sentence."""

    asked: Expectation
    conditions: tuple[Condition, ...]
    file: Path
    line: int
    key_lines: Mapping[str, int]
    expect_lines: tuple[int, ...]
    command_node: YamlNode | None = None


@record
class Expectations:
    """One file of expectations, read."""

    path: Path
    text: str
    baseline: str | None
    items: tuple[Placed, ...]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a file of expectations, for editors."""
    schema = CheckFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kvplan check"}


def read_expectations(path: Path) -> Expectations:
    """Read and check a file. Raises InputError with file and line for what is wrong in it."""
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: found an empty file, expected expectations (a check of nothing must not pass)")
    document = parse_yaml(text, str(path))
    if not isinstance(document, dict):
        raise InputError(f"{path}: line 1: found {show(document)}, expected a mapping with expectations:")
    node = compose_yaml(text, str(path))[0]
    if not document.get("expectations"):
        line = node.key_lines.get("expectations", 1)
        raise InputError(f"{path}: line {line}: found no expectations, expected at least one under expectations:")
    try:
        file = CheckFile.model_validate(document)
    except ValidationError as error:
        raise _refusal(path, node, error) from None
    listed = node.get("expectations")
    assert listed is not None
    items = tuple(_placed(path, asked, made) for asked, made in zip(file.expectations, listed.value, strict=True))
    _distinct(path, items)
    return Expectations(path, text, file.baseline, items)


def _placed(path: Path, asked: Expectation, node: YamlNode) -> Placed:
    sentences = node.get("expect")
    assert sentences is not None
    rows = sentences.value if isinstance(sentences.value, list) else [sentences]
    lines = tuple(row.line for row in rows)
    conditions = tuple(
        parse_condition(text, f"{path}: line {line}: expect") for text, line in zip(asked.expect, lines, strict=True)
    )
    needs = [each.metric for each in conditions if each.metric is not None]
    simulated = next((metric for metric in needs if metric.source == "scenario"), None)
    if simulated is not None and asked.scenario is None:
        raise InputError(
            f"{path}: line {node.line}: found {simulated.name} without a scenario, expected scenario: with a file of "
            "`kvplan simulate`"
        )
    other = next((metric for metric in needs if metric.source != "scenario"), None)
    if other is not None and not (asked.model or asked.command or asked.manifest):
        raise InputError(
            f"{path}: line {node.line}: found {other.name} without a model, expected model:, command: or manifest:"
        )
    return Placed(asked, conditions, path, node.line, dict(node.key_lines), lines, node.get("command"))


def _distinct(path: Path, items: tuple[Placed, ...]) -> None:
    seen: dict[str, int] = {}
    for item in items:
        if item.asked.name in seen:
            raise InputError(
                f"{path}: line {item.line}: found the name {show(item.asked.name)} a second time (first on line "
                f"{seen[item.asked.name]}), expected each name once"
            )
        seen[item.asked.name] = item.line


def _refusal(path: Path, node: YamlNode, error: ValidationError) -> InputError:
    errors = error.errors()
    # A misspelt key is told before the one that it leaves missing.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    place = [part for part in first["loc"] if isinstance(part, int) or part in _FIELDS or first["type"] != "missing"]
    line, names = _line_of(node, place), ".".join(str(part) for part in first["loc"] if part != "Hardware") or "file"
    where = f"{path}: line {line}: {names}"
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        hint = did_you_mean(key, _keys_at(first["loc"][:-1]))
        return InputError(f"{where}: found an unknown key, expected one of the schema's{hint}")
    if first["type"] == "missing":
        return InputError(f"{where}: found nothing, expected a value")
    said = first["msg"].removeprefix("Value error, ")
    said = f"{said[:1].lower()}{said[1:]}"
    if said.startswith("found "):
        return InputError(f"{where}: {said}")
    said = said.removeprefix("input should be ").replace("tuple", "list").replace("dictionary", "mapping")
    return InputError(
        f"{where}: found {show(first['input'])}, {said if said.startswith('expected') else f'expected {said}'}"
    )


_FIELDS = frozenset({*CheckFile.model_fields, *Expectation.model_fields, *Hardware.model_fields})


def _line_of(node: YamlNode, place: list[Any]) -> int:
    line = node.line
    for part in place:
        if isinstance(part, int) and isinstance(node.value, list) and part < len(node.value):
            node = node.value[part]
            line = node.line
        elif isinstance(node.value, dict) and str(part) in node.value:
            line = node.key_lines.get(str(part), line)
            node = node.value[str(part)]
    return line


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    if not location:
        return list(CheckFile.model_fields)
    return list(Hardware.model_fields if "hardware" in location else Expectation.model_fields)
