"""config.json, hf_quant_config.json and safetensors headers of a model on a Hugging Face hub, over HTTP.

Runs only when the user asks for it. It uses the standard library: each transfer has a size limit and a deadline,
nothing is cached on disk, and the token goes to the endpoint's own origin alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError, show
from kvplan.files import parse_json
from kvplan.spec.importers import safetensors
from kvplan.spec.importers.tensors import CheckpointTensors

if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_CONFIG_BYTES = 16 << 20
MAX_REDIRECTS = 5
TIMEOUT_SECONDS = 10.0
DEADLINE_SECONDS = 120.0
PARALLEL_SHARDS = 8
MAX_ALL_HEADERS_BYTES = 400_000_000

_CHUNK = 1 << 16
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_MODEL_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,127}}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubFiles:
    """What one revision of a model publishes. `revision` is the commit the hub answered from, where it says so."""

    model_id: str
    revision: str
    config: dict[str, Any]
    quant_config: dict[str, Any] | None
    tensors: CheckpointTensors | None


@dataclass(frozen=True)
class _Reply:
    body: bytes
    headers: Any
    status: int


def parse_model_id(text: str) -> tuple[str, str]:
    """Split `owner/name[@revision]` into id and revision (`main` when absent). Raises InputError otherwise."""
    match = _MODEL_ID.fullmatch(text)
    if match is None or ".." in text or "//" in text or text.endswith(("/", ".git")):
        raise InputError(f"--hub: found {show(text)}, expected a model id such as owner/name or owner/name@revision")
    return match.group(1), match.group(2) or "main"


def fetch(
    model_id: str,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    with_tensors: bool = True,
    timeout: float = TIMEOUT_SECONDS,
    deadline: float = DEADLINE_SECONDS,
) -> HubFiles:
    """Fetch the files that decide a model's layout and weight bytes: `owner/name[@revision]`.

    `endpoint` and `token` default to HF_ENDPOINT and HF_TOKEN. `timeout` bounds each wait for the network and
    `deadline` each transfer, in seconds. Weights cost two small range requests a file. Raises InputError, one
    sentence, on an invalid id, a refusal, a missing model, an unreachable hub or a broken answer.
    """
    repository, revision = parse_model_id(model_id)
    hub = _Hub(repository, revision, endpoint, token, timeout, deadline)
    reply = hub.get("config.json", MAX_CONFIG_BYTES)
    config = _json_object(reply.body, hub.label("config.json"))
    commit = reply.headers.get("X-Repo-Commit") or ""
    if _COMMIT.fullmatch(commit):
        hub.revision = commit
    quant = hub.get_optional("hf_quant_config.json", MAX_CONFIG_BYTES)
    return HubFiles(
        model_id=repository,
        revision=hub.revision,
        config=config,
        quant_config=None if quant is None else _json_object(quant.body, hub.label("hf_quant_config.json")),
        tensors=_tensors(hub) if with_tensors else None,
    )


def _tensors(hub: _Hub) -> CheckpointTensors | None:
    """Headers of all shards, read in parallel, or None where the model has no safetensors files."""
    from concurrent.futures import ThreadPoolExecutor

    reply = hub.get_optional(safetensors.INDEX_NAME, safetensors.MAX_INDEX_BYTES)
    if reply is None:
        shard = _shard(hub, safetensors.SINGLE_NAME, optional=True)
        return None if shard is None else safetensors.read_shards([shard])
    index = _json_object(reply.body, hub.label(safetensors.INDEX_NAME))
    names = safetensors.shard_names(index)
    with ThreadPoolExecutor(PARALLEL_SHARDS) as pool:
        shards = list(pool.map(lambda name: _shard(hub, name), names))
    return safetensors.read_shards((shard for shard in shards if shard is not None), index)


def _shard(hub: _Hub, name: str, optional: bool = False) -> safetensors.Shard | None:
    """A shard whose first 8 bytes and header are already here, so that shards can be fetched in parallel."""
    try:
        prefix, size = hub.get_range(name, 0, 8)
    except _MissingFile:
        if optional:
            return None
        raise
    length = int.from_bytes(prefix, "little")
    known = {(0, 8): prefix}
    if len(prefix) == 8 and length <= safetensors.MAX_HEADER_BYTES and (size is None or 8 + length <= size):
        hub.header_bytes += length
        if hub.header_bytes > MAX_ALL_HEADERS_BYTES:
            raise InputError(
                f"{hub.label(name)}: found more than {MAX_ALL_HEADERS_BYTES:,} bytes of headers in all files, "
                "expected at most that many"
            )
        known[8, length] = hub.get_range(name, 8, length)[0] if length else b""
    return safetensors.Shard(hub.label(name), lambda offset, count: known[offset, count], size)


class _MissingFile(InputError):
    """The revision exists and has no such file."""


class _Hub:
    """One repository at one revision of one endpoint, and the rules of talking to it."""

    def __init__(
        self, repository: str, revision: str, endpoint: str | None, token: str | None, timeout: float, deadline: float
    ) -> None:
        self.repository = repository
        self.revision = revision
        self.endpoint = _checked_endpoint(endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT)
        self.token = _checked_token(token or os.environ.get("HF_TOKEN") or _stored_token(self.endpoint))
        self.timeout = timeout
        self.deadline = deadline
        self.header_bytes = 0
        self._opener = _opener(self.endpoint, self.token)

    def label(self, name: str) -> str:
        """What errors call a file: `owner/name@revision: name`."""
        return f"{self.repository}@{self.revision}: {name}"

    def get(self, name: str, limit: int) -> _Reply:
        """Fetch a whole file of at most `limit` bytes."""
        return self._request(name, limit)

    def get_optional(self, name: str, limit: int) -> _Reply | None:
        """Fetch a whole file, or None where the revision has no such file."""
        try:
            return self.get(name, limit)
        except _MissingFile:
            return None

    def get_range(self, name: str, offset: int, length: int) -> tuple[bytes, int | None]:
        """Fetch `length` bytes at `offset`, and the file's size where the hub tells it.

        A hub that ignores the range sends the file from its start: no more than offset + length bytes of it are read.
        """
        reply = self._request(name, length, offset)
        if reply.status != 206:
            size = reply.headers.get("Content-Length") or ""
            return reply.body[offset : offset + length], int(size) if re.fullmatch(r"[0-9]{1,18}", size) else None
        match = re.fullmatch(
            r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", reply.headers.get("Content-Range") or ""
        )
        if match is None or int(match.group(1)) != offset:
            raise InputError(
                f"{self.label(name)}: found Content-Range {show(reply.headers.get('Content-Range'))} in the hub's "
                f"answer, expected bytes from {offset}"
            )
        return reply.body[:length], None if match.group(2) == "*" else int(match.group(2))

    def _request(self, name: str, limit: int, offset: int | None = None) -> _Reply:
        """One GET with its redirects. With `offset` it asks for a range and reads no more than the range's end."""
        import http.client
        import urllib.error
        import urllib.parse
        import urllib.request

        path = "/".join(
            (self.repository, "resolve", urllib.parse.quote(self.revision, safe=""), urllib.parse.quote(name))
        )
        request = urllib.request.Request(f"{self.endpoint}/{path}")  # noqa: S310 (scheme checked in _checked_endpoint)
        request.add_header("User-Agent", "kvplan")
        request.add_header("Accept-Encoding", "identity")
        if offset is not None:
            request.add_header("Range", f"bytes={offset}-{offset + limit - 1}")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                most = limit if response.status == 206 else limit + (offset or 0)
                body = self._read(response, most, name, strict=offset is None)
                return _Reply(body, response.headers, response.status)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refusal(name, error.code, error.headers) from None
        except urllib.error.URLError as error:
            raise self._unreachable(name, error.reason) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(name, error) from None

    def _read(self, response: Any, limit: int, name: str, strict: bool) -> bytes:
        """Read at most `limit` bytes before the deadline; with `strict` a longer body is an error."""
        end = time.monotonic() + self.deadline
        data = bytearray()
        wanted = limit + 1 if strict else limit
        while len(data) < wanted:
            chunk = response.read1(min(_CHUNK, wanted - len(data)))
            if not chunk:
                break
            data += chunk
            if time.monotonic() > end:
                raise InputError(
                    f"{self.label(name)}: found the hub still sending after {self.deadline:g} s, "
                    "expected a complete answer by then"
                )
        if len(data) > limit:
            raise InputError(f"{self.label(name)}: found more than {limit:,} bytes, expected at most that many")
        promised = response.headers.get("Content-Length") or ""
        if len(data) < limit and re.fullmatch(r"[0-9]{1,18}", promised) and len(data) < int(promised):
            raise InputError(
                f"{self.label(name)}: found {len(data):,} bytes before the hub closed the connection, "
                f"expected {int(promised):,}"
            )
        return bytes(data)

    def _refusal(self, name: str, status: int, headers: Any) -> InputError:
        reason = headers.get("X-Error-Code") or ""
        what = f"{self.repository}@{self.revision}"
        if status in (401, 403):
            wish = (
                "expected an HF_TOKEN with access to it (gated, private or missing model)"
                if self.token
                else "expected HF_TOKEN to be set to a token with access (gated, private or missing model)"
            )
            return InputError(f"{what}: the hub at {self.endpoint} refused {name} with status {status}, {wish}")
        if status == 404 and reason in ("RepoNotFound", "RevisionNotFound"):
            kind = "model" if reason == "RepoNotFound" else f"revision {show(self.revision)}"
            return InputError(
                f"{what}: the hub at {self.endpoint} knows no such {kind}, expected an existing one "
                "(a private model needs HF_TOKEN)"
            )
        if status == 404:
            return _MissingFile(
                f"{what}: the hub at {self.endpoint} has no {name} there (status 404), expected an existing model and "
                "revision with that file (a private model needs HF_TOKEN)"
            )
        if 300 <= status < 400:
            return InputError(
                f"{what}: the hub at {self.endpoint} redirected {name} in a circle, without an address or to another "
                f"scheme (status {status}), expected at most {MAX_REDIRECTS} redirects, to http or https"
            )
        if status == 429:
            return InputError(
                f"{what}: the hub at {self.endpoint} answered status 429 (too many requests) for {name}, "
                "expected room under its rate limit: try again later or set HF_TOKEN"
            )
        if status == 416:
            return InputError(
                f"{self.label(name)}: found too few bytes for a header (status 416), expected a whole file"
            )
        return InputError(f"{what}: the hub at {self.endpoint} answered status {status} for {name}, expected the file")

    def _unreachable(self, name: str, reason: object) -> InputError:
        import http.client

        if isinstance(reason, InputError):
            return reason
        if isinstance(reason, TimeoutError) or "timed out" in str(reason):
            text = f"no answer within {self.timeout:g} s"
        elif isinstance(reason, ConnectionRefusedError):
            text = "the connection was refused"
        elif isinstance(reason, (http.client.RemoteDisconnected, ConnectionError)):
            text = "the connection was closed without an answer"
        elif isinstance(reason, http.client.HTTPException):
            text = f"an answer that is no HTTP ({type(reason).__name__})"
        else:
            text = show(str(reason), 120)
        return InputError(
            f"{self.label(name)}: the hub at {self.endpoint} can't be read ({text}), "
            "expected a reachable hub: check HF_ENDPOINT and the network"
        )


