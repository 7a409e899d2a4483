"""`kvplan sweep` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import Ran

Cli = Callable[..., Ran]
SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "study.schema.json"
STUDY: dict[str, Any] = {
    "command": "estimate",
    "base": {"gpu": "h100"},
    "grid": {"model": ["llama-3.1-8b", "gemma-3-27b"], "batch": [1, 8], "ctx": {"from": "1k", "to": "8k", "count": 8}},
}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return path


def test_a_study_to_csv_and_a_heat_map(kvplan_cli: Cli, study: Path, tmp_path: Path) -> None:
    jsonschema.validate(STUDY, json.loads(SCHEMA.read_text()))
    ran = kvplan_cli(
        "sweep", study, "-o", tmp_path / "out", "--plot", tmp_path / "map.svg", "--x", "ctx", "--y", "batch"
    )
    assert (ran.code, ran.err) == (0, "")
    assert "32 cells of estimate" in " ".join(ran.out.split())
    lines = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert len(lines) == 33
    assert lines[0].startswith("cell,model,ctx,batch,kv_cache_dtype")
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    again = json.loads(kvplan_cli("sweep", study, "-o", tmp_path / "out", "--json").out)
    assert (again["cells"], again["parts"], again["parts_before"]) == (32, 1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--format", "xlsx"), "--format: found 'xlsx', expected csv or parquet"),
        (("--engine", "dask"), "--engine: found 'dask', expected local or ray"),
        (("--address", "1.2.3.4:5"), "--address: found it without --engine ray"),
        (("--plot", "map.gif"), ".png, .svg or .pdf"),
        (("--plot", "map.svg", "--x", "gpu"), "--x: found 'gpu', expected an axis with several values"),
        (("--plot", "map.svg", "--value", "needed"), "--value: found 'needed'"),
        (("--plot", "map.svg", "--value", "model"), "--value: found 'llama-3.1-8b' in model"),
        (("--plot", "map.svg", "--value", "error"), "--value: found no number in error"),
    ],
)
def test_each_mistake_gets_one_sentence(
    kvplan_cli: Cli, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = kvplan_cli("sweep", study, "-o", tmp_path / "out", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err


def test_a_results_folder_that_is_a_file(kvplan_cli: Cli, study: Path) -> None:
    ran = kvplan_cli("sweep", study, "-o", study)
    assert ran.code == 2
    assert "can't be written" in ran.err
