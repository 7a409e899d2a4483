"""The application: the page's files, the API, and what every response says to a browser."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvplan.errors import KvplanError
from kvplan.questions.answers import QUESTIONS, Question
from kvplan.web.body import Refused, read_question
from kvplan.web.lists import Devices, Engines, Models, devices, engines, models
from kvplan.web.openapi import openapi
from kvplan.web.problems import from_error, from_validation, problem

STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing but the page's own files, no inline script or style, no frame, no form that leaves the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
LISTS: dict[str, tuple[str, type[BaseModel], str | None]] = {
    "/api/models": ("The models kvplan knows.", Models, "Words that a name holds, or traits such as mla."),
    "/api/gpus": ("The accelerators kvplan knows.", Devices, None),
    "/api/engines": ("The engines kvplan plans as, and cache dtypes.", Engines, None),
}
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1", "[::1]")) -> Starlette:
    """The page and the API. Only requests for one of `hosts` are answered, so that no other site's page can ask
    through a browser; `("*",)` answers all."""
    return Starlette(
        routes=[*_api(), *_page()],
        middleware=[Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _http_problem, Exception: _failed},
    )


def _api() -> list[Route]:
    document = json.dumps(openapi(LISTS))

    async def described(request: Request) -> Response:
        return Response(document, media_type="application/json")

    async def list_models(request: Request) -> Response:
        return _listed(models(request.query_params.get("q", "")[:200]))

    async def list_gpus(request: Request) -> Response:
        return _listed(devices())

    async def list_engines(request: Request) -> Response:
        return _listed(engines())

    return [
        *(Route(f"/api/{question.name}", _endpoint(question), methods=["POST"]) for question in QUESTIONS),
        Route("/api/models", list_models),
        Route("/api/gpus", list_gpus),
        Route("/api/engines", list_engines),
        Route("/api/openapi.json", described),
    ]


def _listed(found: BaseModel) -> Response:
    return Response(found.model_dump_json(), media_type="application/json")


def _endpoint(question: Question) -> Endpoint:
    adapter = TypeAdapter(question.asked)

    async def answer(request: Request) -> Response:
        try:
            asked = adapter.validate_python(await read_question(request, question.body_limit))
            if question.is_quick(asked):
                return _answer(question, asked)
            # A long answer must not keep other questions waiting.
            return await run_in_threadpool(_answer, question, asked)
        except Refused as error:
            return problem(error.status, str(error))
        except ValidationError as error:
            return from_validation(error, question.asked)
        except KvplanError as error:
            return from_error(error)

    return answer


def _answer(question: Question, asked: BaseModel) -> Response:
    found = question.answer(asked)
    document: Any = found.model_dump() if isinstance(found, BaseModel) else found.to_dict()
    return Response(json.dumps(document, allow_nan=False), media_type="application/json")


def _page() -> list[Route]:
    """One route a shipped file; what they hold is read once, so no path comes from a request."""
    files = {path.name: path for path in sorted(STATIC.iterdir()) if path.suffix in TYPES}
    routes = [Route(f"/{name}", _file(path)) for name, path in files.items()]
    return [Route("/", _file(files["index.html"])), *routes]


def _file(path: Path) -> Endpoint:
    data, kind = path.read_bytes(), TYPES[path.suffix]
    headers = {"etag": f'"{hashlib.sha256(data).hexdigest()[:16]}"', "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return serve


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = problem(HTTPStatus(error.status_code), f"{request.method} {request.url.path[:200]}: {error.detail}")
    found.headers.update(error.headers or {})
    return found


async def _failed(request: Request, error: Exception) -> Response:
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this question met a defect in kvplan; please report it", 70)


class _Headers:
    """Puts HEADERS on every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, receive, with_headers)
