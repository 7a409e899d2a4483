"""The MCP server, asked by the SDK's own client over stdio."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.evidence_audit.log_text import vllm_cases, vllm_log

mcp = pytest.importorskip("mcp", reason="needs the extra `mcp`")
ROOT = Path(__file__).parents[2]
QUESTIONS: dict[str, dict[str, Any]] = {
    "estimate": {"model": "llama-3.1-70b", "ctx": "128k", "kv_cache_dtype": "fp8"},
    "explain": {"model": "deepseek-v3", "ctx": "32k"},
    "compare": {"models": ["llama-3.1-70b", "deepseek-v3"]},
    "matrix": {"model": "llama-3.1-70b", "gpu": "h100", "num_gpus": 8},
    "command": {"model": "llama-3.1-70b", "ctx": "128k"},
    "check": {
        "expectations": [{"name": "cache", "model": "llama-3.1-8b", "ctx": "128k", "expect": ["kv_gib == 16"]}]
    },
    "audit": {"log": vllm_log(next(case for case in vllm_cases() if case["id"] == "v0-llama31-8b-3090-20k"))},
    "plan": {
        "models": ["llama-3.1-8b"], "gpus": ["l4"], "finalists": 1, "simulations": 2,
        "workload": {"arrivals": {"rate": 0.5}, "prompt": {"value": 1024}, "output": {"value": 128}},
    },
}  # fmt: skip


def talk(about: Callable[[Any], Awaitable[Any]]) -> Any:
    """Start `kvplan mcp` and let `about` talk to it."""

    async def run() -> Any:
        started = mcp.StdioServerParameters(command=sys.executable, args=["-m", "kvplan", "mcp"], cwd=ROOT)
        async with mcp.Client(started, read_timeout_seconds=60) as client:
            return await about(client)

    return asyncio.run(run())


def test_every_tool_only_reads_and_answers_by_its_schema(kvplan_cli: Any) -> None:
    async def about(client: Any) -> Any:
        listed = (await client.list_tools()).tools
        return listed, {name: await client.call_tool(name, question) for name, question in QUESTIONS.items()}

    listed, answers = talk(about)
    assert {tool.name for tool in listed} == set(QUESTIONS)
    for tool in listed:
        assert tool.annotations.read_only_hint
        assert not tool.annotations.open_world_hint
        jsonschema.validate(QUESTIONS[tool.name], tool.input_schema)
        result = answers[tool.name]
        assert not result.is_error, result.content
        jsonschema.validate(result.structured_content, tool.output_schema)
        assert json.loads(result.content[0].text) == result.structured_content
    # README: 80 layers x 131,072 entries x 2 x 8 KV heads x 128 x 1 B.
    assert answers["estimate"].structured_content["cache"]["needed_bytes"] == 80 * 131072 * 2 * 8 * 128
    ran = kvplan_cli("estimate", "llama-3.1-70b", "--ctx", "128k", "--fp8", "--json")
    assert json.loads(ran.out) == answers["estimate"].structured_content


def test_a_refusal_is_one_sentence_and_the_server_goes_on(tmp_path: Path) -> None:
    secret = tmp_path / "config.json"
    secret.write_text('{"model_type": "llama"}')
    wrong = {
        "nearest: llama-3.1-70b": ("estimate", {"model": "lama-3.1-70b"}),
        "no known model": ("estimate", {"model": str(secret), "ctx": "8k"}),
        "batch": ("estimate", {"model": "llama-3.1-70b", "batch": 0}),
        "found no start": ("audit", {"log": "nothing"}),
        "nearest: estimate": ("estimat", {}),
        "workload.trace": (
            "plan",
            {"models": ["llama-3.1-8b"], "workload": {"trace": {"path": str(secret), "format": "mooncake"}}},
        ),
    }

    async def about(client: Any) -> Any:
        found = {}
        for sentence, (name, question) in wrong.items():
            try:
                result = await client.call_tool(name, question)
                found[sentence] = (result.is_error, result.content[0].text)
            except mcp.MCPError as error:
                found[sentence] = (True, str(error))
        return found, await client.call_tool("command", QUESTIONS["command"])

    found, after = talk(about)
    for sentence, (is_error, text) in found.items():
        assert is_error
        assert sentence in text
        assert "Traceback" not in text
    assert after.structured_content["cli"] == "kvplan estimate llama-3.1-70b --ctx 128k"
