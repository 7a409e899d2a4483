"""kvplan: how many tokens and requests fit, and how fast their KV cache is read.

`kvplan.estimate("llama-3.1-70b", ctx="128k", kv_cache_dtype="fp8")` is the Python form of `kvplan estimate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "InputError",
    "KvplanError",
    "ModelSpec",
    "UnsupportedArchitectureError",
    "advise",
    "compare",
    "curve",
    "estimate",
    "explain",
    "load_model",
]

if TYPE_CHECKING:
    from kvplan.answers.advise import advise
    from kvplan.answers.compare import compare
    from kvplan.answers.explain import explain
    from kvplan.errors import InputError, KvplanError, UnsupportedArchitectureError
    from kvplan.estimator import Estimate, curve, estimate
    from kvplan.spec.model import ModelSpec
    from kvplan.spec.resolve import resolve_model as load_model

_HOMES = {
    "Estimate": ("kvplan.estimator", "Estimate"),
    "InputError": ("kvplan.errors", "InputError"),
    "KvplanError": ("kvplan.errors", "KvplanError"),
    "ModelSpec": ("kvplan.spec.model", "ModelSpec"),
    "UnsupportedArchitectureError": ("kvplan.errors", "UnsupportedArchitectureError"),
    "advise": ("kvplan.answers.advise", "advise"),
    "compare": ("kvplan.answers.compare", "compare"),
    "curve": ("kvplan.estimator", "curve"),
    "estimate": ("kvplan.estimator", "estimate"),
    "explain": ("kvplan.answers.explain", "explain"),
    "load_model": ("kvplan.spec.resolve", "resolve_model"),
}


def __getattr__(name: str) -> Any:
    # Resolved on first use, so that `import kvplan` stays light.
    if name not in _HOMES:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
