"""`kvplan models` and `kvplan gpus`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.cli.test_estimate import LLAMA_CONFIG, write_config
from tests.conftest import Ran

Cli = Callable[..., Ran]


def test_list_filters_by_trait(kvplan_cli: Cli) -> None:
    every = json.loads(kvplan_cli("models", "list", "--json").out)
    latent = json.loads(kvplan_cli("models", "list", "--trait", "mla", "--trait", "indexer", "--json").out)
    assert 0 < len(latent) < len(every) == 228
    assert all({"mla", "indexer"} <= set(model["traits"]) for model in latent)
    assert "deepseek-v3.2" in {model["id"] for model in latent}
    text = kvplan_cli("models", "list", "--trait", "csa").out
    assert "deepseek-v4-pro" in text
    ran = kvplan_cli("models", "list", "--trait", "mlaa")
    assert (ran.code, ran.out) == (2, "")
    assert "--trait: found 'mlaa'" in ran.err
    assert "nearest: mla" in ran.err


def test_show_prints_the_spec(kvplan_cli: Cli) -> None:
    spec = yaml.safe_load(kvplan_cli("models", "show", "gemma-3-27b").out)
    assert spec["blocks"]["local"]["window"] == 1024
    assert json.loads(kvplan_cli("models", "show", "gemma-3-27b", "--json").out)["id"] == spec["id"]


def test_import_writes_a_spec_that_can_be_used(kvplan_cli: Cli, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    target = tmp_path / "specs" / "mine.yaml"
    target.parent.mkdir()
    assert kvplan_cli("models", "import", config, "-o", target).code == 0
    spec = yaml.safe_load(target.read_text())
    ran = kvplan_cli("estimate", spec["id"], "--model-dir", target.parent, "--ctx", "128k", "--json")
    assert json.loads(ran.out)["cache"]["needed_bytes"] == 40 << 30
    assert yaml.safe_load(kvplan_cli("models", "import", config).out) == spec
    refused = kvplan_cli("models", "import", config, "-o", tmp_path / "absent" / "x.yaml")
    assert refused.code == 2
    assert "can't be written" in refused.err


def test_lint_finds_what_differs(kvplan_cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    assert kvplan_cli("models", "import", write_config(tmp_path), "-o", spec).code == 0
    document = yaml.safe_load(spec.read_text())
    document["hf_ids"] = ["own/model"]
    spec.write_text(yaml.safe_dump(document))
    config = tmp_path / "own--model.json"
    config.write_text(json.dumps(LLAMA_CONFIG))
    assert kvplan_cli("models", "lint", spec, "--configs", tmp_path).code == 0
    config.write_text(json.dumps({**LLAMA_CONFIG, "num_key_value_heads": 16}))
    ran = kvplan_cli("models", "lint", spec, "--configs", tmp_path)
    assert ran.code == 1
    assert "blocks is" in ran.out
    spec.write_text("id: [")
    broken = kvplan_cli("models", "lint", spec, "--json")
    assert broken.code == 1
    assert len(json.loads(broken.out)["problems"]) == 1


def test_gpus(kvplan_cli: Cli) -> None:
    devices = json.loads(kvplan_cli("gpus", "list", "--json").out)
    assert len(devices) == 93
    h100 = json.loads(kvplan_cli("gpus", "show", "h100", "--json").out)
    assert h100["memory_bytes"] == 81559 << 20  # nvidia-smi's total
    assert "81,559 MiB" in kvplan_cli("gpus", "show", "H100").out
    assert "h200" in kvplan_cli("gpus", "list").out
    assert kvplan_cli("gpus", "show", "h1000").code == 2


def test_version_and_help(kvplan_cli: Cli) -> None:
    assert kvplan_cli("--version").out.startswith("kvplan 0.")
    ran = kvplan_cli("estimate", "--help")
    assert ran.code == 0
    assert "3 architecture not supported" in " ".join(ran.out.split())
    assert kvplan_cli("models", "frobnicate").code == 2


def test_import_writes_to_stdout_for_a_dash_and_into_no_folder(kvplan_cli: Cli, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert kvplan_cli("models", "import", config, "-o", "-").out == kvplan_cli("models", "import", config).out
    for target in ("", tmp_path):
        ran = kvplan_cli("models", "import", config, "-o", target)
        assert (ran.code, ran.out) == (2, "")
        assert "found a directory, expected a file's name" in ran.err and ran.err.count("\n") == 1
