"""Findings: each rule met by a log that deserves it, gains that the engine's model gives, a section for each id."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.base import Device
from kvplan.evidence.ask import Given
from kvplan.evidence.audit import Audit, audit
from kvplan.evidence.findings import SEVERITIES, rules
from kvplan.evidence.reader import read_lines, read_log
from tests.evidence_audit.log_text import vllm_cases, vllm_log
from tests.evidence_audit.test_cases import audited

DOCS = Path(__file__).parents[2] / "docs" / "findings.md"
CASES = {case["id"]: case for case in vllm_cases()}
HEAD = (
    "INFO Initializing a V1 LLM engine (v0.11.0) with config: model='{model}', max_seq_len=4096, dtype=torch.bfloat16"
)


def ask(*lines: str, model: str = "Qwen/Qwen3-8B", **settings: Any) -> Audit:
    return audit(read_lines([HEAD.format(model=model), *lines]), Given(settings=settings))


def by_rule(answer: Audit) -> dict[str, Any]:
    return {finding.rule: finding for finding in answer.findings}


def test_a_printed_count_that_misleads_is_told_with_the_real_one() -> None:
    # vllm-project/vllm issue 40691: 290,864 printed, 1487 blocks / 45 a request x 32,768 = 1,082,800 held
    answer = audited(CASES["hy-qwen35-27b-h20-logbug"])
    found = by_rule(answer)["printed-tokens-mislead"]
    assert "3.7x" in found.says
    assert answer.meaning is not None
    assert answer.meaning.rule == "groups"
    assert answer.meaning.full_length_tokens == pytest.approx(1082800, rel=0.001)


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        ("lm-qwen3-8b-h100", "groups"),
        ("hy-qwen36-35b-nvfp4-5090-a", "concurrency"),
        ("v0-llama31-8b-3090-20k", "gpu_blocks"),
    ],
)
def test_what_the_count_means_depends_on_the_release(case: str, rule: str) -> None:
    meaning = audited(CASES[case]).meaning
    assert meaning is not None
    assert meaning.rule == rule


@pytest.mark.parametrize(
    ("named", "model", "assumed"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b", False),
        ("/data/models/Qwen3-8B/", "qwen3-8b", False),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0a1b2c", "qwen3-8b", False),
        ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", True),
        ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8", "qwen2.5-7b", True),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b", True),
        ("someone/Qwen3-8B-FP8-dynamic", "qwen3-8b", True),
        ("someone/Qwen3-8B-finetuned", "someone/Qwen3-8B-finetuned", False),
    ],
)
def test_the_model_a_log_names(named: str, model: str, assumed: bool) -> None:
    answer = ask("INFO Available KV cache memory: 50.32 GiB", model=named)
    assert answer.model == model
    assert any("taken as" in text for text in answer.assumptions) is assumed


def test_without_a_release_the_figures_tell_the_rule() -> None:
    lines = ["INFO GPU KV cache size: 290,864 tokens", "INFO Maximum concurrency for 32,768 tokens per request: 33.04x"]
    answer = audit(read_lines(lines), Given())
    assert answer.meaning is not None
    assert (answer.version, answer.meaning.rule) == (None, "groups")
    assert "printed-tokens-mislead" in by_rule(answer)


def test_a_window_reserves_the_batch_and_a_smaller_batch_gains() -> None:
    # 8,548 blocks: 5 groups of ceil((1023 + 4096) / 16) + 1 = 321 blocks; at 2,048: ceil(3071 / 16) + 1 = 193 each
    answer = audited(CASES["swa-gemma4-31b-bf16-2x3090"])
    found = by_rule(answer)["batch-reserve"]
    assert found.gain.before == 8548 * 131072 // (4096 + 5 * 321)
    assert found.gain.after == 8548 * 131072 // (4096 + 5 * 193)
    assert answer.binding is not None
    assert answer.binding.startswith("full attention: 4,096 of the 5,701 blocks")


def test_latent_copies_gain_by_decode_context_parallelism() -> None:
    # vllm-project/recipes: the same 46.80 GiB hold 715,072 tokens at dcp 1 and 5,721,088 at dcp 8
    found = by_rule(audited(CASES["mla-kimi-k2-thinking-tp8"]))["latent-copied"]
    assert found.gain.after == pytest.approx(5721088, rel=1e-3)
    assert found.gain.ratio == pytest.approx(8.0, rel=1e-3)
    assert "latent-copied" not in by_rule(audited(CASES["mla-kimi-k2-thinking-tp8-dcp8"]))


def test_the_simple_formula_and_why_it_misses() -> None:
    naive = audited(CASES["mla-kimi-k2-thinking-tp8"]).naive
    assert naive is not None
    assert naive.ratio == pytest.approx(1 / 8, rel=1e-3)
    assert any("latent" in reason for reason in naive.reasons)
    dense = audited(CASES["lm-llama31-70b-4xh100"]).naive
    assert dense is not None
    assert dense.ratio == pytest.approx(1, rel=1e-3)


def test_a_refusal_gives_the_longest_that_fits() -> None:
    found = by_rule(audited(CASES["v1-qwen25-32b-awq-24gb"]))["length-exceeds-pool"]
    assert found.severity == "error"
    assert "2368" in found.fix
    assert found.gain.starts


def test_unused_windows_and_a_later_release() -> None:
    # 0.8.3 charged chunked layers at full length: 24.00 GiB for 1,048,576 tokens (vllm-project/vllm issue 16118)
    found = by_rule(audited(CASES["v1-llama4-1m-needs24"]))
    assert found["windows-unused"].gain.starts


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"
TROUBLE = [
    (
        "device-not-free",
        "ValueError: Free memory on device cuda:0 (3.21/4.00 GiB) on startup is less than desired GPU memory "
        "utilization (0.85, 3.40 GiB). Decrease",
        "--gpu-memory-utilization 0.8",
    ),
    ("no-room-for-cache", "ValueError: No available memory for the cache blocks. Try increasing", "nothing is left"),
    ("no-room-for-cache", "INFO Available KV cache memory: -1.05 GiB", "1.050 GiB are missing"),
    ("sequences-exceed-states", "max_num_seqs (1024) exceeds available Mamba cache blocks (524). Each", "524"),
    (
        "heads-not-divisible",
        "Total number of attention heads (52) must be divisible by tensor parallel size (8).",
        "1, 2, 4, 13, 26, 52",
    ),
    (
        "length-beyond-checkpoint",
        "User-specified max_model_len (131072) is greater than the derived max_model_len (max_pos=8192 or",
        "8,192",
    ),
    ("out-of-memory", f"INFO GPU KV cache size: 366,400 tokens\n{OOM}", "after the pool"),
    ("out-of-memory", OOM, "before there was a pool"),
    (
        "preemptions",
        "Sequence group 1 is preempted by PreemptionMode.RECOMPUTE mode. total_num_cumulative_preemption=480",
        "480",
    ),
    (
        "ranks-differ",
        "(Worker_TP0 pid=1) INFO Available KV cache memory: 3.18 GiB\n"
        "(Worker_TP1 pid=2) INFO Available KV cache memory: 10.00 GiB",
        "TP0",
    ),
]


@pytest.mark.parametrize(("rule", "lines", "said"), TROUBLE, ids=range(len(TROUBLE)))
def test_a_line_that_tells_of_trouble_is_found(rule: str, lines: str, said: str) -> None:
    found = by_rule(ask(lines))[rule]
    assert said in f"{found.says} {found.fix}"
    assert found.lines


def test_copied_heads() -> None:
    found = by_rule(ask("INFO Available KV cache memory: 50.00 GiB", tensor_parallel_size=16))
    assert found["heads-copied"].severity == "warning"


def test_llama_cpp_slots_and_training_length() -> None:
    lines = [
        "llama_model_loader: loaded meta data",
        "print_info: n_ctx_train      = 131072",
        "llama_context: n_seq_max     = 4",
        "llama_context: n_ctx         = 131072",
        "llama_context: kv_unified    = false",
        "load_tensors: offloaded 20/33 layers to GPU",
    ]
    found = by_rule(audit(read_lines(lines), Given()))
    assert "32,768 for a request" in found["slots-split-context"].says
    assert "training-length-allocated" in found
    assert "20 of 33" in found["layers-on-host"].says


def test_worst_first_and_exit_codes() -> None:
    answer = audited(CASES["v1-qwen25-32b-awq-24gb"])
    levels = [SEVERITIES.index(finding.severity) for finding in answer.findings]
    assert levels == sorted(levels)
    assert answer.exit_code("error") == 1
    clean = audited(CASES["lm-qwen3-8b-h100"])
    assert {finding.severity for finding in clean.findings} == {"note"}
    assert (clean.exit_code("error"), clean.exit_code("warning"), clean.exit_code("note")) == (0, 0, 1)


def test_every_rule_has_a_section_and_every_section_a_rule() -> None:
    sections = [
        line.removeprefix("## ") for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("## ")
    ]
    assert sorted(sections) == sorted(rules())
    assert all(entry["severity"] in SEVERITIES for entry in rules().values())


def test_gains_are_real_answers() -> None:
    for case in CASES.values():
        for finding in audited(case).findings:
            if finding.gain is not None and not finding.gain.starts:
                assert finding.gain.after > finding.gain.before > 0


def test_the_gpu_adds_predicted_terms() -> None:
    from kvplan.hardware.accelerators import find

    runs = read_log(io.BytesIO(vllm_log(CASES["lm-qwen3-8b-h100"]).encode()))
    answer = audit(runs, Given(accelerator=find("h100-sxm")))
    terms = {term.name: term for term in answer.memory.terms}
    pool = terms["KV cache"]
    assert pool.low is not None
    assert pool.observed is not None
    assert pool.high is not None
    assert pool.low <= pool.observed <= pool.high
    assert audit(runs, Given(device=Device("any", 80 << 30, (9, 0)))).memory.terms[0].name == "KV cache"
