"""`kvplan plan` as a user meets it: answers, files written, exit codes, and one sentence for each mistake."""

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
SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
ASK = (
    "plan", "llama-3.1-8b", "--rate", "2", "--prompt", "1k", "--answer", "100", "--ttft", "1s", "--gpus", "h100,l40s",
    "--tp", "1", "--max-num-batched-tokens", "2048", "--max-gpus", "4",
)  # fmt: skip


def schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return document


def test_an_answer_in_words(kvplan_cli: Cli) -> None:
    ran = kvplan_cli(*ASK)
    assert (ran.code, ran.err) == (0, "")
    first = " ".join(ran.out.split()[:6])
    assert first.startswith("Rent 1 x l40s:")
    for words in (
        "Demand: 2 requests/s",
        "binds",
        "one machine lost",
        "vllm serve",
        "Why others lost",
        "EXAMPLE prices",
    ):
        assert words in ran.out
    assert "(simulated)" in ran.out
    assert max(map(len, (line for line in ran.out.splitlines() if "vllm serve" not in line))) <= 80


def test_json_meets_the_schema_and_the_files_are_written(kvplan_cli: Cli, tmp_path: Path) -> None:
    paths = {"--record": tmp_path / "out.md", "--plot": tmp_path / "front.svg", "--scenarios": tmp_path / "finalists"}
    ran = kvplan_cli(*ASK, "--json", *(word for pair in paths.items() for word in pair))
    document = json.loads(ran.out)
    jsonschema.validate(document, schema("plan"))
    assert document["options"][0]["meets"]
    record = paths["--record"].read_text()
    headings = [line for line in record.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Targets", "## Options", "## Choice", "## Evidence", "## Guardrails", "## Monitor", "## Rollback",
        "## Assumptions",
    ]  # fmt: skip
    assert record.index("Latency:") < record.index("Quality:") < record.index("Cost:") < record.index("## Options")
    assert paths["--plot"].read_text().startswith("<?xml")
    written = sorted(paths["--scenarios"].iterdir())
    assert written
    for path in written:
        option = next(row for row in document["options"] if path.stem == f"option-{row['rank']}")
        said = json.loads(kvplan_cli("simulate", path, "--json").out)
        for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
            assert json.dumps(said["latency"][name]) == json.dumps(option["simulated"][name])


def test_a_plan_file_with_options_over_it(kvplan_cli: Cli, tmp_path: Path) -> None:
    document = {
        "models": "llama-3.1-8b",
        "workload": {"arrivals": {"kind": "poisson", "rate": 2}, "prompt": 1000, "output": 100},
        "slo": {"ttft": "1s"}, "gpus": ["l40s"], "prices": {"l40s": 2.5}, "search": {"tensor_parallel": 1},
        "max_model_len": "8k", "finalists": 0,
    }  # fmt: skip
    jsonschema.validate(document, schema("plan-request"))
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(document))
    found = json.loads(kvplan_cli("plan", path, "--json").out)
    assert found["options"][0]["cost_per_hour"] == 2.5
    tighter = kvplan_cli("plan", path, "--ttft", "1us", "--json")
    assert tighter.code == 1
    assert json.loads(tighter.out)["nearest"]


@pytest.mark.parametrize(
    "options",
    [
        ("--rate", "1e-9", "--ctx", "8k"),
        ("--rate", "1e9", "--ctx", "8k"),
        ("--rate", "1", "--prompt", "1000000000"),
        ("--users", "1000000000", "--ctx", "8k"),
        ("--rate", "1", "--prompt", "1k", "--answer", "1M", "--cv", "3"),
    ],
)
def test_demands_beyond_reason_get_an_answer_in_plain_json(kvplan_cli: Cli, options: tuple[str, ...]) -> None:
    ran = kvplan_cli("plan", "llama-3.1-8b", *options, "--gpus", "h100", "--tp", "1", "--finalists", "0", "--json")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads(ran.out, parse_constant=refuse)
    assert ran.code == (0 if document["options"] else 1)
    jsonschema.validate(document, schema("plan"))


def test_users_prices_replace_the_example(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        "date: 2026-10-01\ncurrency: EUR\ngpus:\n  H100: {per_gpu_hour: 7.5, unit: 8}\n  l40s: {per_gpu_hour: 9}\n"
    )
    document = json.loads(kvplan_cli(*ASK[:-2], "--prices", path, "--finalists", "0", "--json").out)
    assert document["currency"] == "EUR"
    assert document["options"][0]["cost_per_hour"] in (9.0, 60.0)
    assert "dated 2026-10-01" in document["assumptions"][0]


