"""The options that say which techniques a runtime, or a what-if, changes the cache by. Several commands take them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

EVICT: TypeAlias = Annotated[
    str | None, typer.Option(help="Keep a budget of tokens: snapkv:2048, h2o:0.1+0.1, streamingllm:4+2044, ...")
]
SPARSE_READ: TypeAlias = Annotated[
    str | None, typer.Option(help="Read a budget of tokens a step: quest:page=16,budget=2048.")
]
BLOCK_SIZE: TypeAlias = Annotated[
    str | None, typer.Option(help="Round each sequence up to blocks of this many tokens.")
]
SHARE_PREFIX: TypeAlias = Annotated[str | None, typer.Option(help="Tokens of a prefix that the whole batch shares.")]
OFFLOAD: TypeAlias = Annotated[
    str | None, typer.Option(help="Move bytes to another tier: cpu:64GiB, nvme:1TB,bw=7GB/s, ...")
]
WHAT_IF: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="As if trained with it: cla=2, kv-heads=64, window=1024:5/6, mla=512+64, ... (repeat for more)."),
]
GENERATED: TypeAlias = Annotated[
    str | None, typer.Option(help="How many of the stored tokens were generated, which some evictions keep on top.")
]
TECHNIQUES: TypeAlias = Annotated[
    Path | None, typer.Option(help="A YAML file with a `techniques:` list of these options.")
]
SKIP_LAYERS: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-cache-dtype-skip-layers", help="Layers that stay in 16 bits: numbers or a kind such as sliding_window."
    ),
]


def technique_list(file: Path | None, **options: str | None) -> list[dict[str, Any]]:
    """The techniques of a file and of the options given, as one list of single options."""
    found: list[dict[str, Any]] = []
    if file is not None:
        from kvplan.errors import InputError, show
        from kvplan.files import read_yaml

        document = read_yaml(file)
        items = document.get("techniques") if isinstance(document, dict) and len(document) == 1 else None
        if not isinstance(items, list):
            raise InputError(f"{file}: found {show(document)}, expected one key, techniques, with a list of options")
        found += items
    return found + [{name.replace("_", "-"): value} for name, value in options.items() if value is not None]


def token_count(text: str | None, field: str) -> int:
    """A count of tokens, 0 where the option was not given."""
    if text is None:
        return 0
    from kvplan.units import parse_tokens

    return parse_tokens(text, field)


def skip_entries(options: list[str] | None) -> list[str | int]:
    """Layer numbers and kinds from repeated, comma-separated options."""
    entries = [entry.strip() for option in options or [] for entry in option.split(",") if entry.strip()]
    return [int(entry) if entry.isdecimal() and len(entry) < 10 else entry for entry in entries]
