"""The record of cases: it holds, a user's log becomes one, and nothing personal gets in."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.evidence.ask import Given
from kvplan.evidence.case import VERDICTS, add_case, case_document, read_cases, run_case
from kvplan.evidence.reader import read_log
from kvplan.hardware.accelerators import find
from tests.evidence_audit.log_text import vllm_cases, vllm_log

PERSONAL = """\
2026-01-02T10:00:00Z gpu-node-17.corp.example.com vllm[4242]: user=alice
(APIServer pid=1) INFO [utils.py:328] non-default args: {{'model': '/home/alice/models/secret-model', \
'api_key': ['sk-abc123'], 'served_model_name': ['alice-llm'], 'host': '10.20.30.40', 'hf_token': 'hf_QwErTy', \
'download_dir': '/mnt/alice', 'kv_cache_dtype': '/home/alice/x', \
'max_model_len': 40960, 'max_num_seqs': 64, 'ssl_keyfile': '/etc/alice.pem'}}
{log}
INFO:     192.168.7.9:51234 - "POST /v1/chat/completions?user=alice HTTP/1.1" 200 OK
"""


def test_no_case_of_the_record_is_worse_than_recorded() -> None:
    outcomes = [run_case(case) for case in read_cases()]
    assert [outcome.id for outcome in outcomes if not outcome.held] == []
    assert sum(outcome.verdict in VERDICTS[:3] for outcome in outcomes) >= 50


def test_a_log_becomes_a_case_that_holds(tmp_path: Path) -> None:
    for index, case in enumerate(vllm_cases()[::9]):
        runs = read_log(io.BytesIO(vllm_log(case).encode()))
        document = case_document(f"mine-{index}", runs, Given(accelerator=find("h100-sxm")))
        add_case(tmp_path / f"mine-{index}.json", document)
    cases = read_cases(tmp_path)
    assert len(cases) == len(vllm_cases()[::9])
    for case in cases:
        outcome = run_case(case)
        assert outcome.held
        assert outcome.verdict == case.verdict


def test_a_case_that_gets_worse_is_seen(tmp_path: Path) -> None:
    log = vllm_log(next(case for case in vllm_cases() if case["id"] == "lm-qwen3-8b-h100"))
    document = case_document("mine", read_log(io.BytesIO(log.encode())), Given())
    for figure in document["figures"]:
        if figure["name"] == "tokens":
            figure["value"] += 5000
    add_case(tmp_path / "mine.json", document)
    (case,) = read_cases(tmp_path)
    assert not run_case(case).held


def test_nothing_personal_gets_into_a_case() -> None:
    log = vllm_log(next(case for case in vllm_cases() if case["id"] == "lm-qwen3-8b-h100"))
    log = log.replace("Qwen/Qwen3-8B", "/home/alice/models/secret-model")
    runs = read_log(io.BytesIO(PERSONAL.format(log=log).encode()))
    text = json.dumps(case_document("mine", runs, Given()))
    for secret in ("alice", "secret", "corp", "10.20", "192.168", "sk-abc", "hf_", "/home", "/mnt", "pem", "gpu-node"):
        assert secret not in text
    document = json.loads(text)
    assert document["settings"]["max_num_seqs"] == 64
    assert document["model"] is None
    assert any(figure["name"] == "tokens" for figure in document["figures"])


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "-x", "x" * 81])
def test_a_bad_id_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--id"):
        case_document(name, (), Given())


def test_a_case_is_not_overwritten(tmp_path: Path) -> None:
    add_case(tmp_path / "x.json", {"id": "x"})
    with pytest.raises(InputError, match="of that name"):
        add_case(tmp_path / "x.json", {"id": "y"})


@pytest.mark.parametrize("text", ["1", "{", '{"figures": 3}', '[{"id": "x"}]', '{"figures": [{"name": "a"}]}'])
def test_what_is_no_case_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError):
        read_cases(tmp_path)
