"""The page and API on a free loopback port, and what its tests ask it with."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Reply:
    """Status, headers in lower case, and the body of one response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Site:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def ask(self, name: str, question: Any) -> Reply:
        return self.send("POST", f"/api/{name}", json.dumps(question).encode(), content_type="application/json")


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `web`")
    from kvplan.web.app import create_app
    from kvplan.web.server import listen

    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.02)
    yield Site(opened.getsockname()[1])
    server.should_exit = True
    thread.join(10)
