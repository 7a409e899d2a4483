"""The options that say which engine serves a model, on how many ranks, with which of its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

PANEL = "Engine"

ENGINE: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Plan as this engine does: vllm, vllm@0.11, sglang, tensorrt-llm, llama.cpp, ollama, lmdeploy, ...",
        rich_help_panel=PANEL,
    ),
]
TENSOR: TypeAlias = Annotated[
    int | None,
    typer.Option("--tensor-parallel-size", "-tp", "--tp", help="Tensor-parallel ranks.", rich_help_panel=PANEL),
]
PIPELINE: TypeAlias = Annotated[
    int | None,
    typer.Option("--pipeline-parallel-size", "-pp", "--pp", help="Pipeline stages.", rich_help_panel=PANEL),
]
DATA: TypeAlias = Annotated[
    int | None,
    typer.Option("--data-parallel-size", "-dp", "--dp", help="Data-parallel ranks.", rich_help_panel=PANEL),
]
DECODE_CONTEXT: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--decode-context-parallel-size", "-dcp", "--dcp", help="Decode context-parallel ranks.", rich_help_panel=PANEL
    ),
]
EXPERT: TypeAlias = Annotated[
    bool, typer.Option("--enable-expert-parallel", help="Whole experts on ranks.", rich_help_panel=PANEL)
]
UTILIZATION: TypeAlias = Annotated[
    str | None,
    typer.Option("--gpu-memory-utilization", help="The engine's memory share, in (0, 1].", rich_help_panel=PANEL),
]
AVAILABLE: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--available-memory",
        help="Cache bytes of one GPU (one a pipeline stage: 20GiB,18GiB); skips the budget.",
        rich_help_panel=PANEL,
    ),
]
SEQUENCES: TypeAlias = Annotated[
    str | None, typer.Option("--max-num-seqs", help="Sequences that run at once.", rich_help_panel=PANEL)
]
BATCHED: TypeAlias = Annotated[
    str | None, typer.Option("--max-num-batched-tokens", help="Tokens of one scheduled step.", rich_help_panel=PANEL)
]
CONFIG: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--engine-config", help="A YAML file of the engine's arguments; options given here win.", rich_help_panel=PANEL
    ),
]
COMMAND: TypeAlias = Annotated[
    str | None,
    typer.Option("--command", help="A whole launch command, read as the engine would read it.", rich_help_panel=PANEL),
]
MATRIX: TypeAlias = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--matrix",
        help="Sizes over contexts and batches: --matrix ctx=8k,32k,128k batch=1,8,64.",
        rich_help_panel=PANEL,
    ),
]
LAYOUTS: TypeAlias = Annotated[
    bool,
    typer.Option("--layouts", help="One row for each way to spread the model over --num-gpus.", rich_help_panel=PANEL),
]


def own_flags(words: list[str], known: list[str], engine: str | None, **given: Any) -> dict[str, Any]:
    """The engine's flags: kvplan's options under vLLM's names (None is not given), then words kvplan has no option for.

    Raises InputError for such words where no engine is named.
    """
    from kvplan.errors import InputError, did_you_mean, show

    if words and engine is None:
        word = words[0].partition("=")[0]
        if word.startswith("-"):
            raise InputError(f"No such option: {word}{did_you_mean(word, known)}")
        raise InputError(f"found the extra argument {show(word)}, expected options only after MODEL")
    flags = {name: value for name, value in given.items() if value is not None}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise InputError(f"found the extra argument {show(word)}, expected an option such as --name value")
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value, equals = rest.pop(0), "="
        flags[name.replace("-", "_")] = value if equals else True
    return flags
