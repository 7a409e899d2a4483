"""Findings about how the cache is laid out in the pool, and what a change would gain."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.evidence.ask import Ask
from kvplan.evidence.findings import Evidence, Finding, Gain, finding, gain_of
from kvplan.spec import layers as kinds
from kvplan.spec.model import branches
from kvplan.units import tokens

MISLEADING = 1.25
WORTH = 1.05


def _layers(evidence: Evidence) -> list[kinds.SingleLayer]:
    if evidence.ask.loaded is None:
        return []
    spec = evidence.ask.loaded.spec
    return [branch for name in spec.counts for branch in branches(spec.blocks[name])]


def _worth(gain: Gain | None) -> bool:
    return gain is not None and (gain.starts or (gain.ratio or 0) >= WORTH)


def _misleading(evidence: Evidence) -> Iterator[Finding]:
    meaning = evidence.meaning
    if meaning is None or meaning.ratio is None or meaning.rule != "groups" or meaning.ratio < MISLEADING:
        return
    yield finding(
        "printed-tokens-mislead",
        f"{tokens(meaning.printed or 0)} tokens are printed; requests of the greatest length hold "
        f"{tokens(meaning.full_length_tokens or 0)} together, {meaning.ratio:.1f}x as many",
        "read concurrency x length; vLLM 0.20.1 and later print that",
        lines=tuple(figure.line for figure in evidence.run.all("tokens")[:1]),
    )


def _batch_reserve(evidence: Evidence) -> Iterator[Finding]:
    batched = evidence.setting("max_num_batched_tokens")
    windowed = any(isinstance(layer, kinds.SlidingWindow | kinds.ChunkedAttention) for layer in _layers(evidence))
    if not windowed or not isinstance(batched, int) or batched <= 2048 or evidence.ask.engine != "vllm":
        return
    gain = evidence.gain(f"max_num_batched_tokens {batched} -> 2048", max_num_batched_tokens=2048)
    if gain is not None and _worth(gain):
        yield finding(
            "batch-reserve",
            f"each windowed group reserves its window and a batch of {tokens(batched)} tokens for every request",
            "--max-num-batched-tokens 2048 (prefill takes more steps)", gain=gain,
        )  # fmt: skip


def _latent(evidence: Evidence) -> Iterator[Finding]:
    tensor, context = evidence.ask.parallel.tensor, evidence.ask.parallel.decode_context
    layers = _layers(evidence)
    if tensor == 1 or context == tensor or not any(isinstance(item, kinds.LatentAttention) for item in layers):
        return
    gain = None
    if evidence.ask.engine == "vllm":
        gain = evidence.gain(f"decode_context_parallel_size {context} -> {tensor}", decode_context_parallel_size=tensor)
    fix = f"--decode-context-parallel-size {tensor} splits its tokens over the ranks" if gain else (
        "data parallelism keeps one copy a request where the engine has it"
    )  # fmt: skip
    yield finding("latent-copied", f"{tensor // context} copies of the same latent cache are held", fix, gain=gain)


def _copied_heads(evidence: Evidence) -> Iterator[Finding]:
    tensor = evidence.ask.parallel.tensor
    attention = kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention
    heads = [layer.kv_heads for layer in _layers(evidence) if isinstance(layer, attention)]
    if heads and tensor > min(heads):
        yield finding(
            "heads-copied", f"{min(heads)} KV heads on {tensor} ranks: {tensor // min(heads)} copies of each",
            f"no more than {min(heads)} tensor-parallel ranks a replica, and data parallelism beyond",
        )  # fmt: skip


def _windows_unused(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answer
    windowed = any(isinstance(layer, kinds.SlidingWindow | kinds.ChunkedAttention) for layer in _layers(evidence))
    if answer is None or not windowed or evidence.ask.engine != "vllm":
        return
    if any("sliding" in group.kind or "chunked" in group.kind for group in answer.groups):
        return
    gain = None
    if evidence.setting("disable_hybrid_kv_cache_manager"):
        gain = evidence.gain("hybrid KV cache manager on", disable_hybrid_kv_cache_manager=False)
        fix = "leave --disable-hybrid-kv-cache-manager out"
    else:
        gain, fix = _newer(evidence), "a release whose cache manager knows windows"
    yield finding("windows-unused", "the model's windows don't shorten what its layers keep", fix, gain=gain)


def _newer(evidence: Evidence) -> Gain | None:
    """What the newest release known would hold in the same bytes."""
    ask, available = evidence.ask, evidence.available
    if evidence.answer is None or available is None or ask.model is None:
        return None
    newest = Ask(
        ask.engine, None, ask.model, ask.loaded, ask.device, ask.device_source, ask.accelerator, ask.settings,
        ask.parallel,
    )  # fmt: skip
    other = newest.try_plan(available, num_gpu_blocks_override=None)
    if other is None:
        return None
    return gain_of(f"{ask.engine} {ask.version or '?'} -> {other.version}", evidence.answer, other)


def _old_version(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ask.engine != "vllm" or evidence.ask.version is None:
        return
    gain = _newer(evidence)
    if gain is not None and (gain.ratio or 0) >= 1.1:
        yield finding("old-version", f"the same bytes hold {tokens(gain.after)} tokens in a later release",
                      f"upgrade: {gain.change}", gain=gain)  # fmt: skip


def _padding(evidence: Evidence) -> Iterator[Finding]:
    layers, percent = evidence.run.last("padding_layers"), evidence.run.last("padding_percent")
    if layers is not None and percent is not None:
        yield finding(
            "layers-padded",
            f"{layers.value} layers of padding even the groups out: at most {percent.value:g} % of the pool is empty",
            "nothing to set: it follows from the numbers of layers of each kind",
            lines=(layers.line,),
        )


def _sequences(evidence: Evidence) -> Iterator[Finding]:
    most = evidence.setting("max_num_seqs")
    printed = evidence.run.least("concurrency")
    if not isinstance(most, int) or printed is None:
        return
    fits = float(printed.value)
    length = evidence.setting("max_model_len")
    asked = "max_num_seqs" in evidence.ask.settings
    if fits < most and asked:
        yield finding(
            "sequences-exceed-pool",
            f"{most} sequences are allowed and {fits:g} of {length} tokens fit: beyond that, requests wait or are "
            "preempted once they grow",
            f"--max-num-seqs {max(1, int(fits))} for full-length requests, or count on shorter ones",
            lines=(printed.line,),
        )
    elif asked and fits > 2 * most:
        yield finding(
            "pool-unreachable", f"{most} sequences of {length} tokens use {most / fits:.0%} of the pool; the rest only "
            "keeps prefixes", "raise --max-num-seqs, or a smaller share of memory", lines=(printed.line,),
        )  # fmt: skip


def _sixteen_bits(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ask.engine != "vllm" or evidence.setting("kv_cache_dtype") not in (None, "auto", "bfloat16", "float16"):
        return
    gain = evidence.gain("kv_cache_dtype auto -> fp8", kv_cache_dtype="fp8")
    if gain is not None and _worth(gain):
        yield finding("cache-16-bit", "keys and values are stored in 16 bits",
                      "--kv-cache-dtype fp8 (where the device and the accuracy allow)", gain=gain)  # fmt: skip


def _states(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answer
    if answer is None or not any(group.kind == "recurrent state" for group in answer.groups):
        return
    if evidence.setting("mamba_cache_mode") == "none":
        return
    gain = evidence.gain("enable_prefix_caching -> false", enable_prefix_caching=False)
    if gain is not None and _worth(gain):
        yield finding("state-checkpoints", "prefix caching keeps further recurrent states of each request",
                      "--no-enable-prefix-caching where prompts share nothing", gain=gain)  # fmt: skip


def _drafting(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.setting("speculative_config"):
        return
    gain = evidence.gain("without speculative decoding", speculative_config=None)
    if gain is not None and _worth(gain):
        yield finding("draft-cache", "draft layers and drafted tokens take a part of the pool",
                      "weigh the speed of drafting against this capacity", gain=gain)  # fmt: skip


def _slots(evidence: Evidence) -> Iterator[Finding]:
    run, slots = evidence.run, evidence.run.flags.get("parallel")
    cells, training = run.flags.get("ctx_size"), run.number("training_length")
    if not isinstance(cells, int):
        return
    line = run.flag_lines.get("ctx_size", 0)
    if isinstance(slots, int) and slots > 1 and run.flags.get("kv_unified") is False:
        yield finding("slots-split-context", f"{tokens(cells)} cells are split among {slots} slots: "
                      f"{tokens(cells // slots)} for a request", "-c is the total: multiply it, or fewer slots (-np)",
                      lines=(line,))  # fmt: skip
    if training is not None and cells == training:
        yield finding("training-length-allocated", f"all {tokens(cells)} cells of the training length are allocated",
                      "-c with the length that is needed", lines=(line,))  # fmt: skip


def _unexplained(evidence: Evidence) -> Iterator[Finding]:
    off = [check for check in evidence.checks if not check.agrees]
    if off:
        says = "; ".join(f"{item.name}: {item.observed:,.0f} printed, {item.predicted:,.0f} predicted" for item in off)
        yield finding("not-explained", says, "give what the log lacks (--set, --gpu, --model), or report the log",
                      lines=tuple(item.line for item in off))  # fmt: skip


LAYOUT_RULES = (
    _misleading,
    _batch_reserve,
    _latent,
    _copied_heads,
    _windows_unused,
    _old_version,
    _padding,
    _sequences,
    _sixteen_bits,
    _states,
    _drafting,
    _slots,
    _unexplained,
)
