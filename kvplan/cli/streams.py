"""Standard output as it may be: in a narrow encoding, into a pipe whose reader leaves, full, or closed."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import NoReturn


class _Closed(io.TextIOBase):
    """Stands in for a stdout that was closed before the start, where Python would drop the answer without a word."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def prepare_stdout() -> None:
    """Write out what stdout's encoding lacks instead of failing on it, and notice a closed one."""
    if sys.stdout is None:
        sys.stdout = _Closed()
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Lead stdout nowhere, so that the interpreter doesn't fail on it once more when it ends."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_by_pipe() -> NoReturn:
    """End as a program does whose reader went away: by SIGPIPE, which a shell reports as 141.

    Python ignores that signal, rightly, since it would also end a server whose client left; so it is taken up only now.
    """
    drop_stdout()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    sys.exit(1)


def os_sentence(error: OSError) -> str:
    """What the operating system refused, as one sentence; without a file name it was standard output."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"stdout: can't be written ({reason}), expected somewhere to write the answer"
    return f"{os.fsdecode(error.filename)}: can't be used ({reason}), expected a file or folder that can"
