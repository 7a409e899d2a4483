"""An MCP server over stdio. Every tool only reads, and none opens a file or an address that it is given."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaMode

import kvplan
from kvplan.errors import KvplanError, did_you_mean, show
from kvplan.questions.answers import QUESTIONS, Question
from kvplan.questions.plans import PLAN

TOOLS = {question.name: question for question in (*QUESTIONS, PLAN)}
INSTRUCTIONS = (
    "Capacity planning for LLM serving: exact KV-cache bytes, engine plans, start-up logs. Bytes are integers; GiB is "
    "2^30, and 128k is 131,072 tokens. Quote the verdict, then the assumptions and warnings."
)


def create_server() -> Server[Any]:
    """The server with its tools."""
    return Server(
        "kvplan", version=kvplan.__version__, instructions=INSTRUCTIONS, on_list_tools=_list, on_call_tool=_call
    )


def run() -> None:
    """Serve on stdin and stdout until they end."""

    async def serve() -> None:
        server = create_server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


async def _list(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_tool(question) for question in TOOLS.values()])


def _tool(question: Question) -> types.Tool:
    return types.Tool(
        name=question.name,
        title=f"kvplan {question.name}",
        description=question.title,
        input_schema=question.asked.model_json_schema(),
        output_schema=answer_schema(question),
        annotations=types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )


def answer_schema(question: Question) -> dict[str, Any]:
    """The JSON Schema of a tool's answer: an object, by one of the answer's records."""
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    for cls in question.answers():
        adapters.append((cls.__name__, "serialization", TypeAdapter(cls)))
    _, document = TypeAdapter.json_schemas(adapters, ref_template="#/$defs/{model}")
    found = [{"$ref": f"#/$defs/{name}"} for name, _, _ in adapters]
    return {"type": "object", "anyOf": found, "$defs": document["$defs"]}


async def _call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    question = TOOLS.get(params.name)
    if question is None:
        near = did_you_mean(params.name, TOOLS)
        return _refused(f"tool: found {show(params.name)}, expected one of {', '.join(TOOLS)}{near}")
    return await anyio.to_thread.run_sync(answer, question, params.arguments or {})


def answer(question: Question, arguments: dict[str, Any]) -> types.CallToolResult:
    """One tool's result: the document, and the same as text; a refusal is one sentence."""
    try:
        found = question.answer(question.asked.model_validate(arguments))
    except KvplanError as error:
        return _refused(str(error))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the question"
        return _refused(f"{place}: found {show(first['input'])}: {first['msg']}")
    document = found.model_dump() if isinstance(found, BaseModel) else found.to_dict()
    # As a client will see it: lists for tuples.
    document = json.loads(json.dumps(document, allow_nan=False))
    text = types.TextContent(type="text", text=json.dumps(document))
    return types.CallToolResult(content=[text], structured_content=document)


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)
