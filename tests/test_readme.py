"""The README shows what its first command really prints, and its set-up is two lines."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def set_up_lines() -> list[str]:
    return re.findall(r"^pip install .*$", README, flags=re.MULTILINE)


def test_set_up_is_two_lines() -> None:
    assert [line.partition(" && ")[2].split()[0] for line in set_up_lines()] == ["kvplan", "pytest"]


def test_the_shown_output_is_the_real_one() -> None:
    shown = re.search(r"<!-- estimate:begin -->\n```text\n(.*?)```\n<!-- estimate:end -->", README, flags=re.DOTALL)
    assert shown is not None
    _, *arguments = shlex.split(set_up_lines()[0].partition(" && ")[2])
    command = [sys.executable, "-m", "kvplan", *arguments]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    strip = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    assert [line.rstrip() for line in shown[1].strip("\n").splitlines()] == strip
