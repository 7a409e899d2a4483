"""What one short command costs: time and memory of a whole process, against importing its libraries alone.

Both commands run in turn, so that a busy machine slows both alike. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from statistics import median

IMPORTS = [sys.executable, "-c", "import typer, rich.console, rich.table, pydantic, yaml"]
ESTIMATE = [sys.executable, "-m", "kvplan", "estimate", "llama-3.1-70b", "--ctx", "128k", "--fp8"]
MAX_RATIO = 1.5
MAX_EXTRA_MIB = 60.0


def run(command: list[str]) -> tuple[float, float]:
    """Run a command to its end; return wall seconds and peak resident MiB of that process alone."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"exit code {process.returncode} from: {' '.join(command)}")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # ru_maxrss is bytes on macOS, KiB elsewhere
    return seconds, usage.ru_maxrss / unit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21, help="runs of each command, at least 15")
    runs = max(15, parser.parse_args().runs)
    for command in (IMPORTS, ESTIMATE):
        run(command)  # fills the file cache and writes the bytecode
    pairs = [(run(IMPORTS), run(ESTIMATE)) for _ in range(runs)]
    seconds = [median(pair[side][0] for pair in pairs) for side in (0, 1)]
    memory = [median(pair[side][1] for pair in pairs) for side in (0, 1)]
    ratio, extra = seconds[1] / seconds[0], memory[1] - memory[0]

    print(f"{'median of ' + str(runs) + ' runs':32}{'time':>10}{'peak memory':>14}")
    print(f"{'importing the libraries':32}{seconds[0] * 1e3:>7.0f} ms{memory[0]:>10.1f} MiB")
    print(f"{'kvplan estimate':32}{seconds[1] * 1e3:>7.0f} ms{memory[1]:>10.1f} MiB")
    print(f"{'kvplan beside the imports':32}{ratio:>8.2f} x{extra:>+10.1f} MiB")
    print(f"{'target, at most':32}{MAX_RATIO:>8.2f} x{MAX_EXTRA_MIB:>+10.1f} MiB")
    return int(ratio > MAX_RATIO or extra >= MAX_EXTRA_MIB)


if __name__ == "__main__":
    raise SystemExit(main())
