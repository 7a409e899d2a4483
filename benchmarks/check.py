"""How long `kvplan check` takes: 1,000 expectations, then the same again without a change.

`python benchmarks/check.py` prints both and exits 1 when the first takes over 5 s or the second isn't 5 times faster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT = 1000
LIMIT_S = 5.0
LEAST_RATIO = 5.0
MODELS = (
    ("meta-llama/Llama-3.1-8B-Instruct", "l4", 1), ("Qwen/Qwen3-32B", "h100", 2), ("openai/gpt-oss-120b", "h100", 1),
    ("deepseek-ai/DeepSeek-V3", "h200", 8), ("Qwen/Qwen3-30B-A3B", "a100-80gb", 1),
    ("google/gemma-3-27b-it", "h100", 1),
)  # fmt: skip


def expectations(count: int) -> str:
    """A file of `count` expectations, all different; about one in six fails."""
    rows = ["expectations:"]
    for number in range(count):
        model, gpu, ranks = MODELS[number % len(MODELS)]
        length = 4096 + 16 * number
        rows += [
            f"  - name: case {number}",
            f"    command: vllm serve {model} -tp {ranks} --max-model-len {length}",
            f"    hardware: {ranks} x {gpu}",
            "    engine: vllm@0.11.0",
            "    expect:",
            "      - fits",
            f"      - max_concurrency >= {1 if number % 6 else 40} at 4k",
            "      - kv_bytes_per_token <= 400KiB",
        ]
    return "\n".join(rows) + "\n"


def timed(folder: Path, *more: str) -> tuple[float, int]:
    """Seconds and exit code of one `kvplan check` in a process of its own."""
    environment = {**os.environ, "KVPLAN_CACHE_DIR": str(folder / "cache")}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", "capacity.yaml", "--format", "json", *more],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return time.perf_counter() - start, done.returncode


def main() -> int:
    """Measure and judge."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "capacity.yaml").write_text(expectations(COUNT))
        first, code = timed(folder)
        again = min(timed(folder)[0] for _ in range(3))
    ratio = first / again
    print(f"{COUNT} expectations: {first:.2f} s (exit {code}); unchanged: {again:.2f} s, {ratio:.1f}x faster")
    return 0 if first <= LIMIT_S and ratio >= LEAST_RATIO and code in (0, 1) else 1


if __name__ == "__main__":
    sys.exit(main())
