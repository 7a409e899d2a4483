"""`kvplan simulate` and `kvplan replay` as commands."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kvplan.cli import replay, simulate

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
