"""A running server read from a stand-in on loopback that replays recorded answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.evidence.ask import Given
from kvplan.evidence.audit import audit
from kvplan.evidence.server import ask_server
from kvplan.spec.resolve import resolve_model

VLLM = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",cpu_kvcache_space_bytes="None",enable_prefix_caching="True",\
engine="0",gpu_memory_utilization="0.9",is_attention_free="False",num_cpu_blocks="None",num_gpu_blocks="22900",\
num_gpu_blocks_override="None",sliding_window="None",swap_space="4"} 1.0
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_preemptions_total{engine="0",model_name="Qwen/Qwen3-8B"} 12.0
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.31
"""
SGLANG = """\
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:max_total_num_tokens{model_name="meta-llama/Llama-3.1-8B-Instruct"} 433712.0
"""
PROPS = {
    "default_generation_settings": {"n_ctx": 8192, "speculative": False},
    "total_slots": 4,
    "model_path": "/home/someone/models/Qwen3-8B-Q4_K_M.gguf",
    "build_info": "b5787-0a5a3b5c",
}
Serve = Callable[[dict[str, Any]], tuple[str, list[str]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def start(pages: dict[str, Any]) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(f"{self.command} {self.path}")
                page = pages.get(self.path)
                if callable(page):
                    page(self)
                    return
                body = b"" if page is None else page.encode()
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_vllm_metrics_are_a_run(serve: Serve) -> None:
    url, asked = serve({"/metrics": VLLM})
    (run,) = ask_server(url)
    assert (run.engine, run.flags["model"], run.flags["block_size"]) == ("vllm", "Qwen/Qwen3-8B", 16)
    assert run.number("blocks") == 22900
    assert run.number("preemptions") == 12
    assert asked == ["GET /metrics"]
    answer = audit((run,), Given())
    assert answer.model == "qwen3-8b"
    assert answer.meaning is not None
    assert answer.meaning.printed == 366400  # 22,900 blocks x 16, the count of LMCache's table


def test_sglang_metrics_are_a_run(serve: Serve) -> None:
    url, _ = serve({"/metrics": SGLANG})
    answer = audit(ask_server(url), Given())
    assert answer.engine == "sglang"
    assert answer.meaning is not None
    assert answer.meaning.printed == 433712


def test_llama_cpp_props_and_slots_are_a_run(serve: Serve) -> None:
    slots = [{"id": index, "n_ctx": 8192} for index in range(4)]
    url, asked = serve({"/props": json.dumps(PROPS), "/slots": json.dumps(slots)})
    (run,) = ask_server(url)
    assert (run.engine, run.version, run.flags["parallel"]) == ("llama.cpp", "5787", 4)
    assert run.number("slot_length") == 8192
    assert "someone" not in json.dumps(audit((run,), Given(resolve_model("qwen3-8b"))).to_dict())
    assert {item.partition(" ")[0] for item in asked} == {"GET"}


def test_a_slow_server_is_given_up_on(serve: Serve) -> None:
    url, _ = serve({"/metrics": lambda handler: time.sleep(2)})
    start = time.monotonic()
    with pytest.raises(InputError, match="does not answer"):
        ask_server(url, timeout=0.2)
    assert time.monotonic() - start < 1.5


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    other, asked = serve({"/metrics": VLLM})

    def away(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"{other}/metrics")
        handler.end_headers()

    url, _ = serve({"/metrics": away})
    with pytest.raises(InputError, match="expected"):
        ask_server(url)
    assert asked == []


def test_an_endless_answer_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.evidence.server.MAX_ANSWER_BYTES", 1000)
    url, _ = serve({"/metrics": "vllm:x 1\n" * 1000})
    with pytest.raises(InputError, match="more than"):
        ask_server(url)


@pytest.mark.parametrize("page", ["", "nonsense 1\n", "vllm", "\x00\x01"])
def test_what_is_no_engine_is_refused(serve: Serve, page: str) -> None:
    url, _ = serve({"/metrics": page})
    with pytest.raises(InputError, match="--server"):
        ask_server(url)


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/hosts", "ftp://x/", "http://", "http://a b/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected an address"):
        ask_server(url)


def test_nothing_listening_is_one_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match="does not answer"):
        ask_server(f"http://127.0.0.1:{port}", timeout=0.5)


def test_hostile_numbers_make_no_figure(serve: Serve) -> None:
    huge = "9" * 400
    page = VLLM.replace('num_gpu_blocks="22900"', f'num_gpu_blocks="{huge}"').replace("12.0", "NaN")
    url, _ = serve({"/metrics": page})
    (run,) = ask_server(url)
    assert run.number("blocks") is None
    assert run.number("preemptions") is None
