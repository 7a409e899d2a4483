"""`kvplan report`: from any saved answer to one file that says the same and needs nothing else."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import Ran
from tests.evidence_audit.log_text import vllm_cases, vllm_log

Cli = Callable[..., Ran]
COMMANDS: dict[str, tuple[str, ...]] = {
    "estimate": ("estimate", "gemma-3-27b-it", "--ctx", "128k", "--gpu", "h100"),
    "estimate of techniques": ("estimate", "llama-3.1-8b", "--ctx", "32k", "--evict", "snapkv:2048"),
    "engine": ("estimate", "deepseek-v3", "--ctx", "32k", "--gpu", "h200", "--num-gpus", "8", "--engine", "vllm"),
    "engine in stages": (
        "estimate", "llama-3.1-70b", "--ctx", "8k", "--gpu", "h100", "--engine", "vllm", "-tp", "2", "-pp", "2",
    ),
    "explain": ("explain", "gemma-3-27b-it", "--ctx", "128k", "--fp8"),
    "compare": ("compare", "llama-3.1-70b", "deepseek-v3", "--vary", "kv-cache-dtype=bf16,fp8"),
    "advise": ("advise", "llama-3.1-70b", "--gpu", "h100", "--num-gpus", "4"),
    "techniques": ("techniques", "map", "gemma-3-27b-it"),
}  # fmt: skip


class Read(HTMLParser):
    """Text of a page, its pictures, and whatever could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "path"):
            self.open.append(tag)
        outward = {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        self.loads += [tag] if tag in outward else []
        self.loads += [name for name, _ in attrs if name in ("src", "href", "style") or name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def saved(kvplan_cli: Cli, folder: Path, *command: str) -> Path:
    path = folder / "answer.json"
    path.write_text(kvplan_cli(*command, "--json").out)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_each_answer(kvplan_cli: Cli, tmp_path: Path, name: str) -> None:
    path = saved(kvplan_cli, tmp_path, *COMMANDS[name])
    answer = json.loads(path.read_text())
    ran = kvplan_cli("report", path)
    assert (ran.code, ran.err) == (0, "")
    text = (tmp_path / "answer.html").read_text()
    page = Read(text)
    assert page.open == []
    assert page.loads == []
    shown = " ".join(" ".join(page.words).split())
    for sentence in (answer.get("verdict"), *answer.get("assumptions", ()), *answer.get("warnings", ())):
        assert sentence is None or " ".join(sentence.split()) in shown
    for drawn in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(drawn)
    assert kvplan_cli("report", path, "-o", tmp_path / "answer.md").code == 0
    lines = (tmp_path / "answer.md").read_text().splitlines()
    assert lines[0].startswith("# kvplan ")
    for before, after in itertools.pairwise(lines):
        if before.startswith("| ") and after.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", before)) == len(re.findall(r"(?<!\\)\|", after))


def test_each_figure_has_its_derivation_and_source(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = saved(kvplan_cli, tmp_path, *COMMANDS["estimate"])
    kvplan_cli("report", path)
    shown = " ".join(Read((tmp_path / "answer.html").read_text()).words)
    for part in json.loads(path.read_text())["cache"]["components"]:
        assert part["derivation"]["formula"] in shown
        assert all(item["source"] in shown for item in part["derivation"]["inputs"])


def test_bars_are_as_long_as_their_bytes(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = saved(kvplan_cli, tmp_path, "estimate", "llama-3.1-8b", "--ctx", "128k", "--gpu", "h100")
    fit = json.loads(path.read_text())["fit"]
    kvplan_cli("report", path)
    drawn = re.search(r"<svg.*?</svg>", (tmp_path / "answer.html").read_text())
    assert drawn is not None
    whole, weights, cache = (float(rect.attrib["width"]) for rect in list(ElementTree.fromstring(drawn[0]))[:3])
    # One pixel parts a bar from the next.
    assert (weights + 1) / whole == pytest.approx(fit["weights_bytes_per_gpu"] / fit["memory_bytes_per_gpu"], abs=1e-3)
    assert (cache + 1) / whole == pytest.approx(16 * 2**30 / fit["memory_bytes_per_gpu"], abs=1e-3)


def test_an_audit(kvplan_cli: Cli, tmp_path: Path) -> None:
    from io import BytesIO

    from kvplan.evidence.ask import Given
    from kvplan.evidence.audit import audit
    from kvplan.evidence.reader import read_log

    case = next(case for case in vllm_cases() if case["id"] == "v0-llama31-8b-3090-20k")
    answer = audit(read_log(BytesIO(vllm_log(case).encode())), Given())
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(answer.to_dict()))
    assert kvplan_cli("report", path, "-o", tmp_path / "audit.htm").code == 0
    shown = " ".join(Read((tmp_path / "audit.htm").read_text()).words)
    assert answer.verdict in shown
    assert all(found.says in shown for found in answer.findings)


def test_an_answer_without_a_record_of_its_own(kvplan_cli: Cli, tmp_path: Path) -> None:
    answer = {
        "schema_version": 1, "command": "simulate", "scenario": "chat", "model": "llama-3.1-8b", "seed": 7,
        "latency": {"ttft_s": {"mean": 0.2, "p50": 0.15, "p99": 0.9}}, "assumptions": ["a pool of its own"],
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(answer))
    kvplan_cli("report", path)
    shown = " ".join(Read((tmp_path / "run.html").read_text()).words)
    assert "900 ms" in shown
    assert "a pool of its own" in shown


def test_what_a_file_says_stays_text(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = saved(kvplan_cli, tmp_path, *COMMANDS["explain"])
    answer = json.loads(path.read_text())
    evil = '<script>alert(1)</script><img src=x onerror="alert(1)">'
    answer["verdict"] = answer["model"]["id"] = answer["model"]["source"] = answer["steps"][0]["title"] = evil
    path.write_text(json.dumps(answer))
    kvplan_cli("report", path)
    page = Read((tmp_path / "answer.html").read_text())
    assert page.loads == []
    assert evil in " ".join(page.words)
    kvplan_cli("report", path, "-o", tmp_path / "answer.md")
    assert "<script>" not in (tmp_path / "answer.md").read_text()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda answer: answer.pop("command"), "no answer of kvplan"),
        (lambda answer: answer.update(command="explian"), "nearest: explain"),
        (lambda answer: answer.update(schema_version=2), "schema_version: found 2, expected 1"),
        (lambda answer: answer.update(steps="many"), "steps: found 'many'"),
        (lambda answer: answer["steps"][0].pop("stored_bytes"), "steps.0.stored_bytes"),
    ],
)
def test_what_is_no_answer_is_one_sentence(
    kvplan_cli: Cli, tmp_path: Path, change: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    path = saved(kvplan_cli, tmp_path, *COMMANDS["explain"])
    answer = json.loads(path.read_text())
    change(answer)
    path.write_text(json.dumps(answer))
    ran = kvplan_cli("report", path)
    assert ran.code == 2
    assert sentence in ran.err
    assert not (tmp_path / "answer.html").exists()


def test_the_output_is_html_or_markdown(kvplan_cli: Cli, tmp_path: Path) -> None:
    path = saved(kvplan_cli, tmp_path, *COMMANDS["explain"])
    assert "expected a name ending in .html or .md" in kvplan_cli("report", path, "-o", tmp_path / "out.pdf").err
