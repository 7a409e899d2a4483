"""A study's parts as tasks on a Ray cluster: an existing one, or a local one that is started for the sweep."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

from kvplan.errors import InputError, KvplanError
from kvplan.planner.sweep.store import Kind
from kvplan.planner.sweep.study import Study

#: Tasks under way for each CPU of the cluster: enough to keep it busy, few enough to stop soon.
AHEAD = 2
RETRIES = 3
CONNECT_SECONDS = 5.0


def ray_parts(
    study: Study, kind: Kind, missing: list[int], workers: int | None, address: str | None
) -> Iterator[tuple[int, bytes]]:
    """Yield (part, its bytes) as tasks end. Ray gives the tasks of a lost worker to another, RETRIES times.

    Raises InputError without ray, for an address that doesn't answer, and for a part that no worker survives.
    """
    try:
        import ray
    except ImportError:
        raise InputError("--engine: found no ray, expected it installed: pip install 'kvplan-llm[ray]'") from None
    started = _connect(ray, workers, address)
    try:
        yield from _tasks(ray, study, kind, missing)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, workers: int | None, address: str | None) -> bool:
    """Join the cluster, or start a local one; False where this process is in one already."""
    if ray.is_initialized():
        return False
    try:
        if address is None:
            ray.init(num_cpus=workers or os.cpu_count(), include_dashboard=False, log_to_driver=False)
        else:
            _knock(address)
            ray.init(address=address, log_to_driver=False)
    except Exception as error:  # Ray raises errors of many kinds for an address that doesn't answer
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise InputError(f"--address: found no Ray cluster at {address} ({first}), expected one that answers") from None
    return True


def _knock(address: str) -> None:
    """Connect once to `host:port`, since Ray itself waits for minutes. Raises OSError when nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            pass


def _tasks(ray: Any, study: Study, kind: Kind, missing: list[int]) -> Iterator[tuple[int, bytes]]:
    def answer_part(asked: Study, number: int) -> bytes | str:
        from kvplan.planner.sweep.run import Answerer

        try:
            return Answerer(asked, kind).part(number)
        except KvplanError as error:
            return str(error)

    answer = ray.remote(num_cpus=1, max_retries=RETRIES)(answer_part)
    held = ray.put(study)
    ahead = max(2, int(ray.cluster_resources().get("CPU", 1)) * AHEAD)
    waiting = iter(missing)
    running: dict[Any, int] = {}
    while True:
        for number in waiting:
            running[answer.remote(held, number)] = number
            if len(running) >= ahead:
                break
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1)
        number = running.pop(done[0])
        try:
            data = ray.get(done[0])
        except ray.exceptions.RayError as error:
            words = str(error).strip().splitlines()[0][:200]
            raise InputError(
                f"sweep: found part {number} lost {RETRIES + 1} times ({words}), expected a worker"
            ) from None
        if isinstance(data, str):
            raise InputError(data)
        yield number, data
