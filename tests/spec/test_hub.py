"""The hub importer against an http.server on loopback: what it asks for, what it refuses, and where the token goes."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvplan.errors import InputError
from kvplan.spec.importers.hub import DEFAULT_ENDPOINT, _stored_token, fetch, parse_model_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "llama", "num_hidden_layers": 2}


def shard_of(name: str, elements: int) -> bytes:
    header = json.dumps({name: {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(2 * elements)


class Hub:
    """A loopback hub: `files` by name, `answers` overriding a name, `seen` every request that came in."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"config.json": json.dumps(CONFIG).encode()}
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.seen.append((self.path, dict(self.headers)))
                name = self.path.rsplit("/", 1)[1]
                if name in hub.answers:
                    hub.answers[name](self)
                elif name in hub.files:
                    hub.send(self, hub.files[name])
                else:
                    hub.refuse(404, "EntryNotFound")(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.005,), daemon=True).start()

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        asked = handler.headers.get("Range")
        status, headers = 200, {"X-Repo-Commit": COMMIT}
        if asked:
            start, stop = (int(part) for part in asked.removeprefix("bytes=").split("-"))
            status, headers["Content-Range"] = 206, f"bytes {start}-{min(stop, len(body) - 1)}/{len(body)}"
            body = body[start : stop + 1]
        handler.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            handler.send_header(key, value)
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def refuse(status: int, code: str = "") -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            handler.send_header("X-Error-Code", code)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        return answer

    @staticmethod
    def redirect(target: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", target)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        return answer

    @staticmethod
    def raw(data: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(data)
            handler.close_connection = True

        return answer

    def tokens(self) -> list[str | None]:
        return [headers.get("Authorization") for _, headers in self.seen]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Hub]]:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    hubs: list[Hub] = []

    def make() -> Hub:
        hubs.append(Hub())
        return hubs[-1]

    yield make
    for hub in hubs:
        hub.server.shutdown()
        hub.server.server_close()


@pytest.fixture
def hub(start: Callable[[], Hub], monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = start()
    monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
    return hub


def test_config_alone(hub: Hub) -> None:
    found = fetch("owner/name")
    assert (found.config, found.quant_config, found.tensors) == (CONFIG, None, None)
    assert (found.model_id, found.revision) == ("owner/name", COMMIT)
    assert hub.seen[0][0] == "/owner/name/resolve/main/config.json"
    # what follows is read from the commit the first answer named, so that all files are of one revision
    assert all(f"/resolve/{COMMIT}/" in path for path, _ in hub.seen[1:])
    assert hub.tokens() == [None] * len(hub.seen)


def test_shards_cost_their_header_and_no_weights(hub: Hub) -> None:
    hub.files["hf_quant_config.json"] = b'{"quantization": {}}'
    shards = {f"m-{i}.safetensors": shard_of(f"model.layers.{i}.mlp.up_proj.weight", 50_000) for i in range(3)}
    hub.files |= shards
    weight_map = {f"model.layers.{i}.mlp.up_proj.weight": f"m-{i}.safetensors" for i in range(3)}
    hub.files["model.safetensors.index.json"] = json.dumps(
        {"metadata": {"total_size": 300_000}, "weight_map": weight_map}
    ).encode()
    found = fetch("owner/name@refs/pr/7")
    assert hub.seen[0][0] == "/owner/name/resolve/refs%2Fpr%2F7/config.json"
    assert found.quant_config == {"quantization": {}}
    assert found.tensors is not None
    assert (found.tensors.total_bytes, found.tensors.tensor_count, found.tensors.warnings) == (300_000, 3, ())
    ranges = [headers.get("Range") for path, headers in hub.seen if path.endswith(".safetensors")]
    length = struct.unpack("<Q", shards["m-0.safetensors"][:8])[0]
    assert sorted(ranges) == sorted(["bytes=0-7", f"bytes=8-{7 + length}"] * 3)


def test_a_single_file_and_a_hub_that_ignores_ranges(hub: Hub) -> None:
    body = shard_of("lm_head.weight", 10)

    def whole(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    hub.answers["model.safetensors"] = whole
    tensors = fetch("owner/name").tensors
    assert tensors is not None
    assert tensors.bytes_by_part == {"head": 20}


def test_the_token_goes_to_the_endpoint_and_to_no_other_origin(
    start: Callable[[], Hub], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start()
    other.files["model.safetensors"] = shard_of("lm_head.weight", 10)
    hub.answers["model.safetensors"] = hub.redirect(f"{other.url}/cdn/model.safetensors")
    hub.answers["config.json"] = hub.redirect("/moved/there.json")
    hub.files["there.json"] = json.dumps(CONFIG).encode()
    monkeypatch.setenv("HF_TOKEN", " hf_secret \n")
    found = fetch("owner/name")
    assert found.config == CONFIG
    assert found.tensors is not None
    assert found.tensors.total_bytes == 20
    assert set(hub.tokens()) == {"Bearer hf_secret"}
    assert other.tokens() == [None, None]
    assert all("Range" in headers for _, headers in other.seen)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (Hub.refuse(401), "refused config.json with status 401, expected HF_TOKEN to be set"),
        (Hub.refuse(403), "refused config.json with status 403, expected HF_TOKEN to be set"),
        (Hub.refuse(404, "RepoNotFound"), "knows no such model"),
        (Hub.refuse(404, "RevisionNotFound"), "knows no such revision 'main'"),
        (Hub.refuse(404, "EntryNotFound"), "has no config.json there"),
        (Hub.refuse(404), "a private model needs HF_TOKEN"),
        (Hub.refuse(429), "too many requests"),
        (Hub.refuse(500), "answered status 500 for config.json"),
        (Hub.refuse(503), "answered status 503"),
        (Hub.redirect("file:///etc/hostname"), "to http or https"),
        (Hub.redirect("ftp://127.0.0.1/x"), "redirected there, expected an http or https"),
        (Hub.redirect("/owner/name/resolve/main/config.json"), "redirected config.json in a circle"),
        (Hub.raw(b""), "closed without an answer"),
        (Hub.raw(b"\x00\xff\x00 garbage\r\n\r\n"), "an answer that is no HTTP"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), "found an empty file"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\n\r\n<html>login</html>"), "no JSON"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe"), "no UTF-8"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\n\r\n[1]"), "expected a JSON object"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}"), "found 2 bytes before the hub closed"),
        (Hub.raw(b"HTTP/1.0 200 OK\r\n\r\n" + b" " * ((16 << 20) + 1)), "found more than 16,777,216 bytes"),
    ],
)
def test_each_bad_answer_gets_one_sentence(
    hub: Hub, answer: Callable[[BaseHTTPRequestHandler], None], part: str
) -> None:
    hub.answers["config.json"] = answer
    with pytest.raises(InputError) as caught:
        fetch("owner/name")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_token_is_not_printed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.answers["config.json"] = Hub.refuse(403)
    with pytest.raises(InputError, match="expected an HF_TOKEN with access") as caught:
        fetch("owner/name")
    assert "hf_secret" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_sec\nret")
    with pytest.raises(InputError, match="HF_TOKEN: found a space") as caught:
        fetch("owner/name")
    assert "hf_sec" not in str(caught.value)


