"""A repository made for this test: every kind of deployment file, the right verdict, file and line for each.

Pass and fail are facts: vLLM 0.32.0's own planner (tests/golden/vllm-planner/cases.json, cases llama31-8b-too-small,
gemma3-27b-too-small and a100-dsv2-lite), and arithmetic by hand written beside each expectation in capacity.yaml.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]
REPOSITORY = Path(__file__).parent / "repository"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "repository"
    shutil.copytree(REPOSITORY, place)
    (place / ".git").mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    return place


def checked(cli: Cli, *more: object) -> tuple[int, dict[str, Any]]:
    ran = cli("check", "capacity.yaml", "--json", *more)
    return ran.code, json.loads(ran.out)


def test_everything_holds(kvplan_cli: Cli, repository: Path) -> None:
    code, report = checked(kvplan_cli)
    assert code == report["exit_code"] == 0
    assert report["counts"] == {"pass": 10, "fail": 0, "error": 0, "warning": 0, "note": 2}
    places = {(each["place"], each["metric"]) for each in report["verdicts"] if each["status"] == "pass"}
    assert ("Deployment/chat container vllm", "fits") in places
    assert ("StatefulSet/vision container server", "fits") in places
    assert ("service chat", "capacity_tokens") in places
    values = {(each["place"], each["metric"]): each["value"] for each in report["verdicts"]}
    assert values["Deployment/dsv2 container vllm", "capacity_tokens"] == 1_208_224
    assert values["Deployment/trt container server", "capacity_tokens"] == 131_072
    assert values["service chat", "capacity_tokens"] == 327_680


# file, what is replaced, by what, the rule, the line to blame, words of the verdict
BREAKS = [
    # 49,136 is the longest that the planner lets start in 6 GiB; 131,072 tokens x 128 KiB = 16 GiB.
    ("deployment.yaml", "len=49136", "len=131072", "length-over-pool", 20,
     ("16.00 GiB", "5.998 GiB available", "49,136 tokens", "--max-model-len 49136")),
    # 14,960 is the longest in 8 GiB; 19,301,662,720 B = 17.98 GiB are needed for 131,072 tokens.
    ("statefulset.yaml", "len 14960", "len 131072", "length-over-pool", 23,
     ("17.98 GiB", "14,960 tokens")),
    # 32 ranks on 2 pods of 8 GPUs.
    ("leaderworkerset.yaml", "--tp-size=16", "--tp-size=32", "more-ranks-than-devices", 21, ("32", "GPUs = 16")),
    # A number as a template prints it.
    ("rendered.yaml", '"163840"]', '"1.6384e+05"]', "refused-value", 28, ("1.6384e+05",)),
    # Two ranks on one GPU.
    ("docker-compose.yml", "--kv-cache-dtype auto", "--tp-size 2", "more-ranks-than-devices", 8, ("GPUs = 1",)),
    # 1,048,576 tokens x 128 KiB = 128 GiB.
    ("serve.sh", "--ctx-size 131072", "--ctx-size 1048576", "length-over-pool", 6, ("128.0 GiB", "20.00 GiB")),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "rule", "line", "words"), BREAKS, ids=[case[0] for case in BREAKS])
def test_one_line_turns_zero_into_one(
    kvplan_cli: Cli, repository: Path, file: str, old: str, new: str, rule: str, line: int, words: tuple[str, ...]
) -> None:
    path = repository / "deploy" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    code, report = checked(kvplan_cli)
    assert code == 1
    failed = [each for each in report["verdicts"] if each["status"] == "fail"]
    assert {each["file"] for each in failed} == {f"deploy/{file}"}
    at = [each for each in failed if each["rule"] == rule]
    assert at, [(each["rule"], each["text"]) for each in failed]
    assert line in {each["line"] for each in at}, at
    assert all(word in " ".join(each["text"] for each in at) for word in words), at


def test_a_longer_context_than_one_block_more_is_refused(kvplan_cli: Cli, repository: Path) -> None:
    path = repository / "deploy" / "deployment.yaml"
    path.write_text(path.read_text().replace("len=49136", "len=49152"))
    assert checked(kvplan_cli)[0] == 1


def test_the_manifest_alone_with_and_without_a_gpu(kvplan_cli: Cli, repository: Path) -> None:
    ran = kvplan_cli("check", "--manifest", "deploy/docker-compose.yml")
    assert ran.code == 2
    assert "found no GPU model in deploy/docker-compose.yml, expected hardware:" in ran.err
    assert kvplan_cli("check", "--manifest", "deploy/docker-compose.yml", "--gpu", "h200").code == 0
    # 16 GiB of weights and 4 GiB of cache for 32k tokens in a card of 16 GB.
    assert kvplan_cli("check", "--manifest", "deploy/docker-compose.yml", "--gpu", "rtx-4080").code == 1


def test_what_was_read(kvplan_cli: Cli, repository: Path) -> None:
    ran = kvplan_cli("check", "--manifest", "deploy/statefulset.yaml", "--list", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    (command,) = document["commands"]
    assert (command["engine"], command["engine_version"], command["model"], command["line"]) == (
        "vllm", "0.32.0", "google/gemma-3-27b-it", 22,
    )  # fmt: skip
    assert command["flags"]["max_model_len"] == 14_960
    assert "max_model_len = 14960" in kvplan_cli("check", "--manifest", "deploy/statefulset.yaml", "--list").out
