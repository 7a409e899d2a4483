"""What is left for the cache: each engine's own identity, written once, over terms that say where the memory goes.

Every identity reads `start bytes = sum of the terms + bytes for the cache` on each rank. What differs is what an engine
starts from and what its memory flag is a share of.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from kvplan.memory.activation import activation_term, widths
from kvplan.memory.ranks import Ranked, RankWeights
from kvplan.memory.terms import Term, exact, mib_term
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB, KIB, MIB

WEIGHT_SPREAD_PERCENT = 2
EXPERT_PADDING = 256
CONTEXT_MIB = {"low": 250, "nominal": 450, "high": 700}


@record
class Run:
    """What an engine is asked to do with a model on a device.

    `total_bytes` is what the device shows the engine, `share` its memory flag (None where it has none), `tokens` and
    `sequences` what the profile run takes (0 sequences: it samples nothing), `length` the longest request. `rules` are
    the engine's figures at the release asked for. `unified` says that device and host share the memory,
    `vision` that an encoder is profiled too. `outside_share` is what the engine itself would leave, by rule of thumb,
    for all that its memory flag leaves out.
    """

    spec: ModelSpec
    weights: RankWeights
    ranks: Ranked
    total_bytes: int
    share: Fraction | None
    rules: Mapping[str, Any]
    tokens: int = 0
    sequences: int = 0
    length: int = 0
    drafts: int = 0
    eager: bool = False
    unified: bool = False
    vision: bool = False
    reserve_bytes: int = 0
    outside_share: float = 0


@record
class StageBudget:
    """One rank of one pipeline stage: `start_bytes` = nominal of all terms + `nominal`; `low` and `high` are what is
    left when every term is at its most and at its least. Each may be negative. The flag moves `nominal` by `share_of`
    bytes from 0 to 1."""

    start_bytes: int
    terms: tuple[Term, ...]
    low: int
    nominal: int
    high: int
    share_of: int


@record
class Budget:
    """The memory of each stage's ranks, the identity in words, and what the engine takes beyond it (`outside`)."""

    engine: str
    version: str
    total_bytes: int
    share: float | None
    identity: str
    stages: tuple[StageBudget, ...]
    outside: tuple[Term, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def available_bytes(self) -> tuple[int, ...]:
        """Expected bytes for the cache on a rank of each stage, never less than none."""
        return tuple(max(0, stage.nominal) for stage in self.stages)

    @property
    def poorest(self) -> StageBudget:
        """The stage with the least left."""
        return min(self.stages, key=lambda stage: stage.nominal)


def _stage(start: int, terms: list[Term | None], share_of: int) -> StageBudget:
    kept = tuple(term for term in terms if term is not None and term.high)
    low, nominal, high = (start - sum(getattr(term, key) for term in kept) for key in ("high", "nominal", "low"))
    return StageBudget(start, kept, low, nominal, high, share_of)


def _weights(run: Run, stage: int) -> Term:
    size = run.weights.stage_bytes[stage]
    spread = 0 if run.weights.exact else size * WEIGHT_SPREAD_PERCENT // 100
    parts = ", ".join(f"{part.name} {part.bytes / GIB:.2f}" for part in run.weights.stages[stage])
    return Term("weights", size - spread, size, size + spread, f"GiB a rank: {parts}", run.weights.source)


def _process(run: Run) -> list[Term]:
    """What a process holds outside its allocator, alone and for each kind of company it keeps."""
    rules, ranks = run.rules, run.ranks.tensor * run.ranks.pipeline
    terms = [mib_term("process", rules["process_mib"], "kernels and workspaces", rules["process_mib"]["source"])]
    if ranks > 1 and "communication_mib" in rules:
        figure = rules["communication_mib"]
        terms.append(mib_term("communication", figure, f"NCCL and its like, {ranks} ranks", figure["source"]))
    if run.unified and "unified_mib" in rules:
        figure = rules["unified_mib"]
        terms.append(mib_term("host side", figure, "the engine's processes in shared memory", figure["source"]))
    return terms


def _activations(run: Run, stage: int) -> Term | None:
    """The dummy run's peak: the first stage runs the vision encoder, the last one samples."""
    sequences = run.sequences if stage == run.ranks.pipeline - 1 else 0
    images = 0
    if run.vision and stage == 0 and "vision" in run.rules:
        images = min(run.rules["vision"]["tokens"], run.length)
    return activation_term(run.spec, run.tokens, sequences, run.ranks, run.rules, image_tokens=images)


def captured_batches(rules: Mapping[str, Any], sequences: int, drafts: int = 0) -> int:
    """How many batch sizes get a CUDA graph: 1, 2, 4, multiples of 8, coarser above, up to the greatest captured."""
    most = min(rules["most"], max(1, rules["per_sequence"] * sequences * (1 + drafts)))
    fine = min(most, rules["coarse_above"])
    sizes = [size for size in (1, 2, 4) if size <= most] + list(range(8, fine + 1, 8))
    return len(sizes + list(range(fine // 16 * 16 + 16, most + 1, 16)))


def graph_term(run: Run, layers: int) -> Term | None:
    """CUDA graphs of a stage of so many layers; None where none is captured."""
    if run.eager or "graph_kib" not in run.rules:
        return None
    figure, batches = run.rules["graph_kib"], captured_batches(run.rules["graph_sizes"], run.sequences, run.drafts)
    low, nominal, high = (int(figure[key] * KIB) * batches * layers for key in ("low", "nominal", "high"))
    return Term("CUDA graphs", low, nominal, high, f"{layers} layers x {batches} batch sizes", figure["source"])


def _context() -> Term:
    return mib_term("CUDA context", CONTEXT_MIB, "driver and context of the process", "assumed")


def padding_term(run: Run, stage: int) -> Term | None:
    """MXFP4 experts are padded to multiples of 256 in width when they are loaded; None for any others."""
    size, quantization = widths(run.spec), run.spec.quantization
    experts = sum(part.bytes for part in run.weights.stages[stage] if part.name == "experts")
    if size is None or not size.expert or quantization is None or quantization.method != "mxfp4":
        return None
    width = round(size.expert) / (1 if run.ranks.expert else run.ranks.tensor * run.ranks.data)
    added = int(experts * (ceil(width / EXPERT_PADDING) * EXPERT_PADDING / width - 1))
    says = f"experts of width {width:g} padded to a multiple of {EXPERT_PADDING}"
    return Term("expert padding", 0, added, added, says, "weights that vLLM 0.11.0 prints for gpt-oss-120b")


def vllm_stage(run: Run, stage: int) -> StageBudget:
    """vLLM: ceil(total x utilization) less all that the process holds after loading and what a dummy run peaks at."""
    start = ceil(run.total_bytes * (run.share or 1))
    graphs = graph_term(run, run.weights.layers[stage]) if run.rules["graphs_charged"] else None
    context = _context() if run.rules["context_charged"] else None
    held = [_weights(run, stage), padding_term(run, stage), _activations(run, stage), *_process(run), graphs, context]
    return _stage(start, held, run.total_bytes)


def sglang_stage(run: Run, stage: int) -> StageBudget:
    """SGLang: free after loading less a share of what was free before it. `reserve_bytes` of a multimodal model too."""
    before = run.total_bytes - sum(term.nominal for term in _process(run))
    kept = int(before * (1 - (run.share or 1)))
    slack = exact("kept free", kept, "(1 - mem_fraction_static) of what was free before loading", "the identity")
    reserve = exact("multimodal reserve", run.reserve_bytes, "embedding cache", "the identity")
    return _stage(run.total_bytes, [_weights(run, stage), *_process(run), slack, reserve], before)


def _share_of_rest(run: Run, terms: list[Term | None], name: str) -> StageBudget:
    rest = max(0, run.total_bytes - sum(term.nominal for term in terms if term is not None))
    kept = exact("kept free", rest - int(rest * (run.share or 1)), f"(1 - {name}) of the rest", "the identity")
    return _stage(run.total_bytes, [*terms, kept], rest)


def tensorrt_llm_stage(run: Run, stage: int) -> StageBudget:
    """TensorRT-LLM: a share of the total less weights, the dummy run's peak and what lies outside the allocator."""
    return _share_of_rest(
        run, [_weights(run, stage), _activations(run, stage), *_process(run)], "free_gpu_memory_fraction"
    )


def lmdeploy_stage(run: Run, stage: int) -> StageBudget:
    """LMDeploy: a share of what is free after loading less the logits of a prefill and of two batches, 2 B each."""
    vocabulary = run.spec.vocab_size or 0
    size = 2 * vocabulary * (run.tokens + 2 * run.sequences)
    says = f"2 B x {vocabulary:,} x ({run.tokens:,} + 2 x {run.sequences:,})"
    logits = exact("logits", size, says, "InternLM/lmdeploy pytorch/engine/executor/base.py")
    return _share_of_rest(run, [_weights(run, stage), logits, *_process(run)], "cache_max_entry_count")


def llama_cpp_stage(run: Run, stage: int) -> StageBudget:
    """llama.cpp: no share; weights, compute buffer and cache fit and leave a margin. `tokens` is the micro-batch."""
    margin = exact("margin", run.rules["margin_mib"] * MIB, "auto-fit leaves it free", "ggml-org/llama.cpp")
    return _stage(run.total_bytes, [_weights(run, stage), _compute_buffer(run), *_process(run), margin], 0)


def _compute_buffer(run: Run) -> Term | None:
    size = widths(run.spec)
    if size is None:
        return None
    values, spread = run.rules["layer_values"], run.rules["compute_spread"]
    wide = size.intermediate + size.routed * size.expert
    a_token = 4 * size.vocabulary + 2 * (values["intermediate"] * wide + values["hidden"] * size.hidden)
    nominal = int(run.tokens * a_token) + 2 * run.tokens * run.length
    low, high = nominal * (100 - spread["low"]) // 100, nominal * (100 + spread["high"]) // 100
    says = f"fp32 logits, one layer and the mask of {run.tokens} tokens"
    return Term("compute buffer", low, nominal, high, says, "buffers that llama.cpp prints for Llama-3.1-8B")


IDENTITIES = {
    "vllm": (vllm_stage, "ceil(total x gpu_memory_utilization) - what the engine holds - the dummy run's peak"),
    "sglang": (sglang_stage, "free after loading - (1 - mem_fraction_static) x free before loading"),
    "tensorrt-llm": (tensorrt_llm_stage, "free_gpu_memory_fraction x (total - weights - peak - outside the allocator)"),
    "lmdeploy": (lmdeploy_stage, "cache_max_entry_count x (free after loading - logits)"),
    "llama.cpp": (llama_cpp_stage, "total - weights - compute buffer - margin"),
}


def budget(engine: str, version: str, run: Run, *, warnings: tuple[str, ...] = ()) -> Budget:
    """The budget of `run` by the identity of `engine`, one of IDENTITIES. Raises KeyError for another name."""
    stage_of, identity = IDENTITIES[engine]
    stages = tuple(stage_of(run, stage) for stage in range(run.ranks.pipeline))
    outside: list[Term | None] = []
    if engine == "vllm":
        graphs = None if run.rules["graphs_charged"] else graph_term(run, max(run.weights.layers))
        outside = [None if run.rules["context_charged"] else _context(), graphs]
    elif run.outside_share:
        size = int(run.outside_share * min(stage.share_of for stage in stages))
        says = f"what {engine} leaves by default on this device and with this prefill size"
        outside = [exact("activations and graphs", size, says, "the engine's default of its memory flag")]
    assumptions = run.weights.assumptions
    if run.tokens and widths(run.spec) is None:
        assumptions += ("the activation peak is left out: the model's widths aren't known",)
    return Budget(
        engine, version, run.total_bytes, None if run.share is None else float(run.share), identity, stages,
        tuple(term for term in outside if term is not None), warnings, assumptions,
    )  # fmt: skip
