"""Options files: vLLM's and SGLang's are more arguments before the command line's, TensorRT-LLM's overrides it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from kvplan.engines.commands.flags import Table
from kvplan.engines.commands.words import Word
from kvplan.errors import InputError, show
from kvplan.files import parse_yaml

ReadFile = Callable[[str], "str | None"]


def load_options(text: str, name: str) -> dict[str, Any]:
    """The mapping in an options file. Raises InputError when it holds something else."""
    loaded = parse_yaml(text, name)
    if not isinstance(loaded, dict):
        raise InputError(f"{name}: found {show(loaded)} at the top, expected a mapping of options")
    return {str(key): value for key, value in loaded.items()}


def as_arguments(options: Mapping[str, Any], table: Table, version: tuple[int, ...] | None) -> list[Word]:
    """The options as the words that vLLM and SGLang make of them.

    True is the bare flag, false is --no-FLAG where there is one and nothing elsewhere, mappings become JSON
    (vllm-project/vllm vllm/utils/argparse_utils.py, load_config_file).
    """
    words: list[str] = []
    for key, value in options.items():
        name = f"--{key.replace('_', '-')}" if table.engine == "vllm" else f"--{key}"
        match value:
            case True:
                words.append(name)
            case False:
                negative = f"--no-{name[2:]}"
                if table.find(negative, version):
                    words.append(negative)
            case list():
                words += [name, *map(_text, value)] if value else []
            case dict():
                words += [name, json.dumps(value, default=str)]
            case None:
                pass
            case _:
                words += [name, _text(value)]
    return [Word(text) for text in words]


def _text(value: Any) -> str:
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)


def override(
    flags: dict[str, Any], options: Mapping[str, Any], table: Table
) -> tuple[dict[str, Any], list[str], list[str]]:
    """TensorRT-LLM's merge: every option of the file wins over the command line's flag of that name.

    The fraction of `kv_cache_config` is the flag free_gpu_memory_fraction. Returns the merged flags, the options
    without effect on capacity, and a note for each flag of the command line that is overridden.
    """
    merged, ignored, notes = dict(flags), [], []
    file = dict(options)
    cache = file.get("kv_cache_config")
    if isinstance(cache, Mapping) and "free_gpu_memory_fraction" in cache:
        cache = dict(cache)
        file["free_gpu_memory_fraction"] = cache.pop("free_gpu_memory_fraction")
        file["kv_cache_config"] = cache
    for name, value in file.items():
        if name == "model":
            continue
        if not table.options.get(name, name == "free_gpu_memory_fraction"):
            ignored.append(name)
            continue
        if name in flags and flags[name] != value:
            notes.append(
                f"the options file wins over the command line: {name} is {show(value)}, not {show(flags[name])}"
            )
        if value != {}:
            merged[name] = value
    return merged, ignored, notes
