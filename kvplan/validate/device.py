"""The device that is measured: opening it, allocating on it, timing on it, leaving it as it was found."""

from __future__ import annotations

import gc
import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kvplan.errors import InputError, show
from kvplan.memory.allocator import AllocatorFigures
from kvplan.units import both
from kvplan.validate.checks import DeviceFacts
from kvplan.validate.nvml import Driver, query

CPU_POOL_SHARE = 0.5
_ALLOCATOR_OPTIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def load_torch() -> Any:
    """The torch module. Raises InputError with the way to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise InputError("validate: found no torch, expected it installed: pip install 'kvplan-llm[gpu]'") from None


class OutOfMemory(InputError):
    """The device refused an allocation that was asked of it."""


class Device:
    """One torch device. Everything validate puts on it goes through `empty`, so that it can be counted and freed."""

    kind = "cpu"

    def __init__(self, torch: Any, name: str, total_bytes: int) -> None:
        self.torch = torch
        self.handle = torch.device("cpu")
        self.name = name
        self.total_bytes = total_bytes
        self.driver = Driver(missing="the CPU has no NVML")

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be allocated."""
        try:
            available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):  # a system without the figure
            return self.total_bytes
        return min(self.total_bytes, available)

    @property
    def pool_limit(self) -> int:
        """The largest pool worth asking for: what is free on a GPU, half of it in a CPU's memory."""
        return int(self.free_bytes * CPU_POOL_SHARE)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """An uninitialised tensor of the torch dtype named. Raises OutOfMemory."""
        try:
            return self.new(tuple(shape), getattr(self.torch, dtype))
        except (MemoryError, RuntimeError) as error:
            if not self._is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"--pool: found no room for a tensor of {tuple(shape)} {dtype} on {self.name} beside what is already "
                f"there, expected a smaller pool ({both(self.free_bytes)} are free)"
            ) from None

    def new(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """The allocation itself, in torch's own terms."""
        return self.torch.empty(shape, dtype=dtype, device=self.handle)

    def _is_out_of_memory(self, error: Exception) -> bool:
        kind = getattr(self.torch, "OutOfMemoryError", MemoryError)
        return isinstance(error, (kind, MemoryError)) or "can't allocate memory" in str(error)

    def untimed(self) -> AbstractContextManager[None]:
        """A context for what is not timed: one CPU thread, since threads that wait for each other stall busy cores."""
        return self._one_thread()

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        threads = self.torch.get_num_threads()
        self.torch.set_num_threads(1)
        try:
            yield
        finally:
            self.torch.set_num_threads(threads)

    def allocator(self) -> AllocatorFigures | None:
        """torch's own figures for the device, None where it keeps none."""
        return None

    def peak_allocated(self) -> int | None:
        """The most bytes allocated since `reset_peak`, None where torch keeps no figure."""
        return None

    def reset_peak(self) -> None:
        """Begin a new peak."""

    def allocator_options(self) -> str | None:
        """The environment's allocator settings, under which segment sizes are other than the default's."""
        return None

    def synchronize(self) -> None:
        """Wait until the device has done everything asked of it."""

    def release(self) -> None:
        """Give cached memory back, once no tensor refers to it. A CPU's goes with its last reference."""

    def time_calls(self, call: Callable[[int], object], warm: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls after `warm` unmeasured ones; `call` gets its number, to rotate inputs."""
        for number in range(warm):
            call(number)
        samples = []
        for number in range(repeats):
            start = time.perf_counter()
            call(warm + number)
            samples.append(time.perf_counter() - start)
        return samples

    def driver_now(self) -> Driver:
        """The driver's view at this moment."""
        return self.driver

    def facts(self) -> DeviceFacts:
        return DeviceFacts(self.name, "cpu", self.total_bytes, self.free_bytes, nvml=self.driver.missing)


class CudaDevice(Device):
    """A CUDA device (ROCm's torch answers to the same names)."""

    kind = "cuda"

    def __init__(self, torch: Any, index: int) -> None:
        properties = torch.cuda.get_device_properties(index)
        self.uuid = str(getattr(properties, "uuid", "") or "") or None
        self.index = index
        before = query(self.uuid, index)
        super().__init__(torch, torch.cuda.get_device_name(index), int(properties.total_memory))
        self.handle = torch.device("cuda", index)
        torch.cuda.set_device(index)
        torch.zeros(1, device=self.handle)
        torch.cuda.synchronize(index)
        self.driver = query(self.uuid, index)
        self.properties = properties
        self.context_bytes = _context_bytes(before, self.driver, int(torch.cuda.memory_reserved(index)))

    def untimed(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def slice(self) -> str | None:
        """The name of the MIG slice this is, None for a whole card."""
        return self.name if "MIG" in self.name or self.driver.mig else None

    @property
    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info(self.index)[0])

    @property
    def pool_limit(self) -> int:
        return self.free_bytes

    def allocator(self) -> AllocatorFigures:
        stats = self.torch.cuda.memory_stats(self.index)
        return AllocatorFigures(*(int(stats.get(f"{name}_bytes.all.current", 0)) for name in _FIGURES))

    def peak_allocated(self) -> int:
        return int(self.torch.cuda.max_memory_allocated(self.index))

    def reset_peak(self) -> None:
        self.torch.cuda.reset_peak_memory_stats(self.index)

    def allocator_options(self) -> str | None:
        found = [f"{name}={os.environ[name]}" for name in _ALLOCATOR_OPTIONS if os.environ.get(name)]
        return ", ".join(found) or None

    def synchronize(self) -> None:
        self.torch.cuda.synchronize(self.index)

    def release(self) -> None:
        gc.collect()
        self.torch.cuda.synchronize(self.index)
        # cuBLAS keeps a workspace of tens of MiB in torch's memory once a product has run.
        clear = getattr(self.torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        self.torch.cuda.empty_cache()

    def time_calls(self, call: Callable[[int], object], warm: int, repeats: int) -> list[float]:
        for number in range(warm):
            call(number)
        self.synchronize()
        events = []
        for number in range(repeats):
            begin = self.torch.cuda.Event(enable_timing=True)
            end = self.torch.cuda.Event(enable_timing=True)
            begin.record()
            call(warm + number)
            end.record()
            events.append((begin, end))
        self.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    def driver_now(self) -> Driver:
        return query(self.uuid, self.index)

    def facts(self) -> DeviceFacts:
        from kvplan.hardware.accelerators import find

        try:
            accelerator = find(self.name).slug
        except InputError:
            accelerator = None
        return DeviceFacts(
            name=self.name, kind="cuda", total_bytes=self.total_bytes, free_bytes=self.free_bytes,
            accelerator=accelerator, compute_capability=(self.properties.major, self.properties.minor),
            l2_bytes=getattr(self.properties, "L2_cache_size", None),
            multiprocessors=getattr(self.properties, "multi_processor_count", None), context_bytes=self.context_bytes,
            slice=self.slice, driver=self.driver.version, power_limit_watts=self.driver.power_limit_watts,
            clock_mhz=self.driver.clock_mhz, nvml=self.driver.missing,
        )  # fmt: skip


_FIGURES = ("requested", "allocated", "reserved")


def _context_bytes(before: Driver, after: Driver, reserved: int) -> int | None:
    """What the context costs beside torch's own memory: by process where the driver tells, else by difference."""
    if after.own_bytes is not None:
        return after.own_bytes - reserved
    if before.used_bytes is None or after.used_bytes is None or before.own_bytes is not None:
        return None
    return max(0, after.used_bytes - before.used_bytes - reserved)


def open_device(name: str = "auto", torch: Any = None) -> Device:
    """Open `auto`, `cpu`, `cuda` or `cuda:N`. Raises InputError for no such device or an unclear choice."""
    torch = load_torch() if torch is None else torch
    wanted = name.strip().lower()
    count = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    present = ", ".join(["cpu", *(f"cuda:{index}" for index in range(count))])
    if wanted == "cpu" or (wanted == "auto" and count == 0):
        return _cpu(torch)
    if wanted in ("auto", "cuda"):
        if count == 0:
            raise InputError(
                f"--device: found no GPU that torch {torch.__version__} can use, expected one of {present}"
            )
        kinds = sorted({torch.cuda.get_device_name(index) for index in range(count)})
        if len(kinds) > 1:
            raise InputError(f"--device: found GPUs of different kinds ({', '.join(kinds)}), expected one of {present}")
        return CudaDevice(torch, 0)
    prefix, _, number = wanted.partition(":")
    if prefix != "cuda" or not number.isdecimal() or len(number) > 4 or int(number) >= count:
        raise InputError(f"--device: found {show(name)}, expected one of auto, {present}")
    return CudaDevice(torch, int(number))


def _cpu(torch: Any) -> Device:
    import platform

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(torch, f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)", total)
