"""Events of a run as files: JSON lines in order of time, or a trace for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import heapq
import json
from typing import IO, Any


class EventFile:
    """Events as JSON lines in order of (time, kind, request).

    An engine reports a step as a whole, so an arrival during it comes late; events wait here until none can.
    """

    WAITING = 20_000

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._heap: list[tuple[float, str, int, str]] = []

    def add(self, event: dict[str, Any]) -> None:
        """Take one event, and write the oldest ones when many wait."""
        heapq.heappush(self._heap, (event["time_s"], event["kind"], event["request"], json.dumps(event)))
        if len(self._heap) > self.WAITING:
            self._write(self.WAITING // 2)

    def close(self) -> None:
        """Write what is left."""
        self._write(0)

    def _write(self, left: int) -> None:
        while len(self._heap) > left:
            self._stream.write(heapq.heappop(self._heap)[3] + "\n")


#: what a request is in after an event
STAGES = {
    "arrived": "waiting",
    "admitted": "running",
    "preempted": "waiting",
    "loading": "loading",
    "moved": "waiting",
}


class ChromeTrace:
    """Events as a trace in Chrome's JSON format: a process a replica, a thread a request, a bar for each stretch in
    which it waits, loads or runs. Times are microseconds of simulated time."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._open: dict[int, tuple[str, float, int]] = {}
        self._first = True
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [')

    def add(self, event: dict[str, Any]) -> None:
        """Take one event: it ends the stretch its request was in, and begins the next one."""
        request, time, replica = event["request"], event["time_s"] * 1e6, event["replica"]
        before = self._open.pop(request, None)
        if before is not None:
            stage, begin, place = before
            duration = max(0.0, time - begin)
            self._write({"name": stage, "ph": "X", "ts": begin, "dur": duration, "pid": place, "tid": request})
        stage = STAGES.get(event["kind"], "")
        if stage:
            self._open[request] = (stage, time, replica)
        if event["kind"] not in ("arrived", "admitted", "finished"):
            self._write({"name": event["kind"], "ph": "i", "s": "t", "ts": time, "pid": replica, "tid": request})

    def close(self) -> None:
        """End the file; stretches still open were cut by an interruption and are left out."""
        self._stream.write("\n]}\n")

    def _write(self, entry: dict[str, Any]) -> None:
        self._stream.write(("\n" if self._first else ",\n") + json.dumps(entry))
        self._first = False
