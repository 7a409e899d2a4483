"""docs/files.md: the files that kvplan reads, from their JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES = {
    "scenario": ("Scenarios", "`kvplan simulate FILE`", "simulator.md"),
    "check": ("Expectations", "`kvplan check FILE`", "check.md"),
    "plan-request": ("Plans", "`kvplan plan FILE`", "plan.md"),
    "study": ("Studies", "`kvplan sweep FILE`", "sweep.md"),
}


def page(schemas: Mapping[str, Mapping[str, Any]], guides: set[str]) -> str:
    """The text of docs/files.md; `guides` are the guides that there are."""
    parts = [_HEAD]
    for name, (title, command, guide) in TITLES.items():
        if name not in schemas:
            continue
        schema = schemas[name]
        link = f" The guide is [{guide.removesuffix('.md')}]({guide})." if guide in guides else ""
        parts.append(f"## {title}\n\nRead by {command}; [the schema](schemas/{name}.schema.json).{link}\n")
        parts.append(_object(schema))
        for each, found in sorted(schema.get("$defs", {}).items()):
            if "properties" in found:
                parts.append(
                    f"### {title}: {each}\n\n{_text(found.get('description', ''))}\n\n{_object(found)}".replace(
                        "\n\n\n", "\n"
                    )
                )
    return "\n".join(parts)


def _object(schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = []
    for key, value in schema.get("properties", {}).items():
        default = "required" if key in required else _default(value)
        rows.append(f"| `{key}` | {_type(value)} | {default} | {_text(value.get('description', ''))} |")
    return "\n".join(["| key | is | default | |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _type(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2]
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(dict.fromkeys(_type(each) for each in value[key] if each.get("type") != "null"))
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    kind = value.get("type", "anything")
    if kind == "array":
        return f"list of {_type(value.get('items', {}))}"
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"map to {_type(value['additionalProperties'])}"
    bounds = [
        f"{sign} {value[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in value and abs(value[key]) < 10**9
    ]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, {}, []) else f"`{default}`"


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


_HEAD = """\
# Files that kvplan reads

Made from the JSON Schemas by `python docs/generate.py`; a test fails when it is out of date. A line
`# yaml-language-server: $schema=docs/schemas/check.schema.json` at the top of a file makes an editor complete and check
it.

All files are read with bounds on size and depth; tags, aliases and repeated keys are refused, and an unknown key is
named with the nearest known one. Token counts may be `128k`, bytes `40GiB` or `40GB`, times `50ms`.
"""
