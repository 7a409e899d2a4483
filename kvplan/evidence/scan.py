"""Lines that may say something, out of a log of any size, in constant memory.

Two speeds. Where an engine may be starting, every anchor is looked for. Once that has been silent for a while, only the
few anchors that a restart or a failure can't do without are.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, cast

from kvplan.errors import InputError

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
FULL_BYTES = 4 << 20
FULL_BYTES_A_START = 32 << 20
_BEFORE, _AFTER = 4 << 10, 64 << 10
_GZIP = b"\x1f\x8b"


def opened(stream: IO[bytes]) -> IO[bytes]:
    """`stream` from where it stands, unpacked when it is gzip."""
    if stream.seekable():
        place = stream.tell()
        packed = stream.read(2) == _GZIP
        stream.seek(place)
    else:
        if not hasattr(stream, "peek"):
            stream = cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, stream)))
        packed = cast(io.BufferedReader, stream).peek(2)[:2] == _GZIP
    return cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if packed else stream


class Scanner:
    """Iterates over (line number, line, whether it ended in a newline) of the lines that hold an anchor.

    The reader sets `engine` to watch for that engine's anchors only, and calls `wake` at a line that belongs to a
    start. A line longer than MAX_LINE_BYTES is searched piece by piece. `broken` tells that the stream failed on the
    way, as a packed log does that was cut off; one that fails at once raises InputError.
    """

    def __init__(self, stream: IO[bytes], anchors: Sequence[bytes], watched: Mapping[str, Sequence[bytes]]) -> None:
        self.engine: str | None = None
        self.lines = 0
        self.broken = False
        self._stream = stream
        self._anchors = anchors
        self._watched = watched
        self._all_watched = [anchor for engine in watched.values() for anchor in engine[:1]]
        self._full = FULL_BYTES
        self._budget = FULL_BYTES_A_START

    def wake(self, *, start: bool) -> None:
        """Look at every anchor for another stretch; a start renews how much of that there may be."""
        if start:
            self._budget = FULL_BYTES_A_START
        self._full = FULL_BYTES

    def __iter__(self) -> Iterator[tuple[int, bytes, bool]]:
        buffer = bytearray(CHUNK_BYTES + MAX_LINE_BYTES)
        kept = 0
        while size := self._fill(memoryview(buffer)[kept : kept + CHUNK_BYTES]):
            filled = kept + size
            end = buffer.rfind(b"\n", 0, filled) + 1
            if not end and filled < MAX_LINE_BYTES:
                kept = filled
                continue
            end = end or filled
            yield from self._lines(buffer, end)
            kept = filled - end
            buffer[:kept] = buffer[end:filled]
        if kept:
            yield from self._lines(buffer, kept)

    def _fill(self, room: memoryview) -> int:
        """Read into `room` what there is, 0 at the end."""
        try:
            size: int | None = self._stream.readinto(room)  # type: ignore[attr-defined]
        except (OSError, EOFError, zlib.error) as error:
            if not self.lines:
                raise InputError(f"LOG: can't be read ({error}), expected a readable log") from None
            self.broken = True
            return 0
        return size or 0

    def _lines(self, data: bytearray, end: int) -> Iterator[tuple[int, bytes, bool]]:
        counted, number = 0, self.lines + 1
        for begin, cut, ended in self._hits(data, end) if self._worth_a_look(data, end) else ():
            number += data.count(b"\n", counted, begin)
            counted = max(counted, begin)
            yield number, bytes(data[begin:cut]), ended
        self.lines = number - 1 + data.count(b"\n", counted, end) + (0 if data[end - 1] == ord("\n") else 1)

    def _hits(self, data: bytearray, end: int) -> list[tuple[int, int, bool]]:
        """Begin and end of each line that holds an anchor, in order; of a huge line what stands around the anchor."""
        found: dict[int, tuple[int, bool]] = {}
        for anchor in self._anchors:
            position = data.find(anchor, 0, end)
            while position >= 0:
                line = data.rfind(b"\n", 0, position) + 1
                stop = data.find(b"\n", position, end)
                ended = stop >= 0
                stop = stop if ended else end
                cut = min(stop, position + _AFTER)
                found.setdefault(max(line, position - _BEFORE), (cut, ended or cut < stop))
                position = data.find(anchor, cut, end)
        return [(begin, *found[begin]) for begin in sorted(found)]

    def _worth_a_look(self, data: bytearray, end: int) -> bool:
        if self._full > 0 and self._budget > 0:
            self._full -= end
            self._budget -= end
            return True
        watched = self._watched.get(self.engine or "", self._all_watched)
        return any(data.find(anchor, 0, end) >= 0 for anchor in watched)