def test_fit_in_words_and_json(kvplan_cli: Cli) -> None:
    ran = kvplan_cli("plan", "llama-3.1-8b", "--fit", "largest context for 64 users on 2x h100")
    # 81,559 MiB at 90 %, half of 16,060,522,496 B of weights, 64 x 65,536 B a token on each of two ranks.
    left = 81559 * 2**20 * 90 // 100 - 16_060_522_496 // 2
    assert ran.out.startswith(f"{left // (64 * 65536):,} tokens of context fit llama-3.1-8b for 64 users")
    document = json.loads(kvplan_cli("plan", "llama-3.1-8b", "--fit", "most users at 128k on h100", "--json").out)
    jsonschema.validate(document, schema("plan-fit"))
    assert document["value"] == (81559 * 2**20 * 90 // 100 - 16_060_522_496) // (131072 * 131072)
    nothing = kvplan_cli("plan", "llama-3.1-70b", "--fit", "largest context for 1 user on l4")
    assert nothing.code == 1
    assert "not even one token" in nothing.out


MISTAKES = [
    ((), "found no model"),
    (("llama-3.1-8b",), "found no workload, expected --users or --rate"),
    (("llama-3.1-8b", "--ctx", "8k"), "lengths without a demand"),
    (("llama-3.1-8b", "--users", "5"), "found no length"),
    (("llama-3.1-8b", "--users", "5", "--rate", "1", "--ctx", "8k"), "--users and --rate"),
    (("llama-3.1-8b", "--users", "5", "--ctx", "100"), "--ctx: found 100 tokens, expected more than the answer's 512"),
    (("llama-3.1-8b", "--users", "0", "--ctx", "8k"), "workload.arrivals.users: found 0"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--gpus", "v100-sxm-16gb"), "prices: found none for v100-sxm-16gb"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--forbid", "5-bit"), "forbid"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--engine", "vlmm"), "nearest: vllm"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--tp", "x"), "--tensor-parallel-size: found 'x'"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--ttft", "fast"), "slo.ttft"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--prices", "none.yaml"), "none.yaml: can't be read"),
    (("llama-9", "--rate", "1", "--ctx", "8k"), "which is no known model"),
    (("none.yaml",), "none.yaml: can't be read"),
    (("--fit", "most users at 8k on h100"), "MODEL: found nothing beside --fit"),
    (("llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--kv-cache-dtype", "fp8", "--forbid", "8-bit-kv"), "emptied by"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "words"), MISTAKES)
def test_each_mistake_gets_one_sentence(kvplan_cli: Cli, args: tuple[str, ...], words: str) -> None:
    ran = kvplan_cli("plan", *args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [llama-3.1-8b\nslo: {}", "line 2, column"),
        ("models: llama-3.1-8b\nworkload: {prompt: 1}\n", "line 2, column 11: workload"),
        ("models: llama-3.1-8b\nworkload:\n  arrivals: {kind: poisson, rate: 1}\n  prompt: 5\n  output: 5\nslow: {}\n",
         "line 6, column"),
        ("- 1\n", "found no mapping"),
        ("date: 1\nx: !!python/object 1", "tag"),
    ],
)  # fmt: skip
def test_yaml_mistakes_have_line_and_column(kvplan_cli: Cli, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    ran = kvplan_cli("plan", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert words in ran.err


def test_prices_that_are_wrong(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    for text, words in (
        ("date: 2026-01-01\ngpus: {h100: {per_gpu_hour: 0}}", "line 2, column"),
        ("date: 2026-01-01\ngpus: {h1000: {per_gpu_hour: 1}}", "unknown device 'h1000'"),
        ("date: 2026-01-01\ngpus: {h100: {per_gpu_hour: 1}, H100-SXM-80GB: {per_gpu_hour: 2}}", "twice"),
        ("gpus: {h100: {per_gpu_hour: 1}}", "date: found nothing"),
    ):
        path.write_text(text)
        ran = kvplan_cli("plan", "llama-3.1-8b", "--rate", "1", "--ctx", "8k", "--prices", path)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert words in ran.err
