"""Planner files: strict YAML into pydantic models, with line and column in every complaint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import YamlNode, compose_yaml, parse_yaml, read_text

T = TypeVar("T", bound=BaseModel)


def read_document(path: Path, model: type[T]) -> T:
    """Read and check one YAML file. Raises InputError with line and column."""
    text = read_text(path)
    data = parse_yaml(text, str(path))
    return check_document(data, model, str(path), compose_yaml(text, str(path))[0])


def check_document(data: Any, model: type[T], name: str, places: YamlNode | None = None) -> T:
    """Check parsed data. Raises InputError, one sentence, for the first thing that is wrong."""
    if not isinstance(data, dict):
        keys = ", ".join(list(model.model_fields)[:3])
        raise InputError(f"{name}: found {show(data)}, expected a mapping with keys such as {keys}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        loc = tuple(first["loc"])
        where = f"{name}: {_place(places, loc)}{_dotted(loc)}"
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(str(loc[-1]), keys_at(model, loc[:-1]))
            raise InputError(f"{where}: found an unknown key, expected one of the schema's{hint}") from None
        if first["type"] == "missing":
            raise InputError(f"{where}: found nothing, expected a value") from None
        said = first["msg"].removeprefix("Value error, ")
        found = "" if isinstance(first["input"], dict) else f"found {show(first['input'])}, "
        raise InputError(f"{where}: {found}{said[:1].lower()}{said[1:]}") from None


def _dotted(loc: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in loc) or "document"


def _place(node: YamlNode | None, loc: tuple[Any, ...]) -> str:
    if node is None:
        return ""
    line, column = node.line, node.column
    for part in loc:
        if isinstance(node.value, dict) and part in node.key_lines:
            line, column = node.key_lines[part], 1
            node = node.value[part]
            column = node.column if node.line == line else 1
        elif isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line, column = node.line, node.column
        else:
            break
    return f"line {line}, column {column}: "


def keys_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The keys that the part of `model` at `loc` takes."""
    here: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = here.model_fields.get(part) if hasattr(here, "model_fields") else None
        parts = getattr(field.annotation, "__args__", (field.annotation,)) if field is not None else ()
        here = next((item for item in parts if hasattr(item, "model_fields")), model)
    return list(here.model_fields)
