"""Shared by the tests of `kvplan.validate`: Triton's interpreter, skipping without a GPU, a device that counts."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.validate.fake_allocator import CachingAllocator, FakeDevice

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_GPU = HAS_TORCH and importlib.import_module("torch").cuda.is_available()
if HAS_TORCH:
    importlib.import_module("torch").set_num_threads(1)  # threads that wait for each other stall on busy cores
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # decided once a process, before any kernel is imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="no GPU at hand"))


@pytest.fixture
def generator() -> Any:
    return importlib.import_module("torch").Generator().manual_seed(7)


@pytest.fixture
def fake_device() -> Callable[..., FakeDevice]:
    """Make a CPU device whose tensors are counted by an allocator with torch's CUDA rules and a memory limit."""
    return lambda limit=1 << 40: FakeDevice(importlib.import_module("torch"), CachingAllocator(limit))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the interpreter and the sweep out of runs that are not about them."""
    monkeypatch.setattr("kvplan.validate.kernels.backends.missing_reason", lambda kind: "left out of this test")
    monkeypatch.setattr("kvplan.validate.speed.CPU_LENGTHS", (64, 128))
