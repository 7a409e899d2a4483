"""What the Python API costs once it is warm: one estimate, and a curve over a million context lengths.

Exits 1 when a target is missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

import kvplan

MODELS = ("llama-3.1-70b", "gemma-3-27b", "deepseek-v3", "qwen3-next-80b-a3b")
CALLS = 300
CONTEXTS = 1_000_000
MAX_ESTIMATE_US = 300.0
MAX_CURVE_S = 1.0


def timed(call: Callable[[], object], calls: int) -> float:
    """Median seconds of one call, the first one (which fills the caches) left out."""
    call()
    samples = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return median(samples)


def main() -> int:
    contexts = np.arange(1, CONTEXTS + 1, dtype=np.int64)
    missed = False
    print(f"{'model':24}{'one estimate':>14}{'1,000,000 contexts':>20}")
    for model in MODELS:
        one = timed(lambda model=model: kvplan.estimate(model, ctx=131_072, kv_cache_dtype="fp8"), CALLS)
        many = timed(lambda model=model: kvplan.curve(model, contexts, kv_cache_dtype="fp8"), 5)
        missed |= one * 1e6 > MAX_ESTIMATE_US or many > MAX_CURVE_S
        print(f"{model:24}{one * 1e6:>11.0f} us{many:>18.3f} s")
    print(f"{'target, at most':24}{MAX_ESTIMATE_US:>11.0f} us{MAX_CURVE_S:>18.3f} s")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
