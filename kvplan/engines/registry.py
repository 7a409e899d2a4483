"""The engines by name: `vllm`, `vllm@0.11`, `llama.cpp@b5614`. A module is loaded when its engine is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from kvplan.engines.base import Engine
from kvplan.errors import InputError, did_you_mean, show

_ENGINES = {
    "vllm": ("kvplan.engines.vllm", "VLLM"),
    "sglang": ("kvplan.engines.sglang.engine", "ENGINE"),
    "tensorrt-llm": ("kvplan.engines.tensorrt_llm.engine", "ENGINE"),
    "llama.cpp": ("kvplan.engines.llama_cpp.engine", "ENGINE"),
    "ik_llama.cpp": ("kvplan.engines.llama_cpp.engine", "IK_ENGINE"),
    "ollama": ("kvplan.engines.ollama", "ENGINE"),
    "transformers": ("kvplan.engines.transformers.engine", "ENGINE"),
    "lmdeploy": ("kvplan.engines.lmdeploy.engine", "ENGINE"),
}
_ALIASES = {
    "trt-llm": "tensorrt-llm", "trtllm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm", "tensorrtllm": "tensorrt-llm",
    "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp", "llama_cpp": "llama.cpp", "llama-server": "llama.cpp",
    "ik-llama": "ik_llama.cpp", "ik_llama": "ik_llama.cpp", "hf": "transformers", "turbomind": "lmdeploy",
}  # fmt: skip


def engine_names() -> tuple[str, ...]:
    """The engines kvplan models."""
    return tuple(_ENGINES)


def canonical_engine(name: str) -> str:
    """The engine's own name for any spelling. Raises InputError with the nearest name."""
    word = name.strip().lower()
    word = _ALIASES.get(word, word)
    if word not in _ENGINES:
        near = did_you_mean(word, (*_ENGINES, *_ALIASES))
        raise InputError(f"--engine: found {show(name)}, expected one of {', '.join(_ENGINES)}{near}")
    return word


def find_engine(text: str) -> tuple[Engine, str | None]:
    """The engine of `name` or `name@version`, and the version, None where none was given.

    Raises InputError for an unknown engine; the version is judged by the engine.
    """
    name, at, version = text.partition("@")
    if at and not version.strip():
        raise InputError(f"--engine: found {show(text)}, expected a version after @ or none, such as vllm@0.11")
    module, attribute = _ENGINES[canonical_engine(name)]
    return cast(Engine, getattr(import_module(module), attribute)), version.strip() or None
