"""Runs of `kvplan check`: kept answers, several processes, baselines, and no network."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.check import run as running
from kvplan.check.inputs import Inputs
from kvplan.check.request import Request
from kvplan.check.run import run_check
from tests.conftest import Ran

Cli = Callable[..., Ran]
FILE = """expectations:
  - name: chat
    manifest: serve.sh
    hardware: h200
    available_memory: 40GiB
    expect: capacity_tokens >= 300k
"""
SCRIPT = "#!/bin/sh\nvllm serve meta-llama/Llama-3.1-8B \\\n  --max-model-len 32768 \\\n  --kv-cache-dtype auto\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "capacity.yaml").write_text(FILE)
    (folder / "serve.sh").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were really checked, not answered from the cache."""
    done: list[str] = []

    def spy(request: Request, inputs: Inputs) -> Any:
        done.extend(str(path) for path in (*request.files, *request.manifests))
        return run_check(request, inputs)

    monkeypatch.setattr(running, "run_check", spy)
    return done


def test_an_unchanged_check_is_answered_from_the_cache(kvplan_cli: Cli, place: Path, judged: list[str]) -> None:
    first = kvplan_cli("check", "capacity.yaml")
    assert judged == ["capacity.yaml"]
    assert kvplan_cli("check", "capacity.yaml") == first
    assert kvplan_cli("check", "capacity.yaml", "--json").code == 0  # another format of the same answer
    assert judged == ["capacity.yaml"]
    kvplan_cli("check", "capacity.yaml", "--no-cache")
    assert judged == ["capacity.yaml"] * 2


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("capacity.yaml", "300k", "400k"), ("serve.sh", "32768", "999999"), ("serve.sh", "auto", "fp8")],
)
def test_any_change_is_seen(kvplan_cli: Cli, place: Path, judged: list[str], file: str, old: str, new: str) -> None:
    before = kvplan_cli("check", "capacity.yaml")
    stamp = (place / file).stat()
    (place / file).write_text((place / file).read_text().replace(old, new))
    os.utime(place / file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # contents count, not times
    after = kvplan_cli("check", "capacity.yaml")
    assert len(judged) == 2
    assert after.out != before.out


def test_a_file_that_appears_is_seen(kvplan_cli: Cli, place: Path, judged: list[str]) -> None:
    (place / "serve.sh").write_text("#!/bin/sh\nvllm serve meta-llama/Llama-3.1-8B --config engine.yaml\n")
    assert kvplan_cli("check", "capacity.yaml").code == 0
    (place / "engine.yaml").write_text("max-model-len: 999999\n")
    assert kvplan_cli("check", "capacity.yaml").code == 1
    assert len(judged) == 2


def test_a_broken_or_unwritable_cache_does_no_harm(
    kvplan_cli: Cli, place: Path, tmp_path: Path, judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kvplan_cli("check", "capacity.yaml")
    (entry,) = (tmp_path / "cache").iterdir()
    for text in ("", "{", "[]", '{"inputs": [], "report": 3}'):
        entry.write_text(text)
        assert kvplan_cli("check", "capacity.yaml") == first
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert kvplan_cli("check", "capacity.yaml") == first
    assert len(judged) == 6


def test_several_processes_answer_in_order_as_one_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["expectations:"]
    for number in range(12):
        rows += [f"  - name: n{number}", f"    command: vllm serve Qwen/Qwen3-8B --max-model-len {4096 + 16 * number}",
                 "    hardware: h100", f"    expect: max_concurrency >= {number * 20}"]  # fmt: skip
    (place / "many.yaml").write_text("\n".join(rows) + "\n")
    request = Request((Path("many.yaml"),))
    alone, several = Inputs(), Inputs()
    one = run_check(request, alone)
    monkeypatch.setattr(running, "WORTH_FORKING", 4)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert run_check(request, several) == one
    assert several.paths == alone.paths
    assert [verdict.expectation for verdict in one.verdicts if verdict.metric] == [f"n{number}" for number in range(12)]


def test_no_socket_is_opened(kvplan_cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    (place / "capacity.yaml").write_text(FILE + "  - {name: b, model: nobody/unknown-model, expect: kv_gib <= 1}\n")
    assert kvplan_cli("check", "capacity.yaml").code == 2


# --- baselines ---------------------------------------------------------------------------------------------------


def test_no_worse_than_the_baseline(kvplan_cli: Cli, place: Path) -> None:
    assert kvplan_cli("check", "capacity.yaml", "--baseline", "base.json", "--update-baseline").code == 0
    kept = json.loads((place / "base.json").read_text())
    # 40 GiB / 128 KiB = 327,680 tokens.
    assert kept["entries"]["chat"]["figures"]["capacity_tokens"] == 327_680
    assert kept["entries"]["chat"]["figures"]["kv_bytes_per_token"] == 131_072
    assert kvplan_cli("check", "capacity.yaml", "--baseline", "base.json").code == 0

    (place / "capacity.yaml").write_text(FILE.replace("40GiB", "39.5GiB"))  # 1.25 % less
    assert kvplan_cli("check", "capacity.yaml", "--baseline", "base.json").code == 0
    (place / "capacity.yaml").write_text(FILE.replace("40GiB", "39GiB"))  # 2.5 % less
    ran = kvplan_cli("check", "capacity.yaml", "--baseline", "base.json")
    assert ran.code == 1
    assert "2.5% worse" in ran.out
    tolerant = FILE.replace("40GiB", "39GiB").replace(
        "expect: capacity_tokens >= 300k", "expect: no worse than the baseline by 3 %"
    )
    (place / "capacity.yaml").write_text("baseline: base.json\n" + tolerant)
    assert kvplan_cli("check", "capacity.yaml").code == 0


def test_the_baseline_names_what_changed_and_its_line(kvplan_cli: Cli, place: Path) -> None:
    (place / "serve.sh").write_text(SCRIPT.replace("auto", "fp8"))
    kvplan_cli("check", "capacity.yaml", "--baseline", "base.json", "--update-baseline")
    (place / "serve.sh").write_text(SCRIPT)
    ran = kvplan_cli("check", "capacity.yaml", "--baseline", "base.json", "--json")
    assert ran.code == 1
    failed = [each for each in json.loads(ran.out)["verdicts"] if each["status"] == "fail"]
    assert {each["metric"] for each in failed} == {"capacity_tokens", "max_concurrency", "kv_bytes_per_token"}
    assert {(each["file"], each["line"], each["blame"]) for each in failed} == {
        ("serve.sh", 4, "kv_cache_dtype fp8 -> auto")
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found an empty file"),
        ("{}", "found no baseline of kvplan check"),
        ('{"kind": "kvplan-check-baseline", "schema_version": 2, "entries": {}}', "found 2, expected 1"),
        ('{"kind": "kvplan-check-baseline", "schema_version": 1}', "entries: found null"),
        ('{"kind": "kvplan-check-baseline", "schema_version": 1, "entries": {}}', "found no entry 'chat'"),
        (
            '{"kind": "kvplan-check-baseline", "schema_version": 1, "entries": {"a": {"figures": {"x": 1}}}}',
            "figure 'x'",
        ),
    ],
)  # fmt: skip
def test_a_baseline_that_is_none(kvplan_cli: Cli, place: Path, text: str, said: str) -> None:
    (place / "base.json").write_text(text)
    ran = kvplan_cli("check", "capacity.yaml", "--baseline", "base.json")
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_update_baseline_writes_nothing_where_something_is_unknown(kvplan_cli: Cli, place: Path) -> None:
    (place / "capacity.yaml").write_text(FILE + "  - {name: b, model: lama-9, expect: kv_gib <= 1}\n")
    assert kvplan_cli("check", "capacity.yaml", "--baseline", "base.json", "--update-baseline").code == 2
    assert not (place / "base.json").exists()
    assert kvplan_cli("check", "capacity.yaml", "--update-baseline").code == 2


# --- simulated latency -------------------------------------------------------------------------------------------


def test_simulated_latency_of_a_command(kvplan_cli: Cli, place: Path) -> None:
    # One request at a time, every step 10 ms: the first token after one step, 9 more steps for 10 tokens.
    (place / "load.yaml").write_text(
        "step_time: {kind: constant_step, base: 10ms}\nengine: {num_blocks: 100, max_model_len: 4096}\nworkload:\n"
        "  arrivals: {kind: constant, rate: 1}\n  requests: 20\n  prompt: 100\n  output: 10\n"
    )
    text = "expectations:\n  - name: a\n    scenario: load.yaml\n    expect: [{0}]\n"
    (place / "capacity.yaml").write_text(text.format("ttft_p99 <= 10ms, e2e_p99 <= 100ms"))
    ran = kvplan_cli("check", "capacity.yaml", "--json")
    assert ran.code == 0, ran.out
    values = {each["metric"]: each["value"] for each in json.loads(ran.out)["verdicts"]}
    assert values == {"ttft_p99": pytest.approx(0.010), "e2e_p99": pytest.approx(0.100)}
    (place / "capacity.yaml").write_text(text.format("ttft_p99 <= 9ms"))
    ran = kvplan_cli("check", "capacity.yaml")
    assert ran.code == 1
    assert "over by 1 ms" in ran.out
