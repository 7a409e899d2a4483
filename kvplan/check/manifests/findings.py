"""What is wrong, or not as it looks, and certain from the file alone: each finding has a rule that stays its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from kvplan.check.manifests import host_findings, model_findings
from kvplan.check.manifests.reading import Finding, FoundCommand, Level
from kvplan.check.manifests.source import Source
from kvplan.engines.commands.flags import ENGINES, load_table, version_number

Rule = Callable[[FoundCommand], Iterable[Finding]]
_MAX_HINTS = 20
_LENGTHS = {"vllm": "max_model_len", "sglang": "context_length", "tensorrt-llm": "max_seq_len",
            "lmdeploy": "session_len", "llama.cpp": "ctx_size", "ollama": "context_length"}  # fmt: skip
# Engines that spread over every device they see, whatever their flags say.
_SPREADING = ("llama.cpp", "ollama")


def finding(found: FoundCommand, rule: str, level: Level, text: str, flag: str | None = None) -> Finding:
    """A finding at the line of `flag`, else at the command's."""
    line = found.command.lines.get(flag or "", found.line) or found.line
    return Finding(rule, level, text, line, found.place, flag)


def find_mistakes(source: Source, commands: Sequence[FoundCommand]) -> list[Finding]:
    """Every finding about the commands of one file."""
    rules: tuple[Rule, ...] = (
        _mistakes,
        _unknown,
        _refused,
        _overridden,
        _chunked,
        _ranks,
        _slots,
        _length,
        _pools,
        _formats,
    )
    out = [item for found in commands for rule in rules for item in rule(found)]
    out += [item for found in commands for item in model_findings.find(found)]
    out += [item for found in commands for item in host_findings.find(found)]
    return out + host_findings.shared_devices(commands)


def _mistakes(found: FoundCommand) -> Iterable[Finding]:
    for text in found.command.mistakes:
        yield finding(found, "entrypoint-repeated", "error", text)


def _unknown(found: FoundCommand) -> Iterable[Finding]:
    command = found.command
    for name, raw in zip(command.unknown, command.raw_unknown, strict=False):
        engine = f"{command.engine} {command.version}" if command.version else command.engine
        if name in command.removed:
            until = command.removed[name]
            said = (f"--{name.replace('_', '-')} is no argument of {command.engine} {until} and later, so the "
                    "process exits at "
                    f"once")  # fmt: skip
            yield finding(found, "removed-flag", "error", said, name)
        elif raw.startswith("-") and " " in raw:
            said = (
                f"{raw[:60]!r} is one argument with a space in it: {engine} sees no flag of that name; "
                "write two words, or ="
            )
            yield finding(found, "joined-argument", "error", said, name)
        elif not raw.startswith("-") and not raw.startswith("OLLAMA_"):
            yield finding(found, "stray-argument", "error", _stray(found, raw, engine), name)
        else:
            yield finding(found, "unknown-flag", "error", _no_such_flag(found, raw, engine), name)


def _stray(found: FoundCommand, raw: str, engine: str) -> str:
    said = f"{raw[:60]!r} belongs to no flag of {engine}"
    if "/" in raw and found.command.engine == "vllm" and found.command.model is None:
        return f"{said}: the API server module takes the model as --model {raw}, only `vllm serve` takes it as a word"
    return f"{said}, so the process refuses it"


def _no_such_flag(found: FoundCommand, raw: str, engine: str) -> str:
    spelling = raw.partition("=")[0]
    if spelling.startswith("OLLAMA_"):
        return f"{spelling} is no variable of Ollama: it has no effect"
    table, number = load_table(found.command.engine), version_number(found.command.version)
    key = spelling.replace("_", "-") if table.style != "click" else spelling
    others = [name for name in ENGINES if name != found.command.engine and load_table(name).find(key, None)]
    close = table.nearest(key, number) if len(found.command.unknown) < _MAX_HINTS else None
    own = f"; nearest: {close}" if close else ""
    foreign = f"; it is a flag of {others[0]}" if others else ""
    return f"{spelling} is no argument of {engine}, so the process exits at once{own}{foreign}"


def _refused(found: FoundCommand) -> Iterable[Finding]:
    for text in found.command.refused:
        name = text.split(": ")[1] if text.startswith("line ") else text.split(":")[0]
        flag = name.split(" ")[0].lstrip("-").replace("-", "_")
        plain = text.partition(": ")[2] if text.startswith("line ") else text
        template = (
            ("; a number with an exponent is one printed by a template")
            if re.search(r"'[0-9.]+e\+?[0-9]+'", plain)
            else ""
        )
        yield finding(
            found, "refused-value", "error", f"{found.command.engine} refuses this at start: {plain}{template}", flag
        )


def _overridden(found: FoundCommand) -> Iterable[Finding]:
    for text in found.command.overridden:
        flag = text.split(": ")[-1].split(" ")[0].lstrip("-").replace("-", "_")
        if found.command.engine == "tensorrt-llm":
            said = f"{text} (the reverse of vLLM and SGLang, where the command line wins)"
            yield finding(found, "options-file-wins", "warning", said, flag)
        else:
            yield finding(found, "flag-overrides-variable", "warning", f"{text}: the variable has no effect", flag)


