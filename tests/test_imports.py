"""Which module may import which, and what a plain estimate may load."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

HEAVY = {
    "gguf",
    "huggingface_hub",
    "kvplan.spec.importers.hub",
    "matplotlib",
    "numpy",
    "pydantic.main",
    "torch",
    "urllib.request",
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_imports_point_down() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("kvplan/spec/model.py", "import kvplan.cache"),
        ("kvplan/cache/__init__.py", "import kvplan.report"),
        ("kvplan/hardware/accelerators.py", "import torch"),
        ("kvplan/files.py", "from urllib.request import urlopen"),
    ],
)
def test_an_import_that_points_up_or_out_is_caught(tmp_path: Path, module: str, statement: str) -> None:
    shutil.copytree(ROOT / "kvplan", tmp_path / "kvplan", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as stream:
        stream.write(f"\n{statement}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "1 broken" in done.stdout


def test_a_plain_estimate_loads_nothing_heavy() -> None:
    estimate = ["estimate", "llama-3.1-70b", "--ctx", "128k", "--fp8"]
    command = [sys.executable, "-X", "importtime", "-m", "kvplan", *estimate]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "20.00 GiB" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kvplan.cli.main" in loaded
    assert sorted(HEAVY & loaded) == []


def test_importing_kvplan_loads_no_command_line() -> None:
    script = "import sys, kvplan; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "kvplan" in loaded
    assert sorted((HEAVY | {"rich", "typer", "pydantic", "yaml"}) & loaded) == []
