"""A running server asked for what its log said: vLLM's and SGLang's /metrics, llama.cpp's /props and /slots.

Only GET requests, short timeouts, bounded answers, no redirects to another host.
"""

from __future__ import annotations

import re
from typing import Any

from kvplan.errors import InputError, show
from kvplan.evidence.runs import Figure, LogRun
from kvplan.units import GIB

TIMEOUT_SECONDS = 3.0
MAX_ANSWER_BYTES = 16 << 20

_LABELS = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([-+0-9.eE]+|NaN)\b", re.MULTILINE)


def ask_server(url: str, timeout: float = TIMEOUT_SECONDS) -> tuple[LogRun, ...]:
    """What the server at `url` tells about its cache, as a run (its lines are those of the answer read).

    Raises InputError when `url` is no http address, nothing answers in `timeout` seconds, or the answer is of no
    engine that kvplan reads.
    """
    base = url.rstrip("/")
    if not re.fullmatch(r"https?://[^\s/]+(?:/[^\s?#]*)?", base):
        raise InputError(f"--server: found {show(url)}, expected an address such as http://localhost:8000")
    metrics = _get(f"{base}/metrics", timeout)
    if metrics is not None and ("vllm:" in metrics or "sglang:" in metrics):
        return (_prometheus(metrics),)
    props = _get_json(f"{base}/props", timeout)
    if isinstance(props, dict):
        slots = _get_json(f"{base}/slots", timeout)
        return (_llama_cpp(props, slots if isinstance(slots, list) else []),)
    if metrics is None:
        raise InputError(
            f"--server: found nothing that answers at {base}, expected a running vLLM, SGLang or llama.cpp"
        )
    raise InputError(f"--server: found metrics of no known engine at {base}, expected vLLM, SGLang or llama.cpp")


def _get(address: str, timeout: float) -> str | None:
    """The text at `address`, None where the server has no such page. Raises InputError where none answers."""
    import http.client
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any, **kwargs: Any) -> None:
            return None

    request = urllib.request.Request(address, headers={"Accept": "text/plain, application/json"})  # noqa: S310
    opener = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            data = bytes(answer.read(MAX_ANSWER_BYTES + 1))
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"--server: {address} does not answer ({reason}), expected a running server") from None
    if len(data) > MAX_ANSWER_BYTES:
        raise InputError(f"--server: {address} answers with more than {MAX_ANSWER_BYTES:,} bytes, expected metrics")
    return data.decode("utf-8", errors="replace")


def _get_json(address: str, timeout: float) -> Any:
    from kvplan.files import parse_json

    text = _get(address, timeout)
    if text is None or not text.strip():
        return None
    try:
        return parse_json(text, address)
    except InputError:
        return None


def _prometheus(text: str) -> LogRun:
    """A vLLM or SGLang run out of its metrics."""
    engine = "vllm" if "vllm:" in text else "sglang"
    build = _Build(engine)
    for match in _SAMPLE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        name, value = match.group(1), match.group(3)
        labels = dict(_LABELS.findall(match.group(2) or ""))
        if name == "vllm:cache_config_info":
            _cache_config(build, labels, line)
        elif name == "vllm:num_preemptions_total":
            build.figure("preemptions", value, "count", line)
        elif name == "sglang:max_total_num_tokens":
            build.figure("tokens", value, "count", line)
        elif name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"):
            build.figure("usage", value, "ratio", line)
        if "model_name" in labels:
            build.flags.setdefault("model", labels["model_name"])
    return build.done(text.count("\n") + 1)


_CACHE_CONFIG = {
    "block_size": "block_size", "cache_dtype": "kv_cache_dtype", "enable_prefix_caching": "enable_prefix_caching",
    "num_gpu_blocks_override": "num_gpu_blocks_override", "gpu_memory_utilization": "gpu_memory_utilization",
    "mamba_block_size": "mamba_block_size", "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype", "mamba_cache_mode": "mamba_cache_mode",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}  # fmt: skip


def _cache_config(build: _Build, labels: dict[str, str], line: int) -> None:
    for label, flag in _CACHE_CONFIG.items():
        value = labels.get(label)
        if value not in (None, "", "None"):
            build.flag(flag, _typed(str(value)), line)
    build.figure("blocks", labels.get("num_gpu_blocks"), "count", line)
    build.figure("tokens", labels.get("kv_cache_size_tokens"), "count", line)
    build.figure("concurrency", labels.get("kv_cache_max_concurrency"), "ratio", line)
    # The engine's resolved block is not a block that was asked for when it has recurrent states.
    if "mamba_block_size" in build.flags:
        build.flags.pop("block_size", None)
        build.flags.pop("mamba_block_size", None)


def _typed(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,9}\.[0-9]{1,18}", text) else text[:200]


def _llama_cpp(props: dict[str, Any], slots: list[Any]) -> LogRun:
    """A llama.cpp run out of /props and /slots."""
    build = _Build("llama.cpp")
    settings = props.get("default_generation_settings")
    each = settings.get("n_ctx") if isinstance(settings, dict) else None
    count = props.get("total_slots")
    if isinstance(count, int) and 0 < count <= 256:
        build.flag("parallel", count, 1)
    if isinstance(each, int) and each > 0:
        build.figure("slot_length", str(each), "count", 1)
    lengths = [slot["n_ctx"] for slot in slots if isinstance(slot, dict) and isinstance(slot.get("n_ctx"), int)]
    if lengths:
        build.figure("cells", str(max(lengths)), "count", 1)
    name = props.get("model_alias") or str(props.get("model_path") or "").rpartition("/")[2]
    if name:
        build.flags["model"] = str(name).removesuffix(".gguf")[:200]
    version = re.match(r"b?([0-9]{3,6})\b", str(props.get("build_info", "")))
    return build.done(1, None if version is None else version.group(1))


class _Build:
    """A run in the making."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.figures: list[Figure] = []
        self.flags: dict[str, Any] = {}
        self.lines: dict[str, int] = {}

    def flag(self, name: str, value: Any, line: int) -> None:
        self.flags[name] = value
        self.lines[name] = line

    def figure(self, name: str, text: str | None, unit: str, line: int) -> None:
        """Add a figure; text that is no number adds none."""
        if text is None or not re.fullmatch(r"[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,2})?", text):
            return
        number = float(text)
        if abs(number) > GIB**2 or (unit == "count" and number < 0):
            return
        value: int | float = int(number) if unit == "count" else number
        self.figures.append(Figure(name, value, unit, 0, line, None, None, "a running server"))

    def done(self, lines: int, version: str | None = None) -> LogRun:
        return LogRun(self.engine, version, tuple(self.figures), self.flags, self.lines, (), (), 1, lines)
