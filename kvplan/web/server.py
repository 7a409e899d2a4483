"""Serving the application with uvicorn."""

from __future__ import annotations

import ipaddress
import socket

from kvplan.errors import InputError, show
from kvplan.web.app import create_app

CONCURRENT = 256


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError for an address that can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets without delay on sockets whose protocol is named, and on no others.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(1024)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        found = show(f"{host}:{port}")
        raise InputError(f"--host, --port: found {found} ({reason}), expected a free address") from None
    return opened


def run(opened: socket.socket, host: str) -> None:
    """Serve on `opened` until interrupted. Only requests that name this machine are answered on loopback."""
    import uvicorn

    app = create_app() if is_loopback(host) else create_app(("*",))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, limit_concurrency=CONCURRENT, server_header=False,
        timeout_keep_alive=30, h11_max_incomplete_event_size=64 << 10, lifespan="off",
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[opened])
