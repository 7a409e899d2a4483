"""What an installation can do, without importing what it looks for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kvplan.resources import data_dir
from kvplan.validate import installation
from kvplan.validate.installation import Device, Devices, devices, extras, registry, settings


class FakeNvml:
    """pynvml on a machine with `names`, or without a driver where there are none."""

    class NVMLError(Exception):
        pass

    def __init__(self, *names: str, memory: int | None = 85_520_809_984) -> None:
        self.names, self.memory, self.open = names, memory, 0

    def nvmlInit(self) -> None:
        if not self.names:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.names[handle].encode()

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.memory is None:
            raise self.NVMLError("Not Supported")
        return type("Memory", (), {"total": self.memory})


def test_the_driver_names_its_devices() -> None:
    nvml = FakeNvml("NVIDIA H100 80GB HBM3", "NVIDIA L4")
    found = devices(nvml)
    total = 85_520_809_984
    assert found == Devices("580.1", (Device("NVIDIA H100 80GB HBM3", total), Device("NVIDIA L4", total)), None)
    assert nvml.open == 0
    assert devices(FakeNvml("slice", memory=None)).devices == (Device("slice", None),)


def test_no_driver_and_no_package_are_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices(FakeNvml()) == Devices(None, (), "the driver offers no NVML (Driver Not Loaded)")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in (devices().unknown or "")


def test_extras_follow_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        "rich>=13.7",
        "nvidia-ml-py>=12.535; extra == 'gpu'",
        'torch>=2.4; extra == "gpu"',
        "matplotlib>=3.8; extra == 'plot'",
        "mcp>=2.0; extra == 'mcp'",
        "pytest>=8.2; extra == 'test'",
        "kvplan-llm[gpu,plot]; extra == 'all'",
    ]
    versions = {"torch": "2.13.0+cpu", "nvidia-ml-py": "12.535.5", "matplotlib": "3.10.1", "mcp": "1.9"}
    monkeypatch.setattr(installation.metadata, "requires", lambda name: required)
    monkeypatch.setattr(installation, "_version", versions.get)
    found = {extra.name: extra for extra in extras()}
    assert list(found) == ["gpu", "plot", "mcp"]
    assert [found[name].installed for name in found] == [True, True, False]
    assert (found["mcp"].packages[0].required, found["mcp"].packages[0].installed) == (">=2.0", "1.9")


def test_each_extra_of_the_distribution_is_explained() -> None:
    named = set(metadata.metadata("kvplan-llm").get_all("Provides-Extra") or ())
    assert named - {"all", "test", "docs"} <= set(installation.ENABLES)


def test_a_changed_spec_makes_the_index_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry().current
    shutil.copytree(data_dir("model_specs"), tmp_path / "model_specs")
    monkeypatch.setattr(installation, "data_dir", lambda name: tmp_path / name)
    family = tmp_path / "model_specs" / "llama-3.yaml"
    family.write_text("# a comment\n" + family.read_text("utf-8"), "utf-8")
    found = registry()
    assert not found.current
    assert "kvplan models index" in (found.problem or "")
    family.write_text("id: [", "utf-8")
    assert registry().problem


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "https://user:secret@hub.example")
    shown = {setting.name: setting.value for setting in settings()}
    assert (shown["HF_TOKEN"], shown["HF_ENDPOINT"]) == ("set", "https://hub.example")


def test_the_command_answers(kvplan_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "devices", lambda: devices(FakeNvml("NVIDIA L4", memory=24_152_899_584)))
    done = kvplan_cli("doctor")
    assert done.code == 0
    assert "is ready" in done.out
    assert "NVIDIA L4, 22.49 GiB (24.15 GB)" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())
    document = json.loads(kvplan_cli("doctor", "--json").out)
    assert (document["command"], document["healthy"], document["gpu"]["driver"]) == ("doctor", True, "580.1")


def test_damaged_data_ends_with_exit_code_2(kvplan_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = installation.Registry("", 0, 0, False, "the index is gone")
    monkeypatch.setattr(installation, "registry", lambda: broken)
    done = kvplan_cli("doctor")
    assert done.code == 2
    assert "the index is gone" in done.out


def test_it_does_not_import_torch() -> None:
    script = (
        "import sys; from kvplan.validate.installation import inspect_installation as run; run(); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "matplotlib", "huggingface_hub", "ray"} & set(done.stdout.split())
