"""A progress bar on stderr."""

from __future__ import annotations

import os
from typing import Any

from kvplan.cli.common import QUIET


class Bar:
    """A bar a stage while it is open, on a terminal; nothing elsewhere."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown and not os.environ.get(QUIET)
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bar:
        if self.shown:
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is; without a bar nothing happens."""
        if self._progress is None:
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)
