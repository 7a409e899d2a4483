"""What the driver says from outside, through NVML where the machine has it: memory, other processes, clocks, slices."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

_PACKAGE = "pynvml is not installed (pip install nvidia-ml-py)"


@dataclass(frozen=True)
class Holder:
    """A process that holds device memory; `bytes` is None where the driver keeps it to itself."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True)
class Driver:
    """One device as the driver sees it. A figure it doesn't give is None; `missing` says why there is no NVML."""

    used_bytes: int | None = None
    total_bytes: int | None = None
    version: str | None = None
    power_limit_watts: float | None = None
    clock_mhz: int | None = None
    mig: bool = False
    holders: tuple[Holder, ...] = ()
    missing: str | None = None

    @property
    def foreign(self) -> tuple[Holder, ...]:
        """The holders that are not this process."""
        return tuple(holder for holder in self.holders if holder.pid != os.getpid())

    @property
    def own_bytes(self) -> int | None:
        """What this process holds, the context included."""
        return next((holder.bytes for holder in self.holders if holder.pid == os.getpid()), None)


def query(uuid: str | None, index: int, nvml: Any = None) -> Driver:
    """Ask NVML about the device of that UUID, else of that index. Never raises: a driver without NVML is an answer.

    `nvml` is the pynvml module, imported when not given.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Driver(missing=_PACKAGE)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Driver(missing=f"the driver offers no NVML ({error})")
    try:
        return _read(nvml, _handle(nvml, uuid, index))
    except nvml.NVMLError as error:
        return Driver(missing=f"NVML does not know the device ({error})")
    finally:
        nvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str | None, index: int) -> Any:
    if uuid:
        for prefix in ("GPU-", "MIG-"):
            try:
                return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(prefix) else prefix + uuid)
            except nvml.NVMLError:
                continue
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _read(nvml: Any, handle: Any) -> Driver:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    power = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    mode = ask("nvmlDeviceGetMigMode", handle)
    processes = ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
    return Driver(
        used_bytes=None if memory is None else int(memory.used),
        total_bytes=None if memory is None else int(memory.total),
        version=_text(ask("nvmlSystemGetDriverVersion")),
        power_limit_watts=None if power is None else power / 1000,
        clock_mhz=ask("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
        mig=bool(mode and mode[0]),
        holders=tuple(
            Holder(int(process.pid), _text(ask("nvmlSystemGetProcessName", process.pid)) or "unknown",
                   None if process.usedGpuMemory is None else int(process.usedGpuMemory))
            for process in processes
        ),
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
