"""`kvplan mcp`: the same questions as tools for assistants."""

from __future__ import annotations

from kvplan.errors import InputError


def mcp() -> None:
    """Offer estimate, explain, compare, matrix, audit, check and plan as tools over stdio (extra `mcp`).

    The tools only read: none opens a file or an address, and their schemas are those of the REST API.
    """
    try:
        from kvplan.mcp.server import run
    except ImportError:
        raise InputError("mcp: found no MCP SDK, expected one: pip install 'kvplan-llm[mcp]'") from None
    run()