def test_a_refusal_of_an_optional_file_is_not_an_absence(hub: Hub) -> None:
    hub.answers["hf_quant_config.json"] = Hub.refuse(500)
    with pytest.raises(InputError, match=r"status 500 for hf_quant_config\.json"):
        fetch("owner/name")


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "416"),
        (b"\x01", "found 1 bytes"),
        (struct.pack("<Q", 1 << 60), "expected at most 100,000,000"),
        (struct.pack("<Q", 5000) + b"{}", "expected a header that ends inside the file"),
        (struct.pack("<Q", 2) + b"xx", "no JSON"),
    ],
)
def test_broken_headers_on_the_hub(hub: Hub, body: bytes, part: str) -> None:
    hub.files["model.safetensors"] = body
    if not body:
        hub.answers["model.safetensors"] = Hub.refuse(416)
    with pytest.raises(InputError) as caught:
        fetch("owner/name")
    assert part in str(caught.value)


def test_a_false_content_range(hub: Hub) -> None:
    hub.answers["model.safetensors"] = Hub.raw(b"HTTP/1.0 206 P\r\nContent-Range: bytes 9-16/99\r\n\r\n" + bytes(8))
    with pytest.raises(InputError, match="found Content-Range 'bytes 9-16/99'"):
        fetch("owner/name")


def test_an_index_that_names_a_missing_file(hub: Hub) -> None:
    hub.files["model.safetensors.index.json"] = b'{"weight_map": {"t": "gone.safetensors"}}'
    with pytest.raises(InputError, match=r"has no gone\.safetensors there"):
        fetch("owner/name")


def test_connection_refused(start: Callable[[], Hub]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(InputError, match="the connection was refused"):
        fetch("owner/name", endpoint=f"http://127.0.0.1:{port}")


def test_a_silent_hub_and_a_slow_one(hub: Hub) -> None:
    stop = threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> None:
        stop.wait(5)

    def slow(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while not stop.wait(0.02):
            handler.wfile.write(b" ")

    hub.answers["config.json"] = silent
    with pytest.raises(InputError, match=r"no answer within 0\.2 s"):
        fetch("owner/name", timeout=0.2)
    hub.answers["config.json"] = slow
    with pytest.raises(InputError, match=r"still sending after 0\.3 s"):
        fetch("owner/name", timeout=2, deadline=0.3)
    stop.set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", ("meta-llama/Llama-3.1-8B", "main")),
        ("a/b@v1.0", ("a/b", "v1.0")),
        ("a/b@refs/pr/1", ("a/b", "refs/pr/1")),
    ],
)
def test_model_ids(text: str, expected: tuple[str, str]) -> None:
    assert parse_model_id(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "gpt2", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a/b@x//y", "a/b?x", "a/b#x", "a/ b", "a/b\n", "a%2f/b",
     "http://h/a", "a/b@-x", "a/b@x y", "a/" + "b" * 200, "a/b.git", "é/b"],
)  # fmt: skip
def test_bad_model_ids(text: str) -> None:
    with pytest.raises(InputError, match="expected a model id such as owner/name"):
        fetch(text, endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    "endpoint", ["ftp://h", "h", "http://", "http://u:p@h", "http://h:99999", "http://a b", "file:///x"]
)
def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(InputError, match="HF_ENDPOINT: found"):
        fetch("a/b", endpoint=endpoint)


def test_a_stored_token_goes_to_the_public_hub_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_stored")
    assert _stored_token(DEFAULT_ENDPOINT) == "hf_stored"
    assert _stored_token("http://127.0.0.1:1") == ""
