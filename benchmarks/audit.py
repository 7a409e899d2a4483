"""What reading a large log costs: `kvplan audit` beside `grep -c KV` on the same file, in turn, time and peak memory.

The log is a start, then hours of requests and of the engine's periodic lines, then a restart. Exits 1 past a target.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

MAX_RATIO = 10.0
MAX_MIB = 120.0
START = """\
(APIServer pid=1) INFO 11-02 10:00:00 [api_server.py:1896] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-02 10:00:00 [utils.py:328] non-default args: {'model': 'Qwen/Qwen3-8B'}
(EngineCore_DP0 pid=9) INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B'
(EngineCore_DP0 pid=9) INFO 11-02 [gpu_worker.py:298] Available KV cache memory: 50.32 GiB
(EngineCore_DP0 pid=9) INFO 11-02 [kv_cache_utils.py:1087] GPU KV cache size: 366,400 tokens
(EngineCore_DP0 pid=9) INFO 11-02 [kv_cache_utils.py:1091] Maximum concurrency for 40,960 tokens per request: 8.95x
"""
STATS = (
    "(APIServer pid=1) INFO 11-02 10:00:10 [loggers.py:127] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg "
    "generation throughput: 333.1 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix "
    "cache hit rate: 0.0%\n"
)
REQUEST = '(APIServer pid=1) INFO:     10.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def write_log(path: Path, mib: int) -> None:
    """Write `mib` MiB: a start, serving, a restart at two thirds."""
    serving = (STATS + REQUEST * 12).encode()
    piece = serving * ((8 << 20) // len(serving))
    with path.open("wb") as stream:
        stream.write(START.encode())
        for index in range(mib // 8):
            stream.write(piece)
            if index == mib // 12:
                stream.write(START.encode())


def run(command: list[str]) -> tuple[float, float]:
    """Run a command to its end; return wall seconds and peak resident MiB of that process alone."""
    start = time.perf_counter()
    # A file, since grep stops at its first match when it writes to the null device.
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"exit code {process.returncode} from: {' '.join(command)}")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # ru_maxrss is bytes on macOS, KiB elsewhere
    return time.perf_counter() - start, usage.ru_maxrss / unit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the log")
    parser.add_argument("--runs", type=int, default=5, help="runs of each command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        write_log(log, options.mib)
        commands = (
            ["grep", "-c", "KV", str(log)],
            [sys.executable, "-m", "kvplan", "audit", str(log), "--json", "--fail-on", "error"],
        )
        for command in commands:
            run(command)  # fills the file cache
        pairs = [(run(commands[0]), run(commands[1])) for _ in range(options.runs)]
    seconds = [median(pair[side][0] for pair in pairs) for side in (0, 1)]
    memory = max(pair[1][1] for pair in pairs)
    ratio = seconds[1] / seconds[0]
    print(f"{options.mib} MiB, median of {options.runs} runs")
    print(f"{'grep -c KV':24}{seconds[0]:>8.2f} s")
    print(f"{'kvplan audit':24}{seconds[1]:>8.2f} s{memory:>10.1f} MiB at the peak")
    print(f"{'ratio':24}{ratio:>8.2f} x")
    print(f"{'target, at most':24}{MAX_RATIO:>8.2f} x{MAX_MIB:>9.1f} MiB")
    return int(ratio > MAX_RATIO or memory > MAX_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
