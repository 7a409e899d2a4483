"""JSON Schemas of answers."""

from __future__ import annotations

from typing import Any


def document_schema(answer: type, title: str) -> dict[str, Any]:
    """The JSON Schema of the document that a record of class `answer` makes."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(answer).json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
