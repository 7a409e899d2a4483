"""The options of `kvplan plan`: the workload, its limits, and what is searched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kvplan.cli.common import complete_gpu

WORK = "Workload"
LIMITS = "Limits"
SPACE = "Search"

WHAT: TypeAlias = Annotated[
    str | None, typer.Argument(help="A model, several with commas, or a plan file (.yaml); see docs/schemas.")
]
FIT: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help='One question: "largest context for 64 users on 2x h100", "most users at 128k on h200", "smallest gpu '
        'for 8 users at 32k".'
    ),
]
USERS: TypeAlias = Annotated[int | None, typer.Option(help="Users of a closed loop.", rich_help_panel=WORK)]
THINK: TypeAlias = Annotated[
    str | None, typer.Option(help="Mean time between an answer and the next question.", rich_help_panel=WORK)
]
RATE: TypeAlias = Annotated[float | None, typer.Option(help="Requests a second, Poisson.", rich_help_panel=WORK)]
CTX: TypeAlias = Annotated[
    str | None, typer.Option("--ctx", "-c", help="Prompt and answer together.", rich_help_panel=WORK)
]
PROMPT: TypeAlias = Annotated[str | None, typer.Option(help="Mean prompt tokens.", rich_help_panel=WORK)]
ANSWER: TypeAlias = Annotated[str | None, typer.Option(help="Mean answer tokens. Default: 512.", rich_help_panel=WORK)]
CV: TypeAlias = Annotated[
    float | None, typer.Option(help="Spread of the lengths: deviation over mean.", rich_help_panel=WORK)
]
SHARED_PREFIX: TypeAlias = Annotated[
    str | None, typer.Option(help="Tokens that all prompts begin with.", rich_help_panel=WORK)
]
TTFT: TypeAlias = Annotated[str | None, typer.Option(help="Time to first token, at most.", rich_help_panel=LIMITS)]
TPOT: TypeAlias = Annotated[str | None, typer.Option(help="Time per output token, at most.", rich_help_panel=LIMITS)]
E2E: TypeAlias = Annotated[str | None, typer.Option(help="Time of a whole answer, at most.", rich_help_panel=LIMITS)]
QUANTILE: TypeAlias = Annotated[
    str | None, typer.Option(help="Of the limits: p50, p90 or p99.", rich_help_panel=LIMITS)
]
MAX_COST: TypeAlias = Annotated[float | None, typer.Option(help="Cost an hour, at most.", rich_help_panel=LIMITS)]
HEADROOM: TypeAlias = Annotated[
    float | None, typer.Option(help="Plan for this much more: 0.2 is a fifth.", rich_help_panel=LIMITS)
]
REDUNDANCY: TypeAlias = Annotated[
    str | None, typer.Option(help="none, or n-1: a machine may be lost.", rich_help_panel=LIMITS)
]
FORBID: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="4-bit, 8-bit-kv, quantized-weights, eviction, prefix-caching, multi-node, ... (commas).",
        rich_help_panel=LIMITS,
    ),
]
GPUS: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Devices to consider. Default: all with a price.", autocompletion=complete_gpu, rich_help_panel=SPACE
    ),
]
PRICES: TypeAlias = Annotated[Path | None, typer.Option(help="Your price file.", rich_help_panel=SPACE)]
MAX_GPUS: TypeAlias = Annotated[int | None, typer.Option(help="Devices, at most.", rich_help_panel=SPACE)]
ENGINE: TypeAlias = Annotated[str | None, typer.Option(help="Engines to consider.", rich_help_panel=SPACE)]
TENSOR: TypeAlias = Annotated[
    str | None, typer.Option("--tensor-parallel-size", "-tp", "--tp", help="Sizes.", rich_help_panel=SPACE)
]
PIPELINE: TypeAlias = Annotated[
    str | None, typer.Option("--pipeline-parallel-size", "-pp", "--pp", help="Sizes.", rich_help_panel=SPACE)
]
DECODE_CONTEXT: TypeAlias = Annotated[
    str | None,
    typer.Option("--decode-context-parallel-size", "-dcp", "--dcp", help="Sizes.", rich_help_panel=SPACE),
]
DATA: TypeAlias = Annotated[
    str | None,
    typer.Option("--data-parallel-size", "-dp", "--dp", help="Ranks that share experts.", rich_help_panel=SPACE),
]
EXPERT: TypeAlias = Annotated[
    bool, typer.Option("--enable-expert-parallel", help="Try whole experts on ranks.", rich_help_panel=SPACE)
]
KV_CACHE_DTYPE: TypeAlias = Annotated[str | None, typer.Option(help="KV dtypes to try.", rich_help_panel=SPACE)]
BATCHED: TypeAlias = Annotated[
    str | None, typer.Option("--max-num-batched-tokens", help="Budgets to try.", rich_help_panel=SPACE)
]
SEQS: TypeAlias = Annotated[str | None, typer.Option("--max-num-seqs", help="Sizes to try.", rich_help_panel=SPACE)]
FINALISTS: TypeAlias = Annotated[int | None, typer.Option(help="Kinds of hardware to simulate.", rich_help_panel=SPACE)]
SIMULATIONS: TypeAlias = Annotated[int | None, typer.Option(help="Runs, at most.", rich_help_panel=SPACE)]
SEED: TypeAlias = Annotated[int | None, typer.Option(help="Of the simulations.", rich_help_panel=SPACE)]
RECORD: TypeAlias = Annotated[Path | None, typer.Option(help="Write a decision record in Markdown.")]
SCENARIOS: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the finalists' scenarios into this folder, for `kvplan simulate`.")
]
