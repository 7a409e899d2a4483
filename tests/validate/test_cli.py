"""`kvplan validate` from the shell: files whole or absent, exit codes, one sentence for what can't run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import main as main_module
from kvplan.cli.validate import validate
from kvplan.errors import InputError
from kvplan.hardware.profile import load_profile
from kvplan.validate import device as device_module
from kvplan.validate import session as session_module

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "evidence" / "validate" / "cpu.json"


@pytest.fixture
def cli(kvplan_cli: Callable[..., Any]) -> Callable[..., Any]:
    if all(command.callback is not validate for command in main_module.app.registered_commands):
        main_module.app.command()(validate)
    return lambda *words: kvplan_cli("validate", *words)


def needs_torch() -> None:
    pytest.importorskip("torch", reason="needs torch")


@pytest.mark.usefixtures("quick")
def test_a_run_writes_its_files(cli: Callable[..., Any], tmp_path: Path) -> None:
    needs_torch()
    result, profile, plot = tmp_path / "r.json", tmp_path / "p.yaml", tmp_path / "p.png"
    done = cli(
        "gpt-oss-20b", "--device", "cpu", "--pool", "8MiB", "--kv-cache-dtype", "fp8",
        "--json", result, "--save-profile", profile, "--plot", plot,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "checks pass on CPU" in done.out and "local: K+V: 12 layers" in done.out
    assert done.err == ""
    document = json.loads(result.read_text(encoding="utf-8"))
    assert document["exit_code"] == 0 and document["settings"]["model"] == "gpt-oss-20b"
    assert load_profile(profile).kind == "cpu"
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 10_000
    assert {path.name for path in tmp_path.iterdir()} == {"r.json", "p.yaml", "p.png"}
    again = cli("--replay", result)
    assert again.code == 0
    assert again.out == done.out


def test_a_recorded_run_is_judged_again_without_torch(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = cli("--replay", RECORDED)
    assert done.code == 0, done.err
    assert "All 78 checks pass" in done.out


def test_a_recorded_run_with_one_byte_too_few_fails(cli: Callable[..., Any], tmp_path: Path) -> None:
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    row = next(row for row in document["checks"] if row["section"] == "pools")
    row["measured"] -= 1
    for key in ("status", "error"):
        del row[key]
    del document["exit_code"], document["verdict"]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    done = cli("--replay", path)
    assert done.code == 1
    assert "FAIL" in done.out and "1 of 78 checks FAILED" in done.out and " -1 " in done.out


def test_json_to_stdout_is_nothing_else(cli: Callable[..., Any]) -> None:
    done = cli("--replay", RECORDED, "--json", "-")
    assert json.loads(done.out)["command"] == "validate"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cuda:7"), "kvplan: --device: found 'cuda:7', expected one of auto, cpu"),
        (("--device", "cpu", "--pool", "much"), "kvplan: --pool: found 'much', expected a size"),
        (("--device", "cpu", "--fraction", "2"), "kvplan: --fraction: found 2"),
        (("no-such-model", "--device", "cpu"), "kvplan: model: found 'no-such-model'"),
        (("--replay", "nowhere.json"), "kvplan: nowhere.json: can't be read"),
        (("llama-3.1-8b", "--replay", RECORDED), "kvplan: --replay: found it together with a model"),
        (("--replay", RECORDED, "--plot", "x.txt"), "kvplan: --plot: found 'x.txt'"),
    ],
)
def test_bad_input_is_one_sentence(cli: Callable[..., Any], words: tuple[object, ...], message: str) -> None:
    needs_torch()
    done = cli(*words)
    assert done.code == 2
    assert done.err.startswith(message) and done.err.count("\n") == 1


def test_without_torch_one_sentence_says_so(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = cli("--device", "cpu")
    assert done.code == 2
    assert done.err == "kvplan: validate: found no torch, expected it installed: pip install 'kvplan-llm[gpu]'\n"


@pytest.mark.usefixtures("quick")
def test_an_interrupt_writes_nothing(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "capacity_checks", interrupt)
    done = cli("llama-3.1-8b", "--device", "cpu", "--pool", "16MiB", "--json", tmp_path / "r.json")
    assert (done.code, done.err) == (130, "kvplan: interrupted: the memory was given back and nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_failing_check_is_exit_code_1(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()
    monkeypatch.setattr("kvplan.validate.attention.error_bound", lambda torch, query: 0.0)
    done = cli("gpt-oss-20b", "--device", "cpu", "--pool", "8MiB")
    assert done.code == 1
    assert "FAILED" in done.out


def test_nothing_but_this_package_loads_torch() -> None:
    modules = "kvplan.cli.validate, kvplan.report.validate, kvplan.validate.session"
    script = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    grep = shutil.which("grep")
    assert grep is not None
    found = subprocess.run([grep, "-rlE", r"^\s*(import|from) (torch|triton)", "kvplan"], cwd=ROOT, capture_output=True,
                           text=True)  # fmt: skip
    assert found.stdout.split() == ["kvplan/validate/kernels/triton_kernels.py"]


def test_a_broken_torch_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(device_module.importlib, "import_module", broken)
    with pytest.raises(InputError, match="found no torch"):
        device_module.load_torch()
