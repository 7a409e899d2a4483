"""`kvplan serve`: the local web page and its REST API."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.errors import InputError


def serve(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8321,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Another than loopback lets others on the network ask.")
    ] = "127.0.0.1",
) -> None:
    """A web page with the same answers, and a REST API at /api (extra `web`).

    Works without a network and listens on this machine alone unless told otherwise. No request makes it open a file or
    an address.
    """
    try:
        from kvplan.web.server import is_loopback, listen, run
    except ImportError:
        raise InputError("serve: found no web server, expected one: pip install 'kvplan-llm[web]'") from None
    opened = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    print(f"kvplan: http://{shown}:{opened.getsockname()[1]}/  (API: /api/openapi.json; Ctrl-C ends)", flush=True)
    if not is_loopback(host):
        print("kvplan: this address can be reached from other machines", flush=True)
    run(opened, host)
