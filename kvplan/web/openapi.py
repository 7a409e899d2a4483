"""The OpenAPI document, made from the pydantic models of the questions and the records of the answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

import kvplan
from kvplan.questions.answers import QUESTIONS, Question
from kvplan.web.problems import MEDIA_TYPE, Problem

_REF = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "The body is no JSON.",
    "408": "The body didn't arrive in time.",
    "413": "The body is too large.",
    "415": "The body isn't declared as JSON.",
    "422": "Not answered; `detail` is one sentence that names the field.",
    "503": "Too many questions at once.",
}


def openapi(lists: dict[str, tuple[str, type[BaseModel], str | None]]) -> dict[str, Any]:
    """The document. `lists` are the GET paths: description, answer, and the description of `q` where there is one."""
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Problem, "serialization")]
    for question in QUESTIONS:
        models.append((question.asked, "validation"))
        adapters += [(cls.__name__, "serialization", TypeAdapter(cls)) for cls in question.answers()]
    models += [(answer, "serialization") for _, answer, _ in lists.values()]
    _, shared = models_json_schema(list(dict.fromkeys(models)), ref_template=_REF)
    _, answered = TypeAdapter.json_schemas(list({each[0]: each for each in adapters}.values()), ref_template=_REF)
    schemas = {**shared["$defs"], **answered["$defs"]}
    paths = {f"/api/{question.name}": _post(question) for question in QUESTIONS}
    for path, (says, answer, searched) in lists.items():
        paths[path] = _get(says, answer, searched)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvplan", "version": kvplan.__version__, "description": "How much cache fits, to the byte."},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _post(question: Question) -> dict[str, Any]:
    answers = [{"$ref": _REF.format(model=cls.__name__)} for cls in question.answers()]
    body = {"application/json": {"schema": {"$ref": _REF.format(model=question.asked.__name__)}}}
    return {
        "post": {
            "summary": question.title,
            "operationId": question.name,
            "requestBody": {"required": True, "content": body},
            "responses": _responses(answers[0] if len(answers) == 1 else {"anyOf": answers}, _REFUSALS),
        }
    }


def _get(says: str, answer: type[BaseModel], searched: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": says, "operationId": answer.__name__.lower()}
    if searched is not None:
        schema = {"type": "string", "maxLength": 200}
        found["parameters"] = [{"name": "q", "in": "query", "description": searched, "schema": schema}]
    found["responses"] = _responses({"$ref": _REF.format(model=answer.__name__)}, {})
    return {"get": found}


def _responses(answer: dict[str, Any], refusals: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"200": {"description": "The answer.", "content": {"application/json": {"schema": answer}}}}
    refused = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=Problem.__name__)}}}
    return found | {status: {"description": says, "content": refused} for status, says in refusals.items()}
