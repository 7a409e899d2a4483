"""How many estimates a second the API answers on loopback, and how long one takes.

`python benchmarks/web_load.py` starts the server as a process of its own and asks it at a fixed rate over persistent
connections, for a bounded time. Exits 1 when a request fails or the rate isn't kept.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import statistics
import subprocess
import sys
import threading
import time

MODELS = ("llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b-it")
QUESTIONS = [
    {"model": model, "ctx": f"{size}k", "gpu": "h100", "num_gpus": 8, "batch": batch}
    for model in MODELS
    for size in (4, 16, 64, 128)
    for batch in (1, 8)
]
WORKERS = 8
MOST_SECONDS = 60


def main() -> int:
    """Run the load and print its figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=int, default=200, help="requests a second")
    options.add_argument("--seconds", type=int, default=15)
    options.add_argument("--engine", help="ask for this engine's plan instead of the plain estimate")
    asked = options.parse_args()
    seconds = min(asked.seconds, MOST_SECONDS)
    extra = {"engine": asked.engine} if asked.engine else {}
    bodies = [json.dumps({**question, **extra}).encode() for question in QUESTIONS]
    command = [sys.executable, "-m", "kvplan", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
        try:
            return _load(port, bodies, asked.rate, seconds)
        finally:
            server.terminate()


def _load(port: int, bodies: list[bytes], rate: int, seconds: int) -> int:
    due: queue.Queue[tuple[float, bytes] | None] = queue.Queue()
    taken: list[float] = []
    failed: list[str] = []
    threads = [threading.Thread(target=_worker, args=(port, due, taken, failed), daemon=True) for _ in range(WORKERS)]
    for body in bodies:  # each question once, so that tables are read before the clock starts
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/api/estimate", body, {"content-type": "application/json"})
        connection.getresponse().read()
        connection.close()
    for thread in threads:
        thread.start()
    start = time.perf_counter()
    total = rate * seconds
    for number in range(total):
        at = start + number / rate
        time.sleep(max(0.0, at - time.perf_counter()))
        due.put((at, bodies[number % len(bodies)]))
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join(30)
    wall = time.perf_counter() - start
    taken.sort()
    print(f"asked {total} at {rate}/s: {len(taken) / wall:.1f}/s answered, {len(failed)} failed")
    if taken:
        cuts = statistics.quantiles(taken, n=100)
        print(f"from when it was due to its last byte: median {1e3 * cuts[49]:.1f} ms, 99 % {1e3 * cuts[98]:.1f} ms")
    for text in failed[:5]:
        print(text)
    return 0 if not failed and len(taken) == total and len(taken) / wall >= 0.98 * rate else 1


def _worker(port: int, due: queue.Queue[tuple[float, bytes] | None], taken: list[float], failed: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while (item := due.get()) is not None:
        at, body = item
        try:
            connection.request("POST", "/api/estimate", body, {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                failed.append(f"{response.status}: {text[:200]!r}")
                continue
        except (OSError, http.client.HTTPException) as error:
            failed.append(repr(error))
            connection.close()
            continue
        taken.append(time.perf_counter() - at)
    connection.close()


if __name__ == "__main__":
    sys.exit(main())