def _json_object(body: bytes, name: str) -> dict[str, Any]:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: found a byte at offset {error.start} that is no UTF-8, expected JSON") from None
    value = parse_json(text, name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: found {show(value)}, expected a JSON object")
    return value


def _checked_endpoint(text: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        valid = valid and (parts.port is None or parts.port > 0) and not parts.query and not parts.fragment
    except ValueError:
        valid = False
    if not valid or not re.fullmatch(r"[!-~]+", text):
        raise InputError(f"HF_ENDPOINT: found {show(text)}, expected an address such as {DEFAULT_ENDPOINT}")
    return text.rstrip("/")


def _stored_token(endpoint: str) -> str:
    """The token that `hf auth login` left on this machine, where huggingface_hub (extra `hub`) is installed.

    It belongs to the public hub, so another endpoint is never given it.
    """
    if endpoint != DEFAULT_ENDPOINT:
        return ""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return ""
    return get_token() or ""


def _checked_token(text: str) -> str:
    token = text.strip()
    if token and not re.fullmatch(r"[!-~]{1,512}", token):
        raise InputError("HF_TOKEN: found a space, a line break or a special character, expected a plain token")
    return token


def _origin(url: str) -> tuple[str, str, int | None]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _opener(endpoint: str, token: str) -> OpenerDirector:
    """An opener for http and https only, whose redirects keep the token on the endpoint's origin."""
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        max_redirections = MAX_REDIRECTS

        def redirect_request(
            self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> Request | None:
            fp.close()  # the base class would read the redirect's body to its end, however long
            if _origin(newurl)[0] not in ("http", "https"):
                raise InputError(
                    f"{show(newurl)}: the hub at {endpoint} redirected there, expected an http or https address"
                )
            following = super().redirect_request(req, fp, code, msg, headers, newurl)
            if following is not None and token and _origin(newurl) == _origin(endpoint):
                following.add_unredirected_header("Authorization", f"Bearer {token}")
            return following

    opener = urllib.request.OpenerDirector()
    handlers: list[Callable[[], urllib.request.BaseHandler]] = [
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        Redirects,
    ]
    for handler in handlers:
        opener.add_handler(handler())
    return opener
