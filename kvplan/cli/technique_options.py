"""The options that say which techniques a runtime, or a what-if, changes the cache by. Several commands take them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from kvplan.answers.composed import CacheOptions

CTX: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ctx",
        "-c",
        "--max-model-len",
        help="Stored tokens: 131072, 128k (= 131,072) or 1M. Default: the model's limit.",
    ),
]
BATCH: TypeAlias = Annotated[int, typer.Option(help="Sequences of that length.")]
KV_CACHE_DTYPE: TypeAlias = Annotated[
    str, typer.Option(help="KV dtype: auto (16-bit), bf16, fp8, int8, nvfp4, kivi2:group=64,residual=128, q8_0, ...")
]
VALUE_CACHE_DTYPE: TypeAlias = Annotated[
    str | None, typer.Option(help="A dtype of V's own, as llama.cpp's --cache-type-v. Default: K's.")
]
FP8: TypeAlias = Annotated[bool, typer.Option("--fp8", help="Short for --kv-cache-dtype fp8.")]
INDEX_DTYPE: TypeAlias = Annotated[
    str, typer.Option(help="Sparse indexer keys: auto (follows the KV dtype), bf16, fp8 or fp4.")
]
STATE_DTYPE: TypeAlias = Annotated[
    str, typer.Option(help="Recurrent state: auto (fp32 unless the config says), float32 or bfloat16.")
]
ENCODER_TOKENS: TypeAlias = Annotated[
    str | None, typer.Option(help="Encoder or image tokens that cross attention holds.")
]

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


def token_count(text: str | None, field: str, low: int = 1) -> int:
    """A count of tokens, 0 where the option was not given."""
    if text is None:
        return 0
    from kvplan.units import parse_tokens

    return parse_tokens(text, field, low=low)


def skip_entries(options: list[str] | None) -> list[str | int]:
    """Layer numbers and kinds from repeated, comma-separated options."""
    entries = [entry.strip() for option in options or [] for entry in option.split(",") if entry.strip()]
    return [int(entry) if entry.isdecimal() and len(entry) < 10 else entry for entry in entries]


def cache_options(
    *,
    kv_cache_dtype: str,
    fp8: bool,
    skip_layers: list[str] | None,
    encoder_tokens: str | None,
    generated: str | None,
    what_if: list[str] | None,
    techniques: list[dict[str, Any]],
    **others: Any,
) -> CacheOptions:
    """The options that decide a cache, read from those of a command line."""
    from kvplan.answers.composed import CacheOptions

    return CacheOptions(
        kv_cache_dtype=kv_dtype(kv_cache_dtype, fp8),
        skip_layers=tuple(skip_entries(skip_layers)),
        encoder_tokens=None if encoder_tokens is None else token_count(encoder_tokens, "--encoder-tokens", low=0),
        generated=token_count(generated, "--generated"),
        what_ifs=tuple(what_if or ()),
        techniques=tuple(techniques),
        **others,
    )


def kv_dtype(name: str, fp8: bool) -> str:
    """The KV dtype of --kv-cache-dtype and its short form --fp8. Raises InputError where they differ."""
    if fp8 and name.lower() not in ("auto", "fp8"):
        from kvplan.errors import InputError

        raise InputError(f"--fp8: found it together with --kv-cache-dtype {name}, expected one of them")
    return "fp8" if fp8 else name