def _chunked(found: FoundCommand) -> Iterable[Finding]:
    flags = found.command.flags
    budget, length = flags.get("max_num_batched_tokens"), flags.get("max_model_len")
    off = flags.get("enable_chunked_prefill") is False
    if (
        found.command.engine == "vllm"
        and off
        and isinstance(budget, int)
        and isinstance(length, int)
        and budget < length
    ):
        said = (f"chunked prefill is off and max_num_batched_tokens {budget:,} < max_model_len {length:,}: a "
                "prompt longer than "
                f"{budget:,} tokens can't be scheduled without chunks, and vLLM refuses the pair at start")  # fmt: skip
        yield finding(found, "unchunked-budget", "error", said, "max_num_batched_tokens")


def _ranks(found: FoundCommand) -> Iterable[Finding]:
    count, ranks = found.accelerator.count, _local_ranks(found)
    if count is None or found.command.engine in _SPREADING:
        return
    parallel = found.command.parallelism()
    sizes = f"TP {parallel.tensor} x PP {parallel.pipeline} x DP {parallel.data}"
    unknown = any(value is None for name, value in found.command.flags.items() if name.endswith(("_size", "tp", "dp")))
    if ranks > count:
        said = (f"ranks = {sizes} = {ranks}, devices in the file = {count}: the engine doesn't start; set the "
                f"sizes to {count} "
                f"or ask for {ranks} devices")  # fmt: skip
        yield finding(found, "more-ranks-than-devices", "error", said, _size_flag(found))
    elif count > ranks and not unknown:
        said = (f"{count - ranks} of {count} devices stay idle: ranks = {sizes} = {ranks}; more tensor "
                "parallel ranks would hold "
                f"more tokens, except where KV heads or an MLA latent are repeated on every rank")  # fmt: skip
        yield finding(found, "idle-devices", "warning", said, _size_flag(found))


def _local_ranks(found: FoundCommand) -> int:
    """Ranks on the devices the file counts: with a local data parallel size, only those."""
    local = found.command.flags.get("data_parallel_size_local")
    parallel = found.command.parallelism()
    if isinstance(local, int) and local > 0:
        return parallel.tensor * parallel.pipeline * local
    return found.command.ranks


def _size_flag(found: FoundCommand) -> str | None:
    names = ("tensor_parallel_size", "tp_size", "tp")
    return next((name for name in names if name in found.command.flags), None)


def _slots(found: FoundCommand) -> Iterable[Finding]:
    flags = found.command.flags
    context, slots = flags.get("ctx_size"), flags.get("parallel")
    if found.command.engine == "llama.cpp" and isinstance(context, int) and context > 0:
        if isinstance(slots, int) and slots > 1 and not flags.get("kv_unified"):
            said = (f"--parallel {slots} is given, so the context of {context:,} tokens is split: "
                    f"{context // slots:,} tokens for "
                    f"each slot")  # fmt: skip
            yield finding(found, "context-split", "warning", said, "parallel")
        elif slots is None and "parallel" not in flags:
            said = f"--parallel is not given: newer servers share one pool of {context:,} tokens among 4 slots"
            yield finding(found, "context-shared", "note", said, "ctx_size")
    if found.command.engine == "ollama" and found.context_total is not None:
        length, slots = flags.get("context_length"), flags.get("num_parallel", 1)
        if isinstance(slots, int) and slots > 1:
            said = (f"{length:,} tokens are for each of {slots} parallel requests: the runner gets "
                    f"{found.context_total:,} tokens "
                    f"of cache")  # fmt: skip
            yield finding(found, "context-multiplied", "warning", said)


def _length(found: FoundCommand) -> Iterable[Finding]:
    engine, flags = found.command.engine, found.command.flags
    name = _LENGTHS[engine]
    if name in flags and flags[name] != 0:
        return
    if engine == "ollama":
        said = "OLLAMA_CONTEXT_LENGTH is not set: the length depends on the card, 4k, 32k or 256k by the memory found"
        yield finding(found, "length-unset", "warning", said)
        return
    length = model_findings.checkpoint_length(found)
    taken = f"{length} from the checkpoint" if length else "the length that the checkpoint names"
    more = " and allocates all of it at start" if engine == "llama.cpp" else ""
    yield finding(found, "length-unset", "warning", f"{name} is not set: the engine takes {taken}{more}")


def _pools(found: FoundCommand) -> Iterable[Finding]:
    flags = found.command.flags
    ranks = flags.get("dp_size") or flags.get("attn_dp_size")
    if found.command.engine == "sglang" and flags.get("enable_dp_attention") and isinstance(ranks, int) and ranks > 1:
        said = (
            f"with data-parallel attention the {ranks} ranks are {ranks} separate token pools: one request "
            "uses one of them"
        )
        yield finding(found, "separate-pools", "note", said, "enable_dp_attention")


def _formats(found: FoundCommand) -> Iterable[Finding]:
    flags = found.command.flags
    if found.command.engine == "llama.cpp" and flags.get("flash_attn") in ("off", "0", "false"):
        kind = flags.get("cache_type_v")
        if isinstance(kind, str) and kind not in ("f32", "f16", "bf16"):
            said = (
                f"--cache-type-v {kind} with flash attention off: the server refuses a quantized V without "
                "flash attention"
            )
            yield finding(found, "quantized-without-flash", "error", said, "cache_type_v")
    if (
        found.command.engine == "ollama"
        and flags.get("flash_attention") is False
        and flags.get("kv_cache_type") not in (None, "f16")
    ):
        said = f"OLLAMA_KV_CACHE_TYPE {flags['kv_cache_type']} has no effect with flash attention off: the cache is f16"
        yield finding(found, "quantized-without-flash", "warning", said)
