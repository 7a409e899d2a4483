"""A sweep's cells against `kvplan estimate` and `simulate`, and what it does when it is killed, locked or refused."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.estimator import estimate
from kvplan.planner.sweep.cells import Cells, columns_of
from kvplan.planner.sweep.run import sweep
from kvplan.planner.sweep.store import Kind, Store
from kvplan.planner.sweep.study import Study, load_study

ROOT = Path(__file__).parents[2]
ESTIMATE: dict[str, Any] = {
    "command": "estimate",
    "base": {"gpu": "h100"},
    "grid": {
        "model": ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"],
        "kv-cache-dtype": ["auto", "fp8"],
        "num-gpus": [1, 4],
        "batch": [1, 100],
        "ctx": ["1k", 4000, "128k"],
    },
}
SIMULATE: dict[str, Any] = {
    "command": "simulate",
    "base": {
        "step_time": {"kind": "affine", "base": 0.002, "per_sequence": 0.0001},
        "engine": {"num_blocks": 500, "max_num_batched_tokens": 2048},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 1}, "requests": 250, "prompt": 100,
            "output": {"kind": "exponential", "mean": 60},
        },
    },
    "grid": {"rate": [0.5, 1, 2, 4, 8], "max-num-seqs": [4, 16], "seed": [0, 1]},
}  # fmt: skip


def written(folder: Path, document: dict[str, Any], name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def swept(folder: Path, study: Study, workers: int = 1, kind: Kind = "csv") -> Path:
    with Store(folder, study, columns_of(study), kind) as store:
        sweep(study, store, workers=workers)
        return store.finish()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_cell_is_what_estimate_says(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, ESTIMATE))
    rows = rows_of(swept(tmp_path / "out", study))
    assert [int(row["cell"]) for row in rows] == list(range(72))
    for row in rows:
        answer = estimate(
            row["model"], ctx=int(row["ctx"]), batch=int(row["batch"]), kv_cache_dtype=row["kv_cache_dtype"],
            gpu=row["gpu"], num_gpus=int(row["num_gpus"]),
        )  # fmt: skip
        assert answer.fit is not None
        assert answer.weights is not None
        assert int(row["needed_bytes"]) == answer.cache.needed_bytes
        assert int(row["needed_bytes_per_sequence"]) == answer.cache.needed_bytes_per_sequence
        assert int(row["read_bytes_per_step"]) == answer.cache.read_bytes_per_step
        assert int(row["weights_bytes"]) == answer.weights.bytes
        assert int(row["kv_bytes_per_sequence_per_gpu"]) == answer.fit.kv_bytes_per_sequence_per_gpu
        assert int(row["max_full_length_sequences"]) == answer.fit.max_full_length_sequences
        assert int(row["longest_context_tokens"]) == answer.fit.longest_context_tokens
        assert (row["fits"] == "true") == answer.fit.fits
        assert row["error"] == ""


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b-instruct", "deepseek-v4-pro", "mamba-2.8b-hf"]),
    st.integers(1, 1 << 32), st.integers(1, 10**9), st.sampled_from(["auto", "fp8"]),
)  # fmt: skip
def test_no_cell_overflows(model: str, ctx: int, batch: int, dtype: str) -> None:
    study = Study("estimate", {"model": model, "kv_cache_dtype": dtype}, (("ctx", (ctx,)), ("batch", (batch,))), ".")
    column = Cells(study).part(0)
    answer = estimate(model, ctx=ctx, batch=batch, kv_cache_dtype=dtype)
    assert column["needed_bytes"] == [answer.cache.needed_bytes]
    assert column["read_bytes_per_step"] == [answer.cache.read_bytes_per_step]


def test_parts_of_any_size_hold_the_same_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(written(tmp_path, ESTIMATE))
    whole = swept(tmp_path / "whole", study).read_bytes()
    monkeypatch.setattr(Study, "chunk", property(lambda self: 7))
    assert study.parts == 11
    assert swept(tmp_path / "parts", study).read_bytes() == whole


def test_cells_that_cannot_be_answered_say_why(tmp_path: Path) -> None:
    grid = {"model": ["llama-3.1-8b", "llama-9"], "kv_cache_dtype": ["auto", "fp9"], "ctx": [1024]}
    rows = rows_of(swept(tmp_path / "out", load_study(written(tmp_path, {**ESTIMATE, "grid": grid}))))
    assert [bool(row["error"]) for row in rows] == [False, True, True, True]
    assert "fp9" in rows[1]["error"]
    assert "llama-9" in rows[2]["error"]
    assert rows[1]["needed_bytes"] == ""


def test_simulated_cells_are_what_simulate_says(tmp_path: Path) -> None:
    from kvplan.simulator.study import changed, run

    study = load_study(written(tmp_path, SIMULATE))
    rows = rows_of(swept(tmp_path / "one", study))
    assert swept(tmp_path / "two", study, workers=2).read_bytes() == (tmp_path / "one" / "results.csv").read_bytes()
    assert len(rows) == 20
    for row in rows[::7]:
        settings = [
            ("rate", float(row["rate"])),
            ("max-num-seqs", int(row["max-num-seqs"])),
            ("seed", int(row["seed"])),
        ]
        document = run(changed(SIMULATE["base"], tmp_path / "x.yaml", settings), tmp_path / "x.yaml")
        assert float(row["ttft_p99_s"]) == document["latency"]["ttft_s"]["p99"]
        assert row["stability"] == document["stability"]


def test_planned_cells(tmp_path: Path) -> None:
    document = {
        "command": "plan",
        "base": {
            "models": "llama-3.1-8b", "gpus": ["h100"], "prices": {"h100": 3.0}, "finalists": 0,
            "workload": {"arrivals": {"kind": "poisson", "rate": 1}, "prompt": 1000, "output": 100},
            "slo": {"ttft": "1s"},
        },
        "grid": {"workload.arrivals.rate": [1, 50], "slo.ttft": ["1s", "1us"]},
    }  # fmt: skip
    rows = rows_of(swept(tmp_path / "out", load_study(written(tmp_path, document))))
    assert [row["plan_meets"] for row in rows] == ["true", "false", "true", "false"]
    assert float(rows[0]["plan_cost_per_hour"]) < float(rows[2]["plan_cost_per_hour"])


def test_parquet_has_the_cells_of_csv(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'kvplan-llm[sweep]'")
    grid = {**ESTIMATE["grid"], "model": ["llama-3.1-8b", "llama-9"]}
    study = load_study(written(tmp_path, {**ESTIMATE, "grid": grid}))
    rows = rows_of(swept(tmp_path / "a", study))
    table = parquet.read_table(swept(tmp_path / "b", study, kind="parquet")).to_pylist()
    assert len(table) == len(rows)
    for row, typed in zip(rows, table, strict=True):
        shown = {key: "" if value is None else str(value) for key, value in typed.items()}
        assert {**shown, "fits": shown["fits"].lower()} == row


def start(study: Path, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kvplan", "sweep", str(study), "-o", str(folder), "--workers", "2", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def parts_in(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob("[0-9]*.csv")) if (folder / "parts").exists() else []


def await_parts(folder: Path, count: int) -> None:
    limit = time.monotonic() + 30
    while len(parts_in(folder)) < count:
        assert time.monotonic() < limit, "the sweep didn't get on"
        time.sleep(0.01)


def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    grid = {**SIMULATE["grid"], "seed": list(range(5))}
    path = written(tmp_path, {**SIMULATE, "grid": grid})
    folder = tmp_path / "killed"
    process = start(path, folder)
    await_parts(folder, 5)
    with pytest.raises(InputError, match="another sweep at work"):
        Store(folder, load_study(path), columns_of(load_study(path)), "csv")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "results.csv").exists()
    kept = {part.name: part.stat().st_mtime_ns for part in parts_in(folder)}
    assert 5 <= len(kept) < 50

    again = start(path, folder, "--json")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert json.loads(out)["parts_before"] == len(kept)
    whole = swept(tmp_path / "whole", load_study(path), workers=2)
    assert (folder / "results.csv").read_bytes() == whole.read_bytes()
    assert [row["cell"] for row in rows_of(whole)] == [str(cell) for cell in range(50)]


def test_no_worker_outlives_a_killed_sweep(tmp_path: Path) -> None:
    grid = {**SIMULATE["grid"], "seed": list(range(200))}
    process = start(written(tmp_path, {**SIMULATE, "grid": grid}), tmp_path / "out")
    await_parts(tmp_path / "out", 1)
    children = [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.communicate()
    limit = time.monotonic() + 10
    while any(alive(child) for child in children):
        assert time.monotonic() < limit, "a worker is left"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_lost_workers_cells_are_given_to_another(tmp_path: Path) -> None:
    grid = {**SIMULATE["grid"], "seed": [0, 1, 2]}
    study = load_study(written(tmp_path, {**SIMULATE, "grid": grid}))
    killed: list[int] = []

    def progress(done: int, total: int) -> None:
        if not killed:
            import multiprocessing

            victim = multiprocessing.active_children()[0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            killed.append(victim.pid)

    with Store(tmp_path / "out", study, columns_of(study), "csv") as store:
        sweep(study, store, workers=2, progress=progress)
        store.finish()
    assert killed
    assert (tmp_path / "out" / "results.csv").read_bytes() == swept(tmp_path / "whole", study).read_bytes()


def test_a_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    swept(tmp_path / "out", load_study(written(tmp_path, ESTIMATE)))
    other = load_study(written(tmp_path, {**ESTIMATE, "base": {"gpu": "h200"}}))
    with pytest.raises(InputError, match="the results of another study"):
        Store(tmp_path / "out", other, columns_of(other), "csv")


def test_a_finished_sweep_has_nothing_to_do(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, ESTIMATE))
    results = swept(tmp_path / "out", study)
    before = results.stat().st_mtime_ns
    with Store(tmp_path / "out", study, columns_of(study), "csv") as store:
        assert store.missing() == []
        assert sweep(study, store) == study.parts
        store.finish()
    assert results.stat().st_mtime_ns == before
    assert not (tmp_path / "out" / "parts").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, ESTIMATE))
    with pytest.raises(InputError, match="can't be written"):
        Store(tmp_path / "study.yaml" / "out", study, columns_of(study), "csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: estimate\ngrid: {ctx: [1k}", ["line 2, column"]),
        ("command: estimat\ngrid: {ctx: [1k]}", ["line 1, column", "command: found 'estimat'"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {}", ["a study needs a grid"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {contxt: [1k]}", ["'contxt'", "nearest: ctx"]),
        ("command: estimate\ngrid: {ctx: [1k]}", ["found no model"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {ctx: []}", ["found 0 values"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {ctx: [12q]}", ["grid.ctx: found '12q'"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {gpu: [h100, h100]}", ["a value twice"]),
        ("command: estimate\nbase: {model: llama-3.1-8b}\ngrid: {ctx: {from: 8k, to: 1k, count: 3}}", ["that rises"]),
        ("command: estimate\nbase: {model: a}\ngrid: {ctx: {from: 1, to: 100M, count: 1000000},\n  batch: "
         "{from: 1, to: 1000, count: 1000}}", ["1,000,000,000 cells"]),
        ("command: simulate\nbase_file: none.yaml\ngrid: {rate: [1]}", ["none.yaml: can't be read"]),
        ("command: estimate\nbase: {model: a}\nbase_file: b\ngrid: {ctx: [1]}", ["base or base_file, not both"]),
        ("command: estimate\nbaze: 1\ngrid: {ctx: [1]}", ["line 2", "baze", "nearest: base"]),
    ],
)  # fmt: skip
def test_each_mistake_in_a_study_gets_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_study(path)
    for word in words:
        assert word in str(caught.value)


def test_ranges(tmp_path: Path) -> None:
    grid = {"ctx": {"from": "1k", "to": "1M", "count": 11, "scale": "log"}, "batch": {"from": 1, "to": 9, "count": 3}}
    study = load_study(written(tmp_path, {"command": "estimate", "base": {"model": "llama-3.1-8b"}, "grid": grid}))
    assert dict(study.axes) == {"ctx": tuple(1024 << step for step in range(11)), "batch": (1, 5, 9)}
    assert study.cells == 33
    assert study.values(4) == {"ctx": 2048, "batch": 5}
