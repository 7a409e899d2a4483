"""Findings about where a GPU's memory went."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.evidence.findings import Evidence, Finding, finding
from kvplan.evidence.memory import MemoryTerm
from kvplan.units import GIB, gib

LARGE_NON_TORCH = 2 * GIB
UNEQUAL_RANKS = 0.02
WEIGHTS_APART = 0.15
#: graphs are inside the share from here on
GRAPHS_INSIDE = (0, 21)


def _term(evidence: Evidence, name: str) -> MemoryTerm | None:
    return next((term for term in evidence.memory.terms if term.name == name and term.observed is not None), None)


def _does_not_add_up(evidence: Evidence) -> Iterator[Finding]:
    memory = evidence.memory
    if memory.closes is False and memory.gap_bytes is not None:
        yield finding(
            "memory-does-not-add-up",
            f"share less terms and pool leaves {memory.gap_bytes / GIB:.2f} GiB at {memory.share:g}; the same "
            f"figures add up at {memory.solved_share:g}",
            "check the share that was in force: the figures or the share are those of another start",
        )


def _graphs(evidence: Evidence) -> Iterator[Finding]:
    term = _term(evidence, "CUDA graphs")
    if term is None or evidence.run.engine != "vllm" or (term.observed or 0) < GIB // 2:
        return
    from kvplan.engines.versions import parse_version
    from kvplan.errors import InputError

    try:
        inside = parse_version(evidence.run.version or "0", "vllm", "0.11") >= GRAPHS_INSIDE
    except InputError:
        return
    if not inside and evidence.run.last("graphs_estimate") is None:
        yield finding(
            "graphs-outside-share", f"CUDA graphs took {gib(term.observed or 0)} after the pool was sized",
            "leave that much outside the share, capture fewer batch sizes, or --enforce-eager", lines=(term.line,),
        )  # fmt: skip


def _weights(evidence: Evidence) -> Iterator[Finding]:
    term = _term(evidence, "weights")
    if term is None or term.error is None or abs(term.error) <= WEIGHTS_APART or evidence.ask.loaded is None:
        return
    kind = evidence.run.flags.get("quantization")
    has = f" (quantization: {kind})" if kind else ""
    yield finding(
        "weights-differ",
        f"{gib(max(0, term.observed or 0))} are printed{has}, {evidence.ask.loaded.spec.id} has "
        f"{gib(term.predicted or 0)} on a rank: the log is of another checkpoint, or of other parallel sizes",
        "--model with the checkpoint's own config.json or folder; --set expert and data parallel sizes",
        lines=(term.line,),
    )


def _graphs_inside(evidence: Evidence) -> Iterator[Finding]:
    figure, share = evidence.run.last("share_without_graphs"), evidence.memory.share
    if figure is not None and share is not None:
        same = min(1.0, 2 * share - float(figure.value))
        yield finding(
            "graphs-inside-share",
            f"a share of {share:g} acts like {float(figure.value):g} before graphs were counted in it",
            f"--gpu-memory-utilization {same:.4g} gives the cache what it had before",
            lines=(figure.line,),
        )


def _activation(evidence: Evidence) -> Iterator[Finding]:
    term, pool = _term(evidence, "activation"), _term(evidence, "KV cache")
    if term is None or pool is None or (term.observed or 0) < max(GIB, pool.observed or 0):
        return
    batched = evidence.setting("max_num_batched_tokens")
    has = f" (max_num_batched_tokens is {batched})" if batched else ""
    yield finding(
        "large-activation",
        f"a dummy run peaks at {gib(term.observed or 0)} and the cache has {gib(max(0, pool.observed or 0))}{has}",
        "fewer batched tokens, fewer images a prompt, or a shorter --max-model-len where chunked prefill is off",
        lines=(term.line,),
    )


def _non_torch(evidence: Evidence) -> Iterator[Finding]:
    term = _term(evidence, "non-torch")
    if term is not None and (term.observed or 0) >= LARGE_NON_TORCH:
        yield finding(
            "large-non-torch",
            f"{gib(term.observed or 0)} are held outside the engine's allocator: other processes on the device, "
            "communication buffers, or a kernel library's workspace",
            "start on an empty device; compare with --enforce-eager and without the quantization kernel",
            lines=(term.line,),
        )


def _ranks(evidence: Evidence) -> Iterator[Finding]:
    figures = [figure for figure in evidence.run.all("available") if int(figure.value) > 0]
    if len(figures) < 2:
        return
    least = min(figures, key=lambda figure: float(figure.value))
    most = max(figures, key=lambda figure: float(figure.value))
    if int(most.value) <= int(least.value) * (1 + UNEQUAL_RANKS):
        return
    who = f" ({least.rank})" if least.rank else ""
    yield finding(
        "ranks-differ",
        f"the poorest rank{who} has {gib(int(least.value))} for the cache, the richest {gib(int(most.value))}: the "
        "poorest sets the pool of all",
        "free what else is on the poorest device, or split the layers by what each has",
        lines=(least.line, most.line),
    )


def _on_host(evidence: Evidence) -> Iterator[Finding]:
    have, every = evidence.run.last("layers_on_gpu"), evidence.run.number("layers_all")
    if have is not None and every is not None and int(have.value) < every:
        yield finding(
            "layers-on-host", f"{have.value} of {every} layers are on the GPU, the others and their cache on the host",
            "a shorter context, a quantized cache, or a smaller checkpoint", lines=(have.line,),
        )  # fmt: skip


MEMORY_RULES = (_does_not_add_up, _weights, _graphs, _graphs_inside, _activation, _non_torch, _ranks, _on_host)
