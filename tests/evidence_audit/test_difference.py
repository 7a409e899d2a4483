"""Two logs explained, and a plan held against what came."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvplan.errors import InputError
from kvplan.evidence import audit as audits
from kvplan.evidence import difference as differences
from kvplan.evidence.ask import Given
from kvplan.evidence.reader import read_lines, read_log
from kvplan.evidence.runs import LogRun
from tests.evidence_audit.log_text import v0_profile, vllm_cases, vllm_log
from tests.evidence_audit.test_cases import device_of

CASES = {case["id"]: case for case in vllm_cases()}


def runs(case: dict[str, Any]) -> tuple[LogRun, ...]:
    return read_log(io.BytesIO(vllm_log(case).encode()))


def between(first: str, second: str) -> differences.Difference:
    return differences.difference(runs(CASES[first]), runs(CASES[second]), Given(device=device_of(CASES[first])))


def test_context_parallelism_explains_eight_times_the_tokens() -> None:
    # vllm-project/recipes, Kimi-K2-Thinking: 715,072 tokens, and 5,721,088 with --decode-context-parallel-size 8
    answer = between("mla-kimi-k2-thinking-tp8", "mla-kimi-k2-thinking-tp8-dcp8")
    (change,) = [change for change in answer.changes if change.name == "decode_context_parallel_size"]
    assert (change.before, change.after) == ("1", "8")
    assert change.effect_tokens == pytest.approx(5721088 - 715072, rel=1e-3)
    assert "8.00x" in answer.verdict
    assert "decode_context_parallel_size" in answer.verdict


def test_memory_explains_what_settings_do_not() -> None:
    # one block less of 2 x 3090 with peer-to-peer on: 622,408 to 620,944 tokens (noonghunna/club-3090 294 and 295)
    answer = between("v1-qwen2vl-2b-4gb-gmu65", "v1-qwen2vl-2b-4gb-gmu80")
    names = {change.name: change for change in answer.changes}
    assert (names["share"].before, names["share"].after) == ("0.65", "0.8")
    assert names["KV cache alone"].effect_tokens == pytest.approx(25008 - 2544, rel=0.01)


def test_a_library_outside_the_allocator_is_found_in_the_difference() -> None:
    # InternLM/turbomind issue 14: a repacking library took 8.9 GiB beside the allocator; total and share are inferred
    def log(**sizes: float) -> tuple[LogRun, ...]:
        head = (
            "INFO Initializing an LLM engine (v0.7.3) with config: model='some/awq', max_seq_len=4096, dtype=torch.half"
        )
        return read_lines([head, *v0_profile({"total_gib": 29.97, "gpu_memory_utilization": 0.9, **sizes})])

    before = log(weights_gib=9.09, non_torch_gib=0.23, activation_gib=4.10, available_gib=13.55)
    after = log(weights_gib=9.30, non_torch_gib=9.17, activation_gib=4.09, available_gib=4.42)
    answer = differences.difference(before, after, Given())
    changes = {change.name: change for change in answer.changes}
    assert changes["non-torch"].says == "+8.940 GiB"
    assert changes["KV cache"].says == "-9.130 GiB"
    assert "activation" not in changes
    assert "large-non-torch" in {finding.rule for finding in answer.after.findings}
    assert answer.after.memory.closes


def test_the_same_start_differs_in_nothing() -> None:
    answer = between("lm-qwen3-8b-h100", "lm-qwen3-8b-h100")
    assert answer.changes == ()
    assert "nothing else differs" in answer.verdict


def test_a_release_that_counts_otherwise_is_named() -> None:
    old = dict(CASES["hy-qwen35-27b-h20-logbug"])
    new = {**old, "version": "0.22.0", "observed": {**old["observed"], "kv_tokens": 1082800}}
    given = Given(device=device_of(old))
    answer = differences.difference(runs(old), runs(new), given)
    assert answer.changes[0].kind == "version"
    assert "counted by different rules" in answer.verdict


@pytest.mark.parametrize("case", ["v1-qwen3-235b-fp8-4xl40s-ep", "v1-qwen25-32b-awq-24gb", "v0-llama31-8b-3090-20k"])
def test_documents_keep_their_schema(case: str) -> None:
    given = Given(device=device_of(CASES[case]))
    document = json.loads(json.dumps(audits.audit(runs(CASES[case]), given).to_dict()))
    jsonschema.validate(document, audits.json_schema())
    both = differences.difference(runs(CASES[case]), runs(CASES["lm-qwen3-8b-h100"]), given).to_dict()
    jsonschema.validate(json.loads(json.dumps(both)), differences.json_schema())


def test_a_plan_drifts(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"engine": {"capacity_tokens": 400000, "max_model_len": 40960, "available_bytes": [7, 9]}})
    )
    answer = audits.audit(runs(CASES["lm-qwen3-8b-h100"]), Given(), plan=plan)
    found = {item.name: item for item in answer.drift}
    assert found["capacity_tokens"].error == pytest.approx(400000 / 366400 - 1)
    assert found["max_model_len"].error == 0
    assert found["available_bytes"].planned == 7


@pytest.mark.parametrize("text", ["{}", '{"engine": 1}', "[1]", "no json", '{"engine": {"name": "vllm"}}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    with pytest.raises(InputError):
        audits.audit(runs(CASES["lm-qwen3-8b-h100"]), Given(), plan=plan)
