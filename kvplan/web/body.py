"""Reading a request's body: bounded in size and time, JSON under the rules for files nobody vouches for."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request

from kvplan.errors import InputError
from kvplan.files import parse_json

SECONDS_TO_READ = 10.0


class Refused(Exception):
    """A body that is not read on; `status` and the sentence say why."""

    def __init__(self, status: HTTPStatus, says: str) -> None:
        super().__init__(says)
        self.status = status


async def read_question(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object that a request carries. Raises Refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"found the content type {kind!r}, expected application/json")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(SECONDS_TO_READ):
            data = await _read(request, limit)
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, f"found no end of the body in {SECONDS_TO_READ:g} s") from None
    except ClientDisconnect:
        raise Refused(HTTPStatus.BAD_REQUEST, "found no end of the body") from None
    try:
        value = parse_json(data.decode("utf-8"), "body")
    except UnicodeDecodeError:
        raise Refused(HTTPStatus.BAD_REQUEST, "body: found bytes that are no UTF-8, expected JSON") from None
    except InputError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
    if not isinstance(value, dict):
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"body: found a {type(value).__name__}, expected an object")
    return value


async def _read(request: Request, limit: int) -> bytes:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise _too_large(limit)
    return bytes(data)


def _too_large(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: found more than {limit:,} bytes, expected at most that many"
    )
