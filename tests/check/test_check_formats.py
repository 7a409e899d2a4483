"""The formats of `kvplan check`, each held against its own schema or grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema

from tests.conftest import Ran

Cli = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
SCHEMAS = Path(__file__).parent / "schemas"
NASTY = 'a "quoted" <name> & 100 % \x07 | `b` @team, c: d'
FILE = f"""expectations:
  - name: {json.dumps(NASTY)}
    model: llama-3.1-8b
    expect:
      - kv_bytes_per_token <= 128KiB
      - kv_gib <= 10 at 128k
  - name: refused
    manifest: serve it.sh
    hardware: h200
    available_memory: 6GiB
    expect: [fits, max_concurrency >= 2]
  - name: no such model
    model: lama-9
    expect: weights_gib <= 10
  - name: no length
    command: vllm serve Qwen/Qwen3-8B
    hardware: h200
    expect: fits
"""
SCRIPT = "#!/bin/sh\nvllm serve meta-llama/Llama-3.1-8B \\\n  --max-model-len 131072\n"


@pytest.fixture
def ran(kvplan_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    (tmp_path / "capacity.yaml").write_text(FILE)
    (tmp_path / "serve it.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    return lambda *more: kvplan_cli("check", "capacity.yaml", *more)


def test_json_by_its_schema(ran: Callable[..., Ran]) -> None:
    found = ran("--json")
    document = json.loads(found.out)
    jsonschema.validate(document, json.loads((ROOT / "docs" / "schemas" / "check-report.schema.json").read_text()))
    assert found.code == document["exit_code"] == 2
    assert document["counts"] == {"pass": 2, "fail": 3, "error": 1, "warning": 1, "note": 0}
    kv = next(each for each in document["verdicts"] if each["metric"] == "kv_gib")
    # 131,072 tokens x 128 KiB = 16 GiB, 6 more than allowed; half of it in 8 bits.
    assert (kv["expected"], kv["got"], kv["by"]) == (
        "<= 10.00 GiB at 131,072",
        "16.00 GiB",
        "over by 6.000 GiB (60.0%)",
    )
    assert "fp8" in kv["change"]
    assert "32 layers" in kv["blame"]
    fits = next(each for each in document["verdicts"] if each["metric"] == "fits")
    assert (fits["file"], fits["line"], fits["stated_file"], fits["stated_line"]) == (
        "serve it.sh",
        3,
        "capacity.yaml",
        11,
    )


def test_the_published_schema_takes_the_file_and_refuses_typos() -> None:
    import yaml

    schema = json.loads((ROOT / "docs" / "schemas" / "check.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for path in (ROOT / "capacity.yaml", Path(__file__).parent / "repository" / "capacity.yaml"):
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)
    for wrong in ({"expect": "fit"}, {"expect": ["capacity >= 3"]}, {"expect": "fits", "modell": "x"}, {"model": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"expectations": [{"name": "a", **wrong}]}, schema)


def test_junit_by_its_schema(ran: Callable[..., Ran]) -> None:
    text = ran("--format", "junit").out
    xmlschema.XMLSchema(str(SCHEMAS / "junit.xsd")).validate(text)
    root = ElementTree.fromstring(text)
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("6", "3", "1")
    cases = root.findall("./testsuite/testcase")
    assert len(cases) == 6
    assert [case.get("name") for case in cases if case.find("failure") is not None] == [
        "kv_gib <= 10 at 128k", "fits", "max_concurrency >= 2"
    ]  # fmt: skip
    failure = root.find("./testsuite/testcase/failure[@type='length-over-pool']")
    assert failure is not None
    assert (failure.text or "").startswith("serve it.sh:3: ")


def test_the_junit_schema_is_one() -> None:
    schema = xmlschema.XMLSchema(str(SCHEMAS / "junit.xsd"))
    for wrong in ("<testsuites tests='1'/>", "<testsuites tests='x' failures='0' errors='0'/>", "<suite/>"):
        assert not schema.is_valid(wrong)


def test_sarif_by_its_schema(ran: Callable[..., Ran]) -> None:
    document = json.loads(ran("--format", "sarif").out)
    schema = json.loads((SCHEMAS / "sarif-subset.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(run["results"]) == 5
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    refused = next(result for result in run["results"] if result["ruleId"] == "length-over-pool")
    place = refused["locations"][0]["physicalLocation"]
    assert unquote(place["artifactLocation"]["uri"]) == "serve it.sh"
    assert place["artifactLocation"]["uri"] == "serve%20it.sh"
    assert place["region"] == {"startLine": 3}
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]
    fingerprints = [result["partialFingerprints"]["kvplanCheck/v1"] for result in run["results"]]
    assert len(set(fingerprints)) == len(fingerprints)


_COMMAND = re.compile(r"::(error|warning|notice)(?: ([^:\n]*))?::([^\n]*)")


def annotations(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Workflow commands as the runner parses them (actions/runner ActionCommand): every line must be one."""
    found = []
    for line in text.splitlines():
        match = _COMMAND.fullmatch(line)
        assert match is not None, line
        properties = dict(item.split("=", 1) for item in (match[2] or "").split(",") if item)
        decode = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
        for code, character in decode.items():
            properties = {name: value.replace(code, character) for name, value in properties.items()}
        found.append((match[1], properties, match[3]))
    return found


def test_github_annotations_parse(ran: Callable[..., Ran]) -> None:
    found = annotations(ran("--format", "github").out)
    assert [level for level, _, _ in found] == ["error"] * 4 + ["warning", "notice"]
    places = [(properties.get("file"), properties.get("line")) for _, properties, _ in found]
    assert ("serve it.sh", "3") in places
    assert any(
        NASTY.replace("\x07", "") in properties["title"].replace("\\x07", "").replace("\x07", "")
        for _, properties, _ in found[:-1]
    )
    assert all("% " not in message.replace("%25", "") for _, _, message in found)


def test_markdown_keeps_its_table(ran: Callable[..., Ran]) -> None:
    text = ran("--format", "markdown").out
    assert text.startswith("### kvplan check: not evaluated\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert widths == {7, 4}  # six columns for what fails, three for what holds
    assert "`b`" not in text
    assert "@team" not in text
    assert "serve it.sh:3" in text


def test_text_says_expected_got_why_and_what_would_pass(ran: Callable[..., Ran]) -> None:
    text = ran().out
    for words in ("expected   fits", "doesn't fit, 10.00 GiB missing", "16.00 GiB of KV cache, 5.998 GiB available",
                  "--max-model-len 49136", "at serve it.sh:3", "2 of 5 checks hold, 1 could not"):  # fmt: skip
        assert words in text, words


def test_several_formats_in_one_run(ran: Callable[..., Ran], tmp_path: Path) -> None:
    found = ran("--output", "sarif=a.sarif", "--output", "junit=b.xml", "--output", "markdown=c.md")
    assert found.out.endswith("1 warning.\n")
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"
    assert ElementTree.fromstring((tmp_path / "b.xml").read_text()).tag == "testsuites"
    assert (tmp_path / "c.md").read_text().startswith("### kvplan check")


def test_strict_makes_a_warning_fail(kvplan_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "serve.sh").write_text("#!/bin/sh\nvllm serve Qwen/Qwen3-8B\n")
    options: tuple[Any, ...] = ("check", "--manifest", "serve.sh", "--gpu", "h100")
    assert kvplan_cli(*options).code == 0
    assert kvplan_cli(*options, "--strict").code == 1
