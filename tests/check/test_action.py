"""The GitHub action's script, run as the runner's bash runs it; the pre-commit hook; the guide's examples."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.check.test_check_formats import annotations
from tests.conftest import Ran

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEP: dict[str, Any] = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "check")
SCRIPT = "#!/bin/sh\nvllm serve meta-llama/Llama-3.1-8B --max-model-len 131072\n"
FILE = "expectations:\n  - name: a\n    model: llama-3.1-8b\n    expect: kv_gib <= {0} at 128k\n"


class Runner:
    """A job's folder: the repository, `kvplan` on the path, and the files that the runner reads."""

    def __init__(self, tmp_path: Path) -> None:
        self.work, self.temp = tmp_path / "work", tmp_path / "temp dir"
        for folder in (self.work, self.temp, tmp_path / "bin"):
            folder.mkdir()
        command = tmp_path / "bin" / "kvplan"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvplan "$@"\n')
        command.chmod(0o755)
        (tmp_path / "step.sh").write_text(STEP["run"])
        self.script = tmp_path / "step.sh"
        self.environment = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        }

    def run(self, **inputs: str) -> tuple[int, str, dict[str, str], str]:
        """Exit code, stdout, outputs and summary of the step with these inputs."""
        given = {name: inputs.get(name, str(spec["default"])) for name, spec in ACTION["inputs"].items()}
        own = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: given[match[1]], value)
            for name, value in STEP["env"].items()
        }
        for path in (self.environment["GITHUB_OUTPUT"], self.environment["GITHUB_STEP_SUMMARY"]):
            Path(path).write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(self.script)],
            cwd=self.work, env={**self.environment, **own}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        outputs = dict(line.split("=", 1) for line in Path(self.environment["GITHUB_OUTPUT"]).read_text().splitlines())
        return done.returncode, done.stdout, outputs, Path(self.environment["GITHUB_STEP_SUMMARY"]).read_text()


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_a_check_that_holds_and_one_that_fails(runner: Runner) -> None:
    (runner.work / "capacity.yaml").write_text(FILE.format(16))
    (runner.work / "it serves.sh").write_text(SCRIPT)
    code, out, outputs, summary = runner.run(manifests="it serves.sh", gpu="h200")
    assert (code, outputs["exit-code"]) == (0, "0")
    assert annotations(out)[-1][0] == "notice"
    assert summary.startswith("### kvplan check: pass")
    for name in ("sarif", "junit", "markdown"):
        assert Path(outputs[name]).is_file()

    # 16 GiB of cache and 15 GiB of weights in a card of 24 GB.
    code, out, outputs, summary = runner.run(manifests="it serves.sh", gpu="l4")
    assert (code, outputs["exit-code"]) == (1, "1")
    levels = [(level, properties.get("file"), properties.get("line")) for level, properties, _ in annotations(out)]
    assert ("error", "it serves.sh", "2") in levels
    assert "| FAIL |" in summary


def test_a_wrong_file_is_an_annotation_too(runner: Runner) -> None:
    (runner.work / "capacity.yaml").write_text("expectations: []\n")
    code, out, outputs, _ = runner.run()
    assert (code, outputs) == (2, {"exit-code": "2"})
    ((level, _, message),) = annotations(out)
    assert level == "error"
    assert "found no expectations" in message


def test_inputs_are_never_run(runner: Runner) -> None:
    (runner.work / "capacity.yaml").write_text(FILE.format(16))
    for text in ("$(touch pwned)", "`touch pwned`", "; touch pwned", "--update-baseline"):
        code, *_ = runner.run(files=text)
        assert code == 2
        assert not (runner.work / "pwned").exists()
    assert "${{" not in STEP["run"]


def test_the_hook_runs_what_it_says(
    kvplan_cli: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("python", False, True)
    (tmp_path / "capacity.yaml").write_text(FILE.format(16))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    program, *words = [*shlex.split(hook["entry"]), *hook["args"]]
    assert program == "kvplan"
    assert kvplan_cli(*words).code == 0


def test_the_guides_examples_are_right() -> None:
    from kvplan.check.expectations import CheckFile

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "check.md").read_text(), re.DOTALL)
    documents = [yaml.safe_load(block) for block in blocks]
    CheckFile.model_validate(documents[0])
    github = next(document for document in documents if "jobs" in document)
    used = next(step for step in github["jobs"]["capacity"]["steps"] if step.get("id") == "kvplan")
    assert set(used["with"]) <= set(ACTION["inputs"])
    gitlab = next(document["capacity"] for document in documents if "capacity" in document)
    assert gitlab["artifacts"]["reports"]["junit"] in gitlab["script"][0]
    for output in re.findall(r"steps\.kvplan\.outputs\.([\w-]+)", (ROOT / "docs" / "check.md").read_text()):
        assert output in ACTION["outputs"]


def test_the_guide_names_every_figure_and_key() -> None:
    from kvplan.check.expectations import Expectation
    from kvplan.check.metrics import METRICS

    text = (ROOT / "docs" / "check.md").read_text()
    names = [name for name, metric in METRICS.items() if metric.source != "scenario"]
    assert not [name for name in (*names, *Expectation.model_fields) if f"`{name}`" not in text]
