"""`kvplan simulate` and `kvplan replay` as commands."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvplan.cli import replay, simulate
from kvplan.errors import InputError
from kvplan.hardware.profile import AttentionProfile, DeviceProfile, save_profile

ROOT = Path(__file__).parents[2]
SCENARIO = str(ROOT / "scenarios" / "five-requests-one-preemption.yaml")
TRACE = str(ROOT / "tests" / "golden" / "traces" / "mooncake_conversation_1k.jsonl")

app = typer.Typer()
app.command()(simulate.simulate)
app.command()(replay.replay)


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_simulate_json_is_one_document_and_the_same_each_time() -> None:
    first, second = call("simulate", SCENARIO, "--json"), call("simulate", SCENARIO, "--json")
    assert first == second
    document = json.loads(first)
    assert document["command"] == "simulate"
    assert document["preemptions"] == 1


def test_simulate_says_the_verdict_first() -> None:
    text = call("simulate", SCENARIO)
    assert text.startswith("five requests, one preemption: stable")
    assert "320 tokens" in text


def test_check_only_checks() -> None:
    assert call("simulate", SCENARIO, "--check").strip().endswith("valid")


def test_requests_and_events_are_written(tmp_path: Path) -> None:
    rows, events = tmp_path / "rows.csv", tmp_path / "events.jsonl"
    call("simulate", SCENARIO, "--requests", str(rows), "--events", str(events))
    table = list(csv.DictReader(rows.open()))
    assert [int(row["output_tokens"]) for row in table] == [32] * 5
    assert sorted(float(row["finished_s"]) for row in table) == pytest.approx([0.32] * 4 + [0.64])
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()]
    assert kinds.count("preempted") == 1
    assert kinds.count("finished") == 5
    assert kinds.count("admitted") == 6


def test_events_come_in_order_of_time(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    call("simulate", str(ROOT / "scenarios" / "node-loss-cold-caches.yaml"), "--limit", "200", "--events", str(events))
    found = [json.loads(line) for line in events.read_text().splitlines()]
    keys = [(event["time_s"], event["kind"], event["request"]) for event in found]
    assert keys == sorted(keys)
    assert {"arrived", "admitted", "finished"} <= {event["kind"] for event in found}


def test_vary_and_seeds_compare() -> None:
    runs = json.loads(call("simulate", SCENARIO, "--vary", "num-blocks=100,200", "--seeds", "2", "--json"))["runs"]
    assert [run["preemptions"] for run in runs] == [1, 1, 0, 0]
    assert [run["settings"]["num-blocks"] for run in runs] == [100, 100, 200, 200]
    assert "run 2: num-blocks=200" in call("simulate", SCENARIO, "--vary", "num-blocks=100,200")


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call("simulate", SCENARIO, "--plot", str(tmp_path / "a.svg"))
    call("replay", TRACE, "--limit", "50", "--capacity", "10,100,unbounded", "--plot", str(tmp_path / "b.png"))
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_replay_rows_have_the_promised_keys() -> None:
    document = json.loads(call("replay", TRACE, "--capacity", "1000,unbounded", "--json"))
    assert {
        "capacity_blocks", "policy", "touch_order", "hit_blocks", "total_blocks", "hit_tokens", "total_tokens",
        "last_half_hit_tokens", "last_half_total_tokens",
    } <= document["rows"][0].keys()  # fmt: skip
    assert [row["capacity_blocks"] for row in document["rows"]] == [1000, None]
    assert "touch order" in " ".join(call("replay", TRACE, "--limit", "20").split())


def refused(*arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return str(caught.value)


def test_shipped_scenarios_go_by_name() -> None:
    assert call("simulate", "five-requests-one-preemption").startswith("five requests, one preemption")
    assert "nearest: chat-one-h100" in refused("simulate", "chat-one-h200")


def test_a_chrome_trace_has_a_bar_for_each_stretch(tmp_path: Path) -> None:
    """Five requests wait for no time and run 0.32 s; the one that gave way waits that long, then runs as long."""
    path = tmp_path / "trace.json"
    call("simulate", SCENARIO, "--events", str(path))
    entries = json.loads(path.read_text())["traceEvents"]
    bars = [(entry["name"], entry["dur"] / 1e6) for entry in entries if entry["ph"] == "X"]
    waits = sorted(duration for name, duration in bars if name == "waiting")
    runs = sorted(duration for name, duration in bars if name == "running")
    assert waits == pytest.approx([0, 0, 0, 0, 0, 0.32], abs=1e-9)
    assert runs == pytest.approx([0, 0.32, 0.32, 0.32, 0.32, 0.32], abs=1e-9)
    assert [entry["name"] for entry in entries if entry["ph"] == "i"] == ["preempted"]


def test_a_profile_takes_the_place_of_the_factors(tmp_path: Path) -> None:
    """Decode attention at half the speed of the data sheet's 3.35 TB/s: steps get longer, and the profile is named."""
    profile = DeviceProfile(
        schema_version=1, device="H100 of a friend", kind="cuda", recorded="2025-01-01", how="test",
        total_bytes=80 << 30, usable_bytes=79 << 30, copy_bytes_per_second=3e12, read_bytes_per_second=3e12,
        attention=(AttentionProfile("K+V", "bf16", 2e-4, 3.35e12 / 2, 0.5),),
    )  # fmt: skip
    save_profile(tmp_path / "h100.yaml", profile)
    plain = json.loads(call("simulate", "chat-one-h100", "--limit", "50", "--json"))
    measured = json.loads(
        call("simulate", "chat-one-h100", "--limit", "50", "--profile", str(tmp_path / "h100.yaml"), "--json")
    )
    assert measured["decode_step"]["calibrated_s"] > plain["decode_step"]["calibrated_s"] + 32 * 1.5e-4
    assert any("H100 of a friend" in sentence for sentence in measured["assumptions"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check", "--find", "max-rate"), "--find: found it beside --check"),
        (("--find", "max-rate", "--slo", "ttft_p99=1s", "--seeds", "3"), "--seeds: found it beside --find"),
        (("--seeds", "2", "--plot", "a.png"), "--plot: found 2 runs to write, expected one"),
        (("--vary", "num-blocks=1,2", "--requests", "a.csv"), "--requests: found 2 runs"),
        (("--plot", "a.txt"), "expected a name ending in .png"),
        (("--slo", "ttft_p99=1s"), "--slo: found it without --find"),
        (("--find", "max-rate"), "--find: found no limits"),
        (("--vary", "pipeline-parallel-size=2"), "pipeline_parallel has no step time yet"),
        (("--vary", "kv-cache-dtype=[a"), "--kv-cache-dtype: found '[a'"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused("simulate", "chat-one-h100", *arguments)


def test_check_looks_at_what_the_file_names(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(Path(SCENARIO).read_text() + "model: llama-9\n")
    assert "no known model" in refused("simulate", str(path), "--check")


def test_optimal_brings_the_split_of_the_misses() -> None:
    document = json.loads(
        call("replay", TRACE, "--limit", "100", "--capacity", "200", "--policy", "lru,optimal", "--json")
    )
    for row in document["rows"]:
        assert sum(row["misses"].values()) + row["hit_blocks"] == row["total_blocks"]
    assert document["partial"] is False
    assert "never" in call("replay", TRACE, "--limit", "100", "--capacity", "200", "--split")
    plain = json.loads(call("replay", TRACE, "--limit", "100", "--capacity", "200", "--json"))
    assert "misses" not in plain["rows"][0]


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals")
def test_an_interrupt_keeps_partial_results_and_a_clean_terminal(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(
        "step_time: {kind: constant_step, base: 10ms}\nengine: {num_blocks: 1000}\n"
        "workload: {arrivals: {rate: 5}, requests: 5000000, prompt: 100, output: 10}\n"
    )
    outside, inside = pty.openpty()
    command = [sys.executable, "-m", "kvplan", "simulate", str(path), "--requests", str(tmp_path / "rows.csv")]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=inside, stdin=inside, text=True,
        # Tests that run as a shell's background job inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    drawn = b""
    deadline = time.monotonic() + 60
    while b"requests done" not in drawn and time.monotonic() < deadline:
        if select.select([outside], [], [], 0.5)[0]:
            drawn += os.read(outside, 65536)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    while select.select([outside], [], [], 0.2)[0]:
        drawn += os.read(outside, 65536)
    os.close(inside)
    os.close(outside)
    assert process.returncode == 130
    assert text.startswith("PARTIAL: interrupted before the end")
    assert drawn.endswith(b"\r\x1b[K")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) > 1


def test_an_estimate_loads_nothing_of_the_simulator() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "kvplan", "estimate", "llama-3.1-8b", "--engine", "vllm"]
    done = subprocess.run([*command, "--gpu", "h100"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kvplan.serving" in loaded
    assert not [name for name in loaded if name.startswith(("kvplan.simulator", "kvplan.performance"))]
