"""A headless chromium for the page's tests, or the reason why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def executable() -> str:
    """The browser's path. Skips the test where there is none, except in CI, which installs one."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("found no chromium, expected .ci/run to install it")
        pytest.skip("needs a browser: found no chromium (Debian's package `chromium`)")
    return found


def browser_context(folder: Path) -> Iterator[Any]:
    """A browser with a profile of its own in `folder`."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra `test`)")
    path = executable()
    with playwright.sync_playwright() as started:
        context = started.chromium.launch_persistent_context(
            folder, executable_path=path, args=FLAGS, viewport={"width": 1280, "height": 900}
        )
        context.set_default_timeout(15_000)
        yield context
        context.close()
