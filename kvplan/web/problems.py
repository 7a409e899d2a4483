"""Errors of the API: one sentence as problem+json (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from kvplan.errors import KvplanError, did_you_mean, show

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """What went wrong. `exit_code` is the one the command line would end with."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    exit_code: int = 2


def problem(status: HTTPStatus, detail: str, exit_code: int = 2) -> Response:
    """A response that says `detail`."""
    body = Problem(title=status.phrase, status=status, detail=" ".join(detail.split()), exit_code=exit_code)
    return Response(json.dumps(body.model_dump()), status, media_type=MEDIA_TYPE)


def from_error(error: KvplanError) -> Response:
    """The response for an error that kvplan raises on purpose."""
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), error.exit_code)


def from_validation(error: ValidationError, asked: type[BaseModel]) -> Response:
    """The response for a body that is JSON and no such question: the first field at fault."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not _is_branch(part)) or "body"
    hint = ""
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        hint = did_you_mean(place, asked.model_fields)
    reason = first["msg"][0].lower() + first["msg"][1:]
    detail = f"{place[:200]}: found {show(first['input'])}: {reason}{hint}"
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _is_branch(part: object) -> bool:
    """Of a union pydantic also names the branch it tried, which is no part of the question."""
    return isinstance(part, str) and part.removeprefix("constrained-") in ("int", "str", "float", "bool")
