"""What is wrong with a check is one sentence with its place and exit code 2: a check of nothing must not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]
HEAD = "expectations:\n  - name: a\n    model: llama-3.1-8b\n"
SERVE = "expectations:\n  - name: a\n    command: vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192\n"

BAD = [
    ("", "found an empty file"),
    ("# nothing\n", "found null"),
    ("expectations: []\n", "line 1: found no expectations"),
    ("expectations:\n", "line 1: found no expectations"),
    ("a: [1, 2\n", "line 2, column 1"),
    ("expectations:\n  - name: a\n\tmodel: b\n", "line 3, column 1"),
    (f"{HEAD}    expect: fits\nexpectations: []\n", "line 5, column 1: found the key 'expectations' twice"),
    (f"{HEAD}    expect: [kv_byte_per_token <= 1]\n", "line 4: expect: found the unknown figure 'kv_byte_per_token'"),
    (f"{HEAD}    expect: [kv_byte_per_token <= 1]\n", "nearest: kv_bytes_per_token"),
    (f"{HEAD}    expect: [max_concurrency]\n", "found 'max_concurrency', expected a comparison"),
    (f"{HEAD}    expect: [capacity_tokens >= many]\n", "capacity_tokens: found 'many', expected a whole number"),
    (f"{HEAD}    expect: [weights_gib <= 3 at 4k]\n", "found 'at' beside weights_gib"),
    (f"{HEAD}    expect: []\n", "line 4: expectations.0.expect: found []"),
    (f"{HEAD}    exspect: fits\n", "exspect: found an unknown key, expected one of the schema's; nearest: expect"),
    (f"{HEAD}    hardware: 3\n    expect: fits\n", "line 4: expectations.0.hardware: found 3, expected a device"),
    (f"{HEAD}    hardware: h1000\n    expect: fits\n", "found the unknown device 'h1000'"),
    (f"{HEAD}    expect: capacity_tokens >= 1\n", "found no engine in the expectation"),
    (f"{HEAD}    expect: ttft_p99 <= 2s\n", "found ttft_p99 without a scenario"),
    (f"{HEAD}    scenario: no.yaml\n    expect: ttft_p99 <= 2s\n", "scenario: found no file 'no.yaml'"),
    (f"{HEAD}    expect: no worse than the baseline by 200 %\n", "found '200' %, expected a share from 0 to 100 %"),
    (f"{HEAD}    expect: no worse than the baseline\n", "found no baseline, expected --baseline FILE"),
    (f"{HEAD}    command: vllm serve x\n    manifest: y\n    expect: fits\n", "found both command and manifest"),
    (f"{HEAD}    flags: {{max_model_len: 1}}\n    expect: fits\n", "found flags without an engine"),
    (f"{HEAD}    manifest: ../../outside.yaml\n    expect: fits\n", "which lies outside the repository"),
    (f"{HEAD}    manifest: /etc/passwd\n    expect: fits\n", "which lies outside the repository"),
    (f"{HEAD}    manifest: gone.yaml\n    expect: fits\n", "found no file 'gone.yaml'"),
    (f"{HEAD}    expect: fits\n  - name: a\n    model: b\n    expect: fits\n",
     "line 5: found the name 'a' a second time (first on line 2)"),
    (f"{SERVE}    expect: fits\n", "found no GPU model"),
    (f"{SERVE}    engine: sglang\n    hardware: h100\n    expect: fits\n", "found 'sglang' beside a command of vllm"),
    ("expectations:\n  - name: a\n    command: echo hello\n    hardware: h100\n    expect: fits\n",
     "line 3: command: found"),
    ("expectations:\n  - name: a\n    command: vllm serve ${MODEL}\n    hardware: h100\n    expect: fits\n",
     "expected model: in the expectation"),
    ("expectations:\n  - name: a\n    model: lama-3.1-8b\n    hardware: h100\n    expect: fits\n", "nearest: "),
    ("schema_version: 2\nexpectations:\n  - name: a\n    model: b\n    expect: fits\n", "found 2, expected 1"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outside.yaml").write_text("a: 1")
    inside = tmp_path / "ci" / "repository"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    return inside


def one_sentence(ran: Ran, code: int = 2) -> str:
    assert ran.code == code
    assert ran.err.startswith("kvplan: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_one_sentence_each(kvplan_cli: Cli, place: Path, text: str, said: str) -> None:
    (place / "capacity.yaml").write_text(text)
    err = one_sentence(kvplan_cli("check", "capacity.yaml"))
    assert said in err
    assert "capacity.yaml" in err or "baseline" in said


TEMPLATE = "kind: Deployment\nspec:\n  replicas: {{ .Values.replicas }}\n  args: [vllm, serve, {{ .Values.model }}]\n"
THREE = "#!/bin/sh\nvllm serve Qwen/Qwen3-8B &\nvllm serve Qwen/Qwen3-32B &\nvllm serve Qwen/Qwen3-14B\n"


def test_files_that_start_nothing_or_are_templates(kvplan_cli: Cli, place: Path) -> None:
    (place / "chart.yaml").write_text(TEMPLATE)
    (place / "empty.yaml").write_text("")
    (place / "other.yaml").write_text("kind: Service\nmetadata: {name: a}\n")
    assert "render" in one_sentence(kvplan_cli("check", "--manifest", "chart.yaml", "--gpu", "h100"))
    assert "found an empty file" in one_sentence(kvplan_cli("check", "--manifest", "empty.yaml", "--gpu", "h100"))
    assert "starts an engine" in one_sentence(kvplan_cli("check", "--manifest", "other.yaml", "--gpu", "h100"))
    assert "can't be read" in one_sentence(kvplan_cli("check", "gone.yaml"))
    assert "found nothing to check" in one_sentence(kvplan_cli("check"))


def test_three_commands_are_each_checked_and_named(kvplan_cli: Cli, place: Path) -> None:
    (place / "serve.sh").write_text(THREE)
    ran = kvplan_cli("check", "--manifest", "serve.sh", "--gpu", "h200", "--json")
    fits = [each for each in json.loads(ran.out)["verdicts"] if each["metric"] == "fits"]
    assert [(each["place"], each["status"]) for each in fits] == [
        ("line 2", "pass"), ("line 3", "pass"), ("line 4", "pass")
    ]  # fmt: skip


def test_variables_are_said_not_guessed(kvplan_cli: Cli, place: Path) -> None:
    (place / "serve.sh").write_text("#!/bin/sh\nvllm serve Qwen/Qwen3-8B --max-model-len $LENGTH\n")
    listed = json.loads(kvplan_cli("check", "--manifest", "serve.sh", "--list", "--json").out)
    assert listed["commands"][0]["flags"] == {"max_model_len": None}
    assert any("LENGTH" in item for item in listed["commands"][0]["not_knowable"])
    # 36 layers x 4,096 B x 40,960 tokens = 5.6 GiB; the length that isn't known fails on a card that holds neither.
    failed = kvplan_cli("check", "--manifest", "serve.sh", "--gpu", "l4")
    assert failed.code == 1
    assert kvplan_cli("check", "--manifest", "serve.sh", "--gpu", "l4", "--set", "LENGTH=4096").code == 0


def test_the_same_file_twice(kvplan_cli: Cli, place: Path) -> None:
    (place / "capacity.yaml").write_text(f"{HEAD}    expect: kv_gib <= 20\n")
    assert "the same file twice" in one_sentence(kvplan_cli("check", "capacity.yaml", "./capacity.yaml"))


def test_two_files_with_one_name_are_told_apart(kvplan_cli: Cli, place: Path) -> None:
    for folder, limit in (("a", 20), ("b", 1)):
        (place / folder).mkdir()
        (place / folder / "capacity.yaml").write_text(f"{HEAD}    expect: kv_gib <= {limit} at 128k\n")
    ran = kvplan_cli("check", "a/capacity.yaml", "b/capacity.yaml", "--json")
    assert ran.code == 1
    found = [(each["file"], each["status"]) for each in json.loads(ran.out)["verdicts"]]
    assert found == [("a/capacity.yaml", "pass"), ("b/capacity.yaml", "fail")]


def test_an_architecture_that_is_not_supported_is_exit_code_3(kvplan_cli: Cli, place: Path) -> None:
    (place / "config.json").write_text(
        json.dumps({"architectures": ["NeverSeenForCausalLM"], "model_type": "never-seen"})
    )
    (place / "capacity.yaml").write_text(
        "expectations:\n  - name: a\n    model: config.json\n    expect: kv_gib <= 1\n"
    )
    one_sentence(kvplan_cli("check", "capacity.yaml"), code=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "junitxml"), "--format: found 'junitxml'"),
        (("--output", "junit"), "--output: found 'junit', expected FORMAT=FILE"),
        (("--output", "xml=a"), "--output: found 'xml'"),
        (("--set", "A"), "--set: found 'A', expected NAME=value"),
        (("--gpu", "h1000"), "--gpu: found the unknown device"),
        (("--list",), "--list: found no --manifest"),
    ],
)
def test_options(kvplan_cli: Cli, place: Path, options: tuple[str, ...], said: str) -> None:
    (place / "capacity.yaml").write_text(f"{HEAD}    expect: kv_gib <= 20\n")
    assert said in one_sentence(kvplan_cli("check", "capacity.yaml", *options))
