"""Opening a device, and everything that can be missing or in the way: GPUs, NVML, memory, a whole card."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.validate import device as device_module
from kvplan.validate.device import CudaDevice, _context_bytes, load_torch, open_device
from kvplan.validate.nvml import Driver, Holder, query

GIB = 1 << 30


class FakeCuda:
    """The part of torch.cuda that opening a device touches, for `names` of devices."""

    def __init__(self, *names: str, reserved: int = 2 << 20) -> None:
        self.names, self.reserved = names, reserved

    def is_available(self) -> bool:
        return bool(self.names)

    def device_count(self) -> int:
        return len(self.names)

    def get_device_name(self, index: int) -> str:
        return self.names[index]

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(
            total_memory=80 * GIB, uuid="abc", major=9, minor=0, L2_cache_size=50 << 20, multi_processor_count=132
        )

    def set_device(self, index: int) -> None: ...

    def synchronize(self, index: int) -> None: ...

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 70 * GIB, 80 * GIB


def fake_torch(*names: str) -> Any:
    return SimpleNamespace(
        cuda=FakeCuda(*names), __version__="2.13.0", device=lambda *name: name, zeros=lambda *a, **k: None,
        get_num_threads=lambda: 2,
    )  # fmt: skip


def test_auto_is_the_cpu_without_a_gpu() -> None:
    assert open_device("auto", fake_torch()).kind == "cpu"


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        ((), "cuda", "found no GPU that torch 2.13.0 can use, expected one of cpu"),
        ((), "cuda:0", "found 'cuda:0', expected one of auto, cpu"),
        (("A",), "cuda:1", "found 'cuda:1', expected one of auto, cpu, cuda:0"),
        (("A",), "gpu", "found 'gpu', expected one of auto, cpu, cuda:0"),
        (("A",), "cuda:x", "found 'cuda:x'"),
        (("A", "B"), "auto", r"found GPUs of different kinds \(A, B\), expected one of cpu, cuda:0, cuda:1"),
    ],
)
def test_no_such_device_is_one_sentence(names: tuple[str, ...], asked: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--device: {message}") as caught:
        open_device(asked, fake_torch(*names))
    assert caught.value.exit_code == 2


def test_two_of_a_kind_are_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "query", lambda uuid, index: Driver(missing="no NVML"))
    opened = open_device("auto", fake_torch("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"))
    assert isinstance(opened, CudaDevice)
    facts = opened.facts()
    assert (facts.accelerator, facts.compute_capability, facts.nvml) == ("h100-sxm-80gb", (9, 0), "no NVML")
    assert (facts.context_bytes, facts.slice, facts.free_bytes) == (None, None, 70 * GIB)


def test_a_slice_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "query", lambda uuid, index: Driver(mig=True))
    assert open_device("cuda:0", fake_torch("NVIDIA H100 80GB HBM3 MIG 3g.40gb")).facts().slice is not None


def test_the_context_costs_what_the_driver_sees_beside_torch() -> None:
    own = Driver(used_bytes=5 * GIB, holders=(Holder(os.getpid(), "python", 600 << 20),))
    assert _context_bytes(Driver(used_bytes=GIB), own, 2 << 20) == 598 << 20
    hidden = Driver(used_bytes=GIB + (500 << 20))
    assert _context_bytes(Driver(used_bytes=GIB), hidden, 2 << 20) == 498 << 20
    assert _context_bytes(Driver(missing="none"), Driver(missing="none"), 0) is None


def test_no_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(device_module.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"found no torch, expected it installed: pip install 'kvplan-llm\[gpu\]'"):
        load_torch()


class FakeNvml:
    """pynvml of a driver that answers `answers` and refuses the rest."""

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: Any) -> None:
        self.answers, self.open = answers, 0

    def nvmlInit(self) -> None:
        if "init" in self.answers:
            raise self.NVMLError(self.answers["init"])
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            if name not in self.answers:
                raise self.NVMLError("Not Supported")
            return self.answers[name]

        return ask


def test_the_driver_answers() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetHandleByUUID="card", nvmlDeviceGetMemoryInfo=SimpleNamespace(used=3, total=9),
        nvmlSystemGetDriverVersion=b"580.1", nvmlDeviceGetEnforcedPowerLimit=700_000, nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetMigMode=(0, 0), nvmlSystemGetProcessName="other",
        nvmlDeviceGetComputeRunningProcesses=[
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=2), SimpleNamespace(pid=1, usedGpuMemory=None)
        ],
    )  # fmt: skip
    driver = query("uuid", 0, nvml)
    assert (driver.used_bytes, driver.total_bytes, driver.version, driver.power_limit_watts) == (3, 9, "580.1", 700)
    assert (driver.own_bytes, driver.mig, driver.clock_mhz, driver.missing) == (2, False, 1980, None)
    assert driver.foreign == (Holder(1, "other", None),)
    assert nvml.open == 0


def test_a_driver_that_tells_nothing_is_an_answer() -> None:
    driver = query("uuid", 0, FakeNvml(nvmlDeviceGetHandleByIndex="card"))
    assert (driver.used_bytes, driver.version, driver.holders, driver.mig) == (None, None, (), False)
    refused = FakeNvml(init="Driver Not Loaded")
    assert query(None, 0, refused).missing == "the driver offers no NVML (Driver Not Loaded)"
    unknown = FakeNvml()
    assert "NVML does not know the device" in (query("uuid", 0, unknown).missing or "")
    assert unknown.open == 0


def test_no_nvml_package_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("kvplan.validate.nvml.importlib.import_module", missing)
    assert "pip install nvidia-ml-py" in (query(None, 0).missing or "")
