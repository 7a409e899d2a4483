"""The REST API: the same answers as the command line, one sentence for every refusal, bounded bodies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.web.conftest import Site

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "golden" / "configs"
LLAMA = {"model": "llama-3.1-70b", "ctx": "128k"}


def test_an_estimate_is_the_one_in_the_readme(site: Site) -> None:
    # README: 80 layers x 131,072 entries x 2 x 8 KV heads x 128 x 1 B.
    reply = site.ask("estimate", {**LLAMA, "kv_cache_dtype": "fp8"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["cache"]["needed_bytes"] == 80 * 131072 * 2 * 8 * 128


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"model": "lama-3.1-70b"}, "nearest: llama-3.1-70b"),
        ({"modle": "llama-3.1-70b"}, "nearest: model"),
        ({}, "model: found nothing"),
        ({"model": "../../etc/passwd"}, "no known model"),
        ({"model": str(CONFIGS / "01-ai--yi-34b.json")}, "no known model"),
        ({**LLAMA, "ctx": "many"}, "--ctx: found 'many'"),
        ({**LLAMA, "ctx": 0}, "ctx: found 0"),
        ({**LLAMA, "batch": "many"}, "batch: found 'many'"),
        ({**LLAMA, "gpu": "h1000"}, "--gpu: found the unknown device 'h1000'"),
        ({**LLAMA, "engine": "vllm"}, "--gpu: found nothing"),
        ({**LLAMA, "engine": "vlm", "gpu": "h100"}, "nearest: vllm"),
        ({**LLAMA, "engine": "vllm", "gpu": "h100", "evict": "snapkv:2048"}, "--evict: vllm has no such technique"),
        ({**LLAMA, "kv_cache_dtype": "fp9"}, "fp9"),
    ],
)
def test_a_refusal_is_one_sentence(site: Site, question: dict[str, Any], sentence: str) -> None:
    reply = site.ask("estimate", question)
    assert reply.status == 422
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert (problem["status"], problem["exit_code"]) == (422, 2)
    assert sentence in problem["detail"]
    assert "\n" not in problem["detail"]


def test_an_unknown_architecture_is_refused_as_the_command_line_does(site: Site) -> None:
    config = {"model_type": "nobody", "architectures": ["NobodyForCausalLM"], "hidden_size": 64}
    reply = site.ask("estimate", {"config": config, "ctx": "8k"})
    assert (reply.status, reply.json()["exit_code"]) == (422, 3)
    assert "NobodyForCausalLM" in reply.json()["detail"]


def test_a_pasted_config_is_the_file_without_its_name(site: Site, kvplan_cli: Any) -> None:
    path = CONFIGS / "01-ai--yi-34b.json"
    reply = site.ask("estimate", {"config": json.loads(path.read_text()), "ctx": "4k"})
    ran = kvplan_cli("estimate", path, "--ctx", "4k", "--json")
    assert reply.json()["cache"] == {**json.loads(ran.out)["cache"], "components": reply.json()["cache"]["components"]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff{}", 400),
        (b'{"model": "a", "model": "b"}', 400),
        (b"[" * 100_000, 400),
        (b'{"config": ' + b'{"a":' * 100 + b"1" + b"}" * 101, 400),
        (b'{"ctx": ' + b"9" * 5000 + b"}", 400),
        (b'{"gpu_memory_utilization": NaN}', 422),
        (b"[]", 422),
        (b"{" + b" " * (256 << 10) + b"}", 413),
    ],
)
def test_bodies_are_bounded(site: Site, body: bytes, status: int) -> None:
    reply = site.send("POST", "/api/estimate", body, content_type="application/json")
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"


def test_only_json_is_read(site: Site) -> None:
    # A form on another site's page could send text/plain without asking the browser first.
    assert site.send("POST", "/api/estimate", b"{}", content_type="text/plain").status == 415


def test_another_sites_name_is_not_answered(site: Site) -> None:
    assert site.send("GET", "/api/gpus", host="attacker.example").status == 400


def test_a_body_without_a_length_is_bounded_too(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=30) as opened:
        head = "POST /api/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        opened.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(5):
            opened.sendall(piece)
        assert opened.recv(4096).startswith(b"HTTP/1.1 413")


def test_paths_outside_the_page_are_not_served(site: Site) -> None:
    for path in ("/../app.py", "/%2e%2e/app.py", "/static/app.js", "/app.py", "//etc/passwd"):
        assert site.send("GET", path).status == 404
    assert site.send("GET", "/app.js").status == 200
    assert site.send("GET", "/api/estimate").status == 405


def test_every_response_carries_the_policy(site: Site) -> None:
    for path in ("/", "/app.js", "/api/gpus", "/nothing"):
        headers = site.send("GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_file_that_did_not_change_is_not_sent_again(site: Site) -> None:
    first = site.send("GET", "/app.js")
    assert site.send("GET", "/app.js", if_none_match=first.headers["etag"]).status == 304


def test_lists(site: Site) -> None:
    found = [model["id"] for model in site.send("GET", "/api/models?q=deepseek%20mla").json()["models"]]
    assert "deepseek-v3" in found
    assert "llama-3.1-70b" not in found
    assert any(
        gpu["slug"] == "h100-sxm" or "h100" in gpu["aliases"] for gpu in site.send("GET", "/api/gpus").json()["gpus"]
    )
    engines = {engine["name"] for engine in site.send("GET", "/api/engines").json()["engines"]}
    assert {"vllm", "llama.cpp"} <= engines


QUESTIONS: dict[str, dict[str, Any]] = {
    "estimate": {**LLAMA, "gpu": "h100", "num_gpus": 8, "engine": "vllm"},
    "explain": LLAMA,
    "compare": {"models": ["llama-3.1-70b", "deepseek-v3"], "curves": True},
    "matrix": {"model": "llama-3.1-70b", "gpu": "h100", "num_gpus": 8},
    "check": {
        "expectations": [
            {
                "name": "one chat",
                "model": "llama-3.1-8b",
                "gpu": "h100",
                "engine": "vllm",
                "ctx": "32k",
                "expect": ["fits"],
            }
        ]
    },
    "command": {**LLAMA, "gpu": "h100"},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_have_the_shape_that_openapi_promises(site: Site, name: str) -> None:
    document = site.send("GET", "/api/openapi.json").json()
    posted = document["paths"][f"/api/{name}"]["post"]
    asked = posted["requestBody"]["content"]["application/json"]["schema"]
    answered = posted["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(QUESTIONS[name], {**asked, "components": document["components"]})
    jsonschema.validate(site.ask(name, QUESTIONS[name]).json(), {**answered, "components": document["components"]})


def test_expectations_are_judged_as_the_command_does(site: Site, kvplan_cli: Any, tmp_path: Path) -> None:
    # Llama 3.1 8B keeps 32 layers x 2 x 8 KV heads x 128 x 2 B = 128 KiB a token: 16 GiB of 128k tokens.
    asked = {"name": "cache", "model": "llama-3.1-8b", "ctx": "128k", "expect": ["kv_gib == 16", "kv_gib <= 15"]}
    found = site.ask("check", {"expectations": [asked]}).json()
    assert [verdict["status"] for verdict in found["verdicts"]] == ["pass", "fail"]
    assert found["exit_code"] == 1
    path = tmp_path / "checks.yaml"
    path.write_text(json.dumps({"expectations": [asked]}))
    told = json.loads(kvplan_cli("check", path, "--json").out)
    assert [verdict["got"] for verdict in told["verdicts"]] == [verdict["got"] for verdict in found["verdicts"]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "../config.json"}, "no known model"),
        ({"model": str(CONFIGS / "01-ai--yi-34b.json")}, "no known model"),
        ({"expect": ["kv_gib is small"]}, "expectations 1: expect"),
        ({"expect": ["ttft_p99 <= 2s"]}, "needs a file"),
        ({"manifest": "deploy.yaml"}, "manifest"),
        ({"scenario": "chat.yaml"}, "scenario"),
        ({"num_gpus": 8}, "num_gpus: found it without gpu"),
    ],
)
def test_expectations_that_need_a_file_are_refused(site: Site, change: dict[str, Any], sentence: str) -> None:
    asked = {"name": "cache", "model": "llama-3.1-8b", "ctx": "128k", "expect": ["kv_gib <= 16"]}
    reply = site.ask("check", {"expectations": [{**asked, **change}]})
    assert reply.status == 422
    assert sentence in reply.json()["detail"]


def test_many_curves_are_refused(site: Site) -> None:
    vary = ["kv-cache-dtype=bf16,fp8,int8,q8_0", "batch=1,2,3"]
    assert (
        "at most 8" in site.ask("compare", {"models": ["llama-3.1-8b"], "vary": vary, "curves": True}).json()["detail"]
    )


@pytest.mark.parametrize(
    "question",
    [
        {**LLAMA, "kv_cache_dtype": "fp8", "batch": 4},
        {**LLAMA, "gpu": "h100", "num_gpus": 8, "evict": "snapkv:2048", "what_if": ["cla=2"], "block_size": 16},
        {**LLAMA, "gpu": "h100", "engine": "vllm@0.11", "tensor_parallel_size": 8, "gpu_memory_utilization": 0.95},
        {"model": "gpt-oss-120b", "gpu": "h100", "engine": "vllm", "ctx": 32768, "skip_layers": ["sliding_window"],
         "kv_cache_dtype": "fp8", "settings": {"enforce_eager": True}},
    ],
)  # fmt: skip
def test_the_command_asks_the_same_question(site: Site, kvplan_cli: Any, question: dict[str, Any]) -> None:
    import shlex

    words = shlex.split(site.ask("command", question).json()["cli"])
    assert words[0] == "kvplan"
    ran = kvplan_cli(*words[1:], "--json")
    assert json.loads(ran.out) == site.ask("estimate", question).json()


def test_serve_listens_on_loopback_and_ends_on_interrupt() -> None:
    command = [sys.executable, "-m", "kvplan", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kvplan: http://127.0.0.1:")
        port = int(line.split("127.0.0.1:")[1].split("/")[0])
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                assert Site(port).send("GET", "/").status == 200
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        process.send_signal(2)
        assert process.wait(20) in (0, 130)


def test_a_taken_port_is_one_sentence(kvplan_cli: Any, site: Site) -> None:
    ran = kvplan_cli("serve", "--port", site.port)
    assert ran.code == 2
    assert "expected a free address" in ran.err
    assert ran.err.count("\n") == 1
