"""Every case of the record, written as its engine's log and read back through the audit."""

from __future__ import annotations

import io
from typing import Any

import pytest

from kvplan.engines.base import Device
from kvplan.evidence.ask import Given
from kvplan.evidence.audit import Audit, audit
from kvplan.evidence.reader import read_lines, read_log
from tests.evidence_audit.engine_text import engine_cases, engine_log, loaded_of
from tests.evidence_audit.log_text import GIB, START_UPS, in_all, v0_profile, vllm_cases, vllm_log

VLLM = vllm_cases()
ENGINES = engine_cases()
#: cases whose log prints nothing that another printed figure predicts
ALONE = {"llamacpp-27680-dsv4-64k", "llamacpp-pr25465-qwen36-27b-5090", "sglang-735-chatglm3-6b"}


def device_of(case: dict[str, Any]) -> Device:
    capability = case["capability"]
    pair = None if capability is None else (capability[0], capability[1])
    return Device(case["gpu"], case["memory_gib"] * GIB, pair, case.get("kind", "cuda"))


def audited(case: dict[str, Any]) -> Audit:
    return audit(read_log(io.BytesIO(vllm_log(case).encode())), Given(device=device_of(case)))


@pytest.mark.parametrize("case", [case for case in VLLM if "known_miss" not in case], ids=lambda case: case["id"])
def test_vllm_case_is_reproduced_from_its_log(case: dict[str, Any]) -> None:
    answer = audited(case)
    assert answer.version == case["version"]
    assert answer.checks
    assert all(check.agrees for check in answer.checks), [check for check in answer.checks if not check.agrees]
    wanted = {"available_kv_gib": "available", "needed_kv_gib": "needed", "max_conc": "concurrency"}
    assert {wanted[key] for key in wanted if key in case["observed"]} <= {figure.name for figure in answer.figures}
    if not case.get("poorest_rank"):
        assert "rank minimum" not in {check.verdict for check in answer.checks}


@pytest.mark.parametrize("case", [case for case in VLLM if "known_miss" in case], ids=lambda case: case["id"])
def test_a_known_miss_is_said(case: dict[str, Any]) -> None:
    answer = audited(case)
    assert any(not check.agrees for check in answer.checks)
    assert "not-explained" in {finding.rule for finding in answer.findings}


@pytest.mark.parametrize("case", ENGINES, ids=lambda case: case["id"])
def test_other_engines_cases_are_reproduced(case: dict[str, Any]) -> None:
    runs = read_log(io.BytesIO(engine_log(case).encode()))
    assert len(runs) == 1
    engine = f"{case['engine']}@{case['version']}" if case.get("version") else case["engine"]
    lacking = {name: value for name, value in case["settings"].items() if name not in runs[0].flags}
    answer = audit(runs, Given(loaded_of(case), engine=engine, settings=lacking))
    assert bool(answer.checks) == (case["id"] not in ALONE)
    assert all(check.agrees for check in answer.checks), [check for check in answer.checks if not check.agrees]


@pytest.mark.parametrize("case", START_UPS["budgets"], ids=lambda case: case["id"])
def test_printed_memory_adds_up_or_is_said_not_to(case: dict[str, Any]) -> None:
    memory, version = case["memory"], case["version"]
    head = f"INFO Initializing an LLM engine (v{version}) with config: model='x/y', max_seq_len=16000, dtype=torch.half"
    lines = v0_profile(memory) if version < "0.8" else [
        f"INFO Available KV cache memory: {memory['available_gib']:.2f} GiB", in_all(memory)
    ]  # fmt: skip
    answer = audit(read_lines([head, *lines]), Given())
    rules = {finding.rule for finding in answer.findings}
    assert answer.memory.closes is (case["verdict"] == "budget_closes")
    assert ("memory-does-not-add-up" in rules) is (case["verdict"] != "budget_closes")
    if "solved_utilization" in case:
        assert answer.memory.solved_share == pytest.approx(case["solved_utilization"], abs=0.001)
    assert ("no-room-for-cache" in rules) is (memory["available_gib"] <= 0)


def test_the_record_is_whole() -> None:
    assert len(VLLM) == 52
    assert len(ENGINES) == 84
    assert len({case["id"] for case in VLLM}) == len(VLLM)
