"""What a printed token count means in that release, and why it isn't what a simple formula gives."""

from __future__ import annotations

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.engines.base import EngineAnswer
from kvplan.engines.versions import load_rules, rules_at
from kvplan.errors import KvplanError
from kvplan.evidence.ask import Ask
from kvplan.evidence.runs import LogRun
from kvplan.record import record
from kvplan.spec.layers import LatentAttention
from kvplan.spec.model import branches
from kvplan.units import tokens

UNLIKE = 0.05
_RULES = {
    "gpu_blocks": "blocks x block size: the whole pool, as if one request had it",
    "groups": "blocks // groups x the smallest block (x decode context parallel size): one group's share of the pool, "
    "which is less than the pool holds wherever groups need unequal numbers of blocks",
    "concurrency": "concurrency x max_model_len: what requests of the greatest length hold together, so the same pool "
    "prints another number at another max_model_len",
}
_OTHERS = {
    "sglang": "slots of the token pool of one rank: every request's tokens share them",
    "tensorrt-llm": "blocks x tokens per block of one rank",
    "lmdeploy": "blocks, each of cache_block_seq_len tokens over all layers",
    "tgi": "blocks x their size: all requests' tokens together",
    "llama.cpp": "cells, allocated whole at the start and shared or split among the slots",
}
_OTHERS |= {"ollama": _OTHERS["llama.cpp"], "ik_llama.cpp": _OTHERS["llama.cpp"]}


@record
class Meaning:
    """`rule` is what the release counts; `printed` what it prints, `full_length_tokens` what requests of the greatest
    length hold at once (concurrency x length), `ratio` the second over the first. None where the log has no figure."""

    rule: str
    text: str
    printed: int | None
    full_length_tokens: int | None
    ratio: float | None


@record
class Naive:
    """A simple formula's count, cache memory of all ranks / bytes of a token in every layer, and `reasons` why the
    engine's differs. `ratio` is printed over naive."""

    tokens: int
    formula: str
    ratio: float | None
    reasons: tuple[str, ...]


def meaning_of(run: LogRun, ask: Ask, answer: EngineAnswer | None) -> Meaning | None:
    """What the token line of `run` says, or its block line where it has no token line; None where it has neither."""
    printed = _printed(run, answer)
    if printed is None:
        return None
    rule, name = _OTHERS.get(ask.engine, ""), ask.engine
    concurrency, length = run.least("concurrency"), run.flags.get("max_model_len")
    full = None
    if concurrency is not None and isinstance(length, int):
        full = round(float(concurrency.value) * length)
    ratio = full / printed if full is not None and printed > 0 else None
    if ask.engine == "vllm":
        name = _counted_by(ask, ratio)
        rule = _RULES[name]
    return Meaning(name, rule, printed, full, ratio)


def _counted_by(ask: Ask, ratio: float | None) -> str:
    """The rule of the release; where the log names none, the one that the two printed figures fit."""
    try:
        known = str(rules_at("vllm", load_rules("vllm"), ask.version)["counted_by"])
    except KvplanError:
        known = "concurrency"
    return "groups" if ask.version is None and ratio is not None and abs(ratio - 1) > UNLIKE else known


def _printed(run: LogRun, answer: EngineAnswer | None) -> int | None:
    """Tokens as printed, or blocks x block size."""
    for name in ("tokens", "cells"):
        figure = run.least(name)
        if figure is not None:
            return int(figure.value)
    blocks = run.least("blocks")
    size = run.number("block_tokens") or run.flags.get("block_size")
    if size is None and answer is not None:
        size = next((item.value for item in answer.settings if item.name == "block_size"), None)
    return int(blocks.value) * size if blocks is not None and isinstance(size, int) else None


def naive_of(run: LogRun, ask: Ask, answer: EngineAnswer | None) -> Naive | None:
    """The simple formula's count and the reasons it misses; None without a model, or memory to divide."""
    memory = run.least("available")
    if memory is None or ask.loaded is None or int(memory.value) <= 0:
        return None
    spec, ranks = ask.loaded.spec, ask.parallel.tensor * ask.parallel.pipeline
    dtype = str(ask.settings.get("kv_cache_dtype", "auto"))
    try:
        precision = resolve_precision(dtype if dtype.startswith("fp8") else "auto", model_dtype=spec.dtype)
    except KvplanError:
        precision = resolve_precision("auto", model_dtype=spec.dtype)
    each = int(plan_cache(spec, precision).marginal_bytes(1))
    if each <= 0:
        return None
    count = int(memory.value) * ranks // each
    printed = run.least("tokens")
    ratio = int(printed.value) / count if printed is not None and count else None
    over = f" x {ranks} ranks" if ranks > 1 else ""
    formula = f"{int(memory.value):,} B{over} / {each:,} B a token = {tokens(count)} tokens"
    return Naive(count, formula, ratio, tuple(_reasons(ask, answer)))


def _reasons(ask: Ask, answer: EngineAnswer | None) -> list[str]:
    assert ask.loaded is not None
    spec, tensor = ask.loaded.spec, ask.parallel.tensor
    layers = [branch for name in spec.counts for branch in branches(spec.blocks[name])]
    found = []
    latent = any(isinstance(layer, LatentAttention) for layer in layers)
    if latent and tensor > 1 and ask.parallel.decode_context < tensor:
        found.append(f"tensor parallelism doesn't split a latent cache: each of {tensor} ranks holds it whole")
    heads = [
        layer.kv_heads for layer in layers if hasattr(layer, "kv_heads") and not isinstance(layer, LatentAttention)
    ]
    if heads and tensor > min(heads):
        found.append(f"{min(heads)} KV heads on {tensor} ranks: heads are copied beyond their number")
    if answer is None:
        return found
    for group in answer.groups:
        if "sliding" in group.kind or "chunked" in group.kind:
            batch = next((item.value for item in answer.settings if item.name == "max_num_batched_tokens"), "?")
            found.append(
                f"a window reserves its tokens and a batch in flight ({batch} tokens): "
                f"{tokens(group.blocks_per_request)} blocks a request in each of its groups"
            )
            break
    states = [group for group in answer.groups if group.kind == "recurrent state"]
    if states:
        blocks = sum(group.blocks_per_request for group in states)
        found.append(f"recurrent states take {blocks} blocks of each request whatever its length")
    if len(answer.groups) > 1:
        sizes = sorted({group.bytes_per_block for group in answer.groups})
        if len(sizes) > 1:
            found.append(f"groups of {sizes[0]:,} to {sizes[-1]:,} B a block share a pool of the widest")
    if spec.draft_layers and ask.settings.get("speculative_config"):
        found.append("draft layers keep a cache of their own")
    if ask.parallel.tensor * ask.parallel.data > 1:
        found.append("the poorest rank sets the pool of all")
    found.append("blocks are whole: what is left of the last one isn't used")
    return found
