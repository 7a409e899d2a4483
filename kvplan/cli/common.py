"""Options, completions and output that several commands share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

#: set by `kvplan --quiet`, or by the user for every command
QUIET = "KVPLAN_QUIET"
JSON_OPTION: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
MODEL_DIR_OPTION: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A directory of model specs that adds to or overrides the shipped ones (also KVPLAN_MODEL_PATH)."
    ),
]
HUB_OPTION: TypeAlias = Annotated[
    bool, typer.Option("--hub", help="Fetch MODEL's config from the Hugging Face hub (HF_ENDPOINT, HF_TOKEN).")
]
ASSUME_OPTION: TypeAlias = Annotated[
    str | None, typer.Option(help="dense: take an unknown architecture as full attention on every layer.")
]
PLOT_OPTION: TypeAlias = Annotated[Path | None, typer.Option(help="Draw it into this PNG, SVG or PDF file.")]


def print_json(document: Any) -> None:
    """Print a document as JSON with plain print, so that no line breaks get into strings."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    print(json.dumps(document, indent=2, ensure_ascii=encoding != "utf8"))
    sys.stdout.flush()


def assumes_dense(assume: str | None) -> bool:
    """Whether --assume dense was given. Raises InputError for another word."""
    if assume not in (None, "dense"):
        from kvplan.errors import InputError, show

        raise InputError(f"--assume: found {show(assume)}, expected dense")
    return assume == "dense"


def complete_model(incomplete: str) -> list[str]:
    """Shell completion: the spellings of known models that begin with what was typed."""
    from kvplan.spec.resolve import registry

    return [name for name in registry().names() if name.startswith(incomplete.lower())]


def complete_gpu(incomplete: str) -> list[str]:
    """Shell completion: the names of known accelerators that begin with what was typed."""
    from kvplan.hardware.accelerators import names

    return [name for name in names() if name.startswith(incomplete.lower())]


MODEL_ARGUMENT: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A known model (slug, alias or Hugging Face id), a config.json, a folder with one, or a .gguf file.",
        autocompletion=complete_model,
    ),
]
