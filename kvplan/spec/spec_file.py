"""Model specs as YAML: one document a model, read strictly, written so that a person can read it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, KvplanError, did_you_mean, show
from kvplan.files import parse_yaml, read_text
from kvplan.spec.layers import LAYER_BY_KIND, Indexer, Parallel
from kvplan.spec.model import KvQuantization, ModelSpec, Parameters, Provenance, Repeat, WeightQuantization

_FIRST = ("id", "hf_ids", "aliases", "architecture", "model_type", "dtype", "max_context", "hidden_size", "vocab_size")


def spec_from_trusted(data: dict[str, Any]) -> ModelSpec:
    """Build a spec from a document that was validated before (its checksum stands in the registry's index)."""
    values = dict(data)
    values["blocks"] = {name: _layer(block) for name, block in data["blocks"].items()}
    for key in ("layers", "draft_layers"):
        if key in data:
            values[key] = tuple(
                run if isinstance(run, str) else Repeat(run["repeat"], tuple(run["of"])) for run in data[key]
            )
    for key in ("hf_ids", "aliases", "assumptions", "published_parameters_b"):
        if data.get(key) is not None:
            values[key] = tuple(data[key])
    nested = {"provenance": Provenance, "parameters": Parameters, "kv_quantization": KvQuantization}
    for key, cls in nested.items():
        if data.get(key) is not None:
            values[key] = cls(**data[key])
    if data.get("quantization") is not None:
        quantization = dict(data["quantization"])
        for key in ("kept", "block_shape"):
            if quantization.get(key) is not None:
                quantization[key] = tuple(quantization[key])
        values["quantization"] = WeightQuantization(**quantization)
    return ModelSpec(**values)


def _repeat(data: dict[str, Any]) -> Repeat:
    return Repeat(data["repeat"], tuple(data["of"]))


def _layer(data: dict[str, Any]) -> Any:
    values = {key: value for key, value in data.items() if key != "kind"}
    if data["kind"] == "parallel":
        return Parallel(tuple(_layer(branch) for branch in data["branches"]))
    if values.get("indexer") is not None:
        values["indexer"] = Indexer(**values["indexer"])
    return LAYER_BY_KIND[data["kind"]](**values)


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(ModelSpec)


def validate_spec(data: Any, name: str) -> ModelSpec:
    """Build a spec from an untrusted document. Raises InputError naming the field; `name` is what errors call it."""
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise InputError(f"{name}: found {show(data)}, expected a mapping with the fields of a model spec")
    try:
        return _adapter().validate_python(data)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise InputError(f"{name}: {first_problem(error)}") from None
    except KvplanError as error:
        raise InputError(f"{name}: {error}") from None


def first_problem(error: Any) -> str:
    """The first problem of a pydantic ValidationError as one sentence: field, found, expected, nearest."""
    problems = error.errors(include_url=False)
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    # An unknown field explains a missing one (it is the same, misspelt), so it is named first.
    problem = next((each for each in problems if each["type"] in unknown), problems[0])
    place = ".".join(str(part) for part in problem["loc"] if part not in LAYER_BY_KIND) or "the document"
    if problem["type"] in unknown:
        hint = did_you_mean(str(problem["loc"][-1]), _field_names())
        return f"{place}: found an unknown field, expected only the fields of the schema{hint}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"{place}: found nothing, expected a value"
    if problem["type"] == "union_tag_invalid":
        kind = problem["input"].get("kind")  # pydantic's own word for it is Python's
        hint = did_you_mean(kind, LAYER_BY_KIND) if isinstance(kind, str) else ""
        return f"{place}.kind: found {show(kind)}, expected a layer kind{hint}"
    message = problem["msg"].removeprefix("Input ").removeprefix("should be ")
    return f"{place}: found {show(problem['input'])}, expected {message[0].lower() + message[1:]}"


def _field_names() -> set[str]:
    classes = (ModelSpec, Provenance, Parameters, WeightQuantization, KvQuantization, Repeat, Indexer)
    return {item.name for cls in (*classes, *LAYER_BY_KIND.values()) for item in fields(cls)}


def split_documents(text: str) -> list[tuple[int, int]]:
    """The (offset, length) in bytes of each YAML document of a family file; `---` alone on a line parts them."""
    slices: list[tuple[int, int]] = []
    start = offset = 0
    for line in text.encode("utf-8").splitlines(keepends=True):
        if line.rstrip() == b"---":
            slices.append((start, offset - start))
            start = offset + len(line)
        offset += len(line)
    slices.append((start, offset - start))
    data = text.encode("utf-8")
    return [(at, size) for at, size in slices if _has_content(data[at : at + size])]


def _has_content(data: bytes) -> bool:
    return any(line.strip() and not line.lstrip().startswith(b"#") for line in data.splitlines())


def read_specs(path: Path) -> list[ModelSpec]:
    """Read and validate every model of one family file."""
    text = read_text(path)
    data = text.encode("utf-8")
    return [
        validate_spec(parse_yaml(data[at : at + size].decode("utf-8"), str(path)), str(path))
        for at, size in split_documents(text)
    ]


def to_plain(value: Any) -> Any:
    """A spec or part of one as plain data: defaults left out, `kind` first."""
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    plain: dict[str, Any] = {"kind": value.kind} if hasattr(value, "kind") else {}
    for item in fields(value):
        held = getattr(value, item.name)
        if item.name != "kind" and (item.default is MISSING or held != item.default):
            plain[item.name] = to_plain(held)
    return plain


def format_spec(spec: ModelSpec) -> str:
    """The spec as one YAML document, blocks one a line, that read_specs reads back to an equal spec."""
    plain = to_plain(spec)
    order = (
        "id",
        "hf_ids",
        "aliases",
        "architecture",
        "model_type",
        "dtype",
        "max_context",
        "hidden_size",
        "vocab_size",
    )
    lines = [_entry(key, plain.pop(key)) for key in order if key in plain]
    lines.append("blocks:")
    lines += [f"  {name}: {_flow(block)}" for name, block in plain.pop("blocks").items()]
    for key in ("layers", "draft_layers"):
        if key in plain:
            lines.append(f"{key}:")
            lines += [f"- {_flow(run)}" for run in plain.pop(key)]
    provenance = plain.pop("provenance")
    lines += [_entry(key, value) for key, value in plain.items()]
    lines.append("provenance:")
    lines += [f"  {_entry(key, value)}" for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> str:
    return f"{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
