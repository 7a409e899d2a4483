"""Runs a study's missing parts: on local processes, or on Ray; a lost worker's parts are given to another."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from kvplan.errors import InputError, KvplanError
from kvplan.planner.sweep.cells import Cells, columns_of
from kvplan.planner.sweep.store import Kind, Store, encode
from kvplan.planner.sweep.study import Study

#: How often a part may take its worker down before the sweep gives up on it.
TRIES = 3
Progress = Callable[[int, int], None]
#: Yields (part, its bytes) in any order.
Parts = Iterator[tuple[int, bytes]]


class Answerer:
    """Answers parts as the bytes that are kept. Lives in a worker."""

    def __init__(self, study: Study, kind: Kind) -> None:
        self.cells, self.names, self.kind = Cells(study), columns_of(study), kind

    def part(self, number: int) -> bytes:
        """The bytes of one part: the same wherever it runs."""
        return encode(self.cells.part(number), self.names, self.kind)


def sweep(
    study: Study, store: Store, *, engine: str = "local", workers: int | None = None, address: str | None = None,
    progress: Progress | None = None,
) -> int:  # fmt: skip
    """Answer what is missing and join the results; returns how many parts were there before.

    Raises InputError for a part that takes down every worker it is given to, and for a Ray address that doesn't answer.
    """
    missing = store.missing()
    before = study.parts - len(missing)
    if missing:
        for done, (number, data) in enumerate(_parts(study, store.kind, missing, engine, workers, address), before + 1):
            store.put(number, data)
            if progress is not None:
                progress(done, study.parts)
    return before


def _parts(
    study: Study, kind: Kind, missing: list[int], engine: str, workers: int | None, address: str | None
) -> Parts:
    count = min(workers or os.cpu_count() or 1, len(missing))
    if engine == "ray":
        from kvplan.planner.sweep.on_ray import ray_parts

        found: Parts = ray_parts(study, kind, missing, workers, address)
        return found
    return _here(study, kind, missing) if count == 1 else _spread(study, kind, missing, count)


def _here(study: Study, kind: Kind, missing: list[int]) -> Parts:
    answerer = Answerer(study, kind)
    for number in missing:
        yield number, answerer.part(number)


class _Worker:
    """A process and the parent's end of its pipe. Only the parent holds that end, so that the worker ends with it."""

    def __init__(self, context: Any, study: Study, kind: Kind) -> None:
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, study, kind), daemon=True)
        self.process.start()
        other.close()
        self.part: int | None = None

    def give(self, number: int) -> None:
        self.part = number
        self.pipe.send(number)

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(pipe: Connection, study: Study, kind: Kind) -> None:
    # The pipe says so too, but only after the part at hand, which may be minutes of simulation.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answerer: Answerer | None = None
    try:
        while True:
            number = pipe.recv()
            try:
                answerer = answerer or Answerer(study, kind)
                pipe.send((number, answerer.part(number)))
            except KvplanError as error:
                pipe.send((number, str(error)))
    except (EOFError, OSError, KeyboardInterrupt):  # the parent has gone, or stops
        return


def _spread(study: Study, kind: Kind, missing: list[int], count: int) -> Parts:
    # Spawned, so that no worker inherits the folder's lock and outlives the sweep with it.
    context = multiprocessing.get_context("spawn")
    left = deque(missing)
    tries = dict.fromkeys(missing, 0)
    workers = [_Worker(context, study, kind) for _ in range(count)]
    try:
        for worker in workers:
            worker.give(left.popleft())
        while any(worker.part is not None for worker in workers):
            busy = {worker.pipe: worker for worker in workers if worker.part is not None}
            for pipe in wait(list(busy)):
                worker = busy[pipe]
                part = worker.part
                assert part is not None
                try:
                    number, data = worker.pipe.recv()
                except (EOFError, OSError):  # it was killed
                    tries[part] += 1
                    if tries[part] >= TRIES:
                        raise InputError(
                            f"sweep: found part {part} to have ended {TRIES} workers, expected more memory for it or "
                            "fewer --workers"
                        ) from None
                    worker.stop()
                    workers[workers.index(worker)] = worker = _Worker(context, study, kind)
                    worker.give(part)
                    continue
                if isinstance(data, str):
                    raise InputError(data)
                worker.part = None
                if left:
                    worker.give(left.popleft())
                yield number, data
    finally:
        for worker in workers:
            worker.stop()
