"""The 26 deployment files of tests/evidence/manifests, each read as its expected.yaml says.

The expected values were worked out by hand from the files and each engine's argument rules (the file's own header).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.check.manifests import FoundCommand, ManifestReading, read_manifest

FOLDER = Path(__file__).parent.parent / "evidence" / "manifests"
EXPECTED: list[dict[str, Any]] = yaml.safe_load((FOLDER / "expected.yaml").read_text())["files"]
NAMES = [entry["file"] for entry in EXPECTED]

# The line where each launch starts: the first word of the command, or the image where the engine needs none.
LINES = {
    "01-k8s-args-equals.yaml": [24],
    "02-k8s-vllm-serve-pairs.yaml": [24],
    "03-k8s-shell-script-env.yaml": [25],
    "04-k8s-dollar-paren-configmap.yaml": [27],
    "05-compose-folded-string.yml": [15],
    "06-compose-list-json-flags.yml": [6],
    "07-docker-run.sh": [6],
    "08-serve-array.sh": [18],
    "09-slurm-two-nodes.sbatch": [17],
    "10-k8s-sglang-equals.yaml": [18],
    "11-compose-sglang-dp.yml": [7],
    "12-lws-sglang-two-nodes.yaml": [18, 47],
    "13-lws-vllm-ray.yaml": [20],
    "14-llama-server.service": [12],
    "15-compose-llama-short-flags.yml": [8],
    "16-compose-llama-env-only.yml": [13],
    "17-k8s-trtllm-config-overrides.yaml": [37],
    "18-k8s-ollama-poststart.yaml": [17],
    "19-compose-ollama-rocm.yml": [3],
    "20-k8s-amd-vllm.yaml": [18],
    "21-kserve-runtime.yaml": [32],
    "22-rayservice-llm.yaml": [18],
    "23-skypilot-task.yaml": [16],
    "24-readme-snippets.md": [7, 20, 27, 33],
    "25-k8s-prefill-decode.yaml": [17, 51],
    "26-k8s-vllm-config-file.yaml": [33],
}
# What each finding of `should_flag` must hold, by rule.
FLAGGED = {
    "02-k8s-vllm-serve-pairs.yaml": [("unchunked-budget", ("4,096", "16,384"))],
    "04-k8s-dollar-paren-configmap.yaml": [("removed-flag", ("--swap-space", "0.18.0"))],
    "05-compose-folded-string.yml": [("compose-defaults", ("MAX_LEN", "GPU_UTIL", "VLLM_TAG"))],
    "06-compose-list-json-flags.yml": [("state-pool", ("num_speculative_tokens", "max_num_seqs"))],
    "11-compose-sglang-dp.yml": [("separate-pools", ("8 ranks", "8 separate"))],
    "13-lws-vllm-ray.yaml": [("length-unset", ("max_model_len", "131072"))],
    "14-llama-server.service": [("context-split", ("16,384",))],
    "15-compose-llama-short-flags.yml": [("context-split", ("16,384",)), ("wide-windows", ("1024",))],
    "16-compose-llama-env-only.yml": [("flag-overrides-variable", ("--ctx-size 65536", "LLAMA_ARG_CTX_SIZE 131072"))],
    "17-k8s-trtllm-config-overrides.yaml": [("options-file-wins", ("0.8", "0.95"))],
    "18-k8s-ollama-poststart.yaml": [("context-multiplied", ("16,384", "65,536", "4 parallel"))],
    "19-compose-ollama-rocm.yml": [("length-unset", ("OLLAMA_CONTEXT_LENGTH", "card"))],
    "20-k8s-amd-vllm.yaml": [("latent-on-every-rank", ("MLA", "TP 8"))],
    "22-rayservice-llm.yaml": [("replicas-exceed-devices", ("3 replicas", "6 GPUs"))],
}
# What must be named as unknown, in words of each statement.
UNKNOWN = {
    "04-k8s-dollar-paren-configmap.yaml": ["site-overrides, key gpu-util"],
    "05-compose-folded-string.yml": ["GPU model", "MAX_LEN", "GPU_UTIL", "VLLM_TAG"],
    "06-compose-list-json-flags.yml": ["GPU model"],
    "07-docker-run.sh": ["GPU model"],
    "08-serve-array.sh": ["GPU model", "engine version", "MODEL", "PORT"],
    "09-slurm-two-nodes.sbatch": ["h100 may be PCIe, SXM or NVL", "engine version"],
    "11-compose-sglang-dp.yml": ["GPU model and count"],
    "13-lws-vllm-ray.yaml": ["GPU model", "/opt/cluster/join.sh"],
    "14-llama-server.service": ["GPU model", "/etc/default/llama", "LLAMA_PORT", "GGUF header"],
    "15-compose-llama-short-flags.yml": ["GPU model", "server-cuda"],
    "16-compose-llama-env-only.yml": ["GPU model and count"],
    "18-k8s-ollama-poststart.yaml": ["which models clients will load", "its own num_ctx"],
    "19-compose-ollama-rocm.yml": ["GPU model and count", "context length"],
    "20-k8s-amd-vllm.yaml": ["latest"],
    "22-rayservice-llm.yaml": ["vLLM version inside the Ray image"],
    "23-skypilot-task.yaml": ["envs are overridden"],
    "24-readme-snippets.md": ["GPU model and count"],
    "25-k8s-prefill-decode.yaml": ["engine version behind the image"],
}


@pytest.fixture(scope="module")
def readings() -> dict[str, ManifestReading]:
    return {name: read_manifest(FOLDER / name) for name in NAMES}


def test_every_file_is_expected() -> None:
    held = sorted(path.name for path in FOLDER.iterdir() if path.name != "expected.yaml")
    assert held == sorted(NAMES)
    assert len(NAMES) == 26
    assert sorted(LINES) == sorted(NAMES)


@pytest.mark.parametrize("entry", EXPECTED, ids=NAMES)
def test_each_engine_as_stated(entry: dict[str, Any], readings: dict[str, ManifestReading]) -> None:
    reading = readings[entry["file"]]
    assert len(reading.commands) == entry["launch_commands"]
    assert len(reading.engines) == len(entry["engines"])
    for found, expected in zip(reading.engines, entry["engines"], strict=True):
        assert said(found) == wanted(expected)


def said(found: FoundCommand) -> dict[str, Any]:
    command = found.command
    return {
        "engine": command.engine,
        "version": command.version,
        "model": command.model,
        "flags": dict(command.flags),
        "ignored": set(command.ignored),
        "unknown": list(command.unknown),
        "device": (found.accelerator.name, found.accelerator.count),
        "replicas": found.replicas,
        "nodes": found.nodes,
        "context": (found.context_per_slot, found.context_total),
    }


def wanted(expected: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": expected["engine"],
        "version": expected["engine_version"],
        "model": expected["model"],
        "flags": expected["flags"],
        "ignored": set(expected["ignored"]),
        "unknown": expected["unknown"],
        "device": (expected["accelerator"]["name"], expected["accelerator"]["count"]),
        "replicas": expected["replicas"],
        "nodes": expected.get("nodes", 1),
        "context": (expected.get("context_per_slot"), expected.get("context_total")),
    }


@pytest.mark.parametrize("entry", EXPECTED, ids=NAMES)
def test_certainty_and_hints(entry: dict[str, Any], readings: dict[str, ManifestReading]) -> None:
    for found, expected in zip(readings[entry["file"]].engines, entry["engines"], strict=True):
        certainty = expected["accelerator"]["certainty"]
        stated = certainty if certainty in ("stated", "inferred") else None
        if stated:
            assert found.accelerator.certainty == stated
        elif expected["accelerator"]["name"] is None:
            assert found.accelerator.certainty != "stated"
        if expected["model"] is None:
            model = expected["model_hint"].split(" ")[0]
            assert found.command.hint is not None
            assert found.command.hint.model == model


@pytest.mark.parametrize("name", NAMES)
def test_each_launch_at_its_line(name: str, readings: dict[str, ManifestReading]) -> None:
    assert [found.line for found in readings[name].commands] == LINES[name]
    rows = (FOLDER / name).read_text().split("\n")
    for found in readings[name].commands:
        for flag, line in found.command.lines.items():
            held = rows[line - 1].replace("-", "_").lower()
            # A short flag or an option of the file may spell it otherwise; what has the long name has it on that line.
            assert flag in held or not any(
                flag in row.replace("-", "_").lower() for row in rows[found.line - 1 : line - 1]
            )


@pytest.mark.parametrize("name", NAMES)
def test_what_should_be_flagged(name: str, readings: dict[str, ManifestReading]) -> None:
    entry = EXPECTED[NAMES.index(name)]
    expected = FLAGGED.get(name, [])
    assert bool(expected) == bool(entry["should_flag"])
    for rule, parts in expected:
        texts = [finding.text for finding in readings[name].findings if finding.rule == rule]
        assert any(all(part in text for part in parts) for text in texts), (rule, texts)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_called_wrong_that_starts(name: str, readings: dict[str, ManifestReading]) -> None:
    errors = {finding.rule for finding in readings[name].findings if finding.level == "error"}
    assert errors == ({"unchunked-budget"} if name[:2] == "02" else {"removed-flag"} if name[:2] == "04" else set())


@pytest.mark.parametrize("name", NAMES)
def test_what_cant_be_known_is_named(name: str, readings: dict[str, ManifestReading]) -> None:
    reading = readings[name]
    notes = [*reading.not_knowable]
    for found in reading.commands:
        notes += [*found.command.not_knowable, *found.not_knowable]
    for part in UNKNOWN.get(name, []):
        assert any(part in note for note in notes), (part, notes)
    if not EXPECTED[NAMES.index(name)]["not_knowable"]:
        assert notes == []


@pytest.mark.parametrize("name", NAMES)
def test_the_listing_is_plain_json(name: str, readings: dict[str, ManifestReading]) -> None:
    data = json.loads(json.dumps(readings[name].to_dict()))
    assert data["launch_commands"] == len(data["commands"])
    for command in data["commands"]:
        assert {"at", "path", "line", "engine", "engine_version", "model", "flags", "ignored", "unknown"} <= set(
            command
        )
        assert {"accelerator", "replicas", "not_knowable"} <= set(command)


def test_a_python_call_is_a_hint_and_no_launch(readings: dict[str, ManifestReading]) -> None:
    assert readings["24-readme-snippets.md"].hints == ("line 39: a Python call starts Qwen/Qwen3-8B",)


def test_set_fills_what_the_file_leaves_open() -> None:
    reading = read_manifest(FOLDER / "04-k8s-dollar-paren-configmap.yaml", variables={"UTIL": "0.91"})
    assert reading.commands[0].command.flags["gpu_memory_utilization"] == 0.91
    assert reading.commands[0].command.not_knowable == ()
    tagged = read_manifest(
        FOLDER / "05-compose-folded-string.yml", variables={"VLLM_TAG": "v0.20.0", "MAX_LEN": "8192"}
    )
    assert tagged.commands[0].command.version == "0.20.0"
    assert tagged.commands[0].command.flags["max_model_len"] == 8192
