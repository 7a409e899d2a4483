"""The simulator against a real vLLM 0.19.0 run: 300 ShareGPT requests at 10/s, Llama-3.1-8B on one RTX PRO 6000.

Source: casys-kaist/LLMServingSim bench/examples/RTXPRO6000/Llama-3.1-8B/vllm/requests.jsonl (MIT, commit 5daddb2).
max_num_seqs 128, max_num_batched_tokens 2048; the slots bind, not the blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.simulator.fit import fit_scale, read_measured
from kvplan.simulator.scenario import parse_scenario

MEASURED = Path(__file__).parents[1] / "evidence" / "vllm_measured_rtxpro6000_llama31_8b.csv"


def fit(kind: str = "calibrated", rows: int = 100) -> dict[str, Any]:
    document = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "rtx-pro-6000-server"},
        "engine": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
        "step_time": {"kind": kind},
        "workload": {"trace": {"path": "measured.csv", "time_unit": "s"}},
    }
    return fit_scale(parse_scenario(document, "measured"), Path("measured.yaml"), MEASURED, rows)


def test_the_file_is_the_published_run() -> None:
    rows = read_measured(MEASURED)
    assert len(rows) == 300
    assert sum(row.output for row in rows) == 195_753
    assert max(row.end for row in rows) == pytest.approx(65.93, abs=0.01)
    assert sum(row.ttft for row in rows) / 300 == pytest.approx(7.097, abs=0.03)


def test_measured_run_with_one_constant_fitted_on_its_first_hundred() -> None:
    found = fit()
    assert abs(found["output_tokens_per_s"]["error"]) < 0.05
    assert abs(found["tpot_mean_s"]["error"]) < 0.10
    assert abs(found["ttft_mean_s"]["error"]) < 0.15
    assert 0.95 < found["scale"] < 1.05  # the factors alone are near; the constant only trims them


def test_a_bare_roofline_is_too_fast() -> None:
    assert fit("roofline")["scale"] > 1.3


def test_a_measured_run_must_be_whole(tmp_path: Path) -> None:
    lines = MEASURED.read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join(line.replace("first_token_s", "ttft") for line in lines[:3]))
    with pytest.raises(InputError, match="found no column first_token_s"):
        read_measured(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(lines[0] + "\n10,5,2.0,2.0,2.0,1.0,3.0\n")
    with pytest.raises(InputError, match="line 2: found times out of order"):
        read_measured(tmp_path / "b.csv")
