"""Findings that need the device and the engine's plan: each has a rule that stays its name."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.check.figures import Figures
from kvplan.check.manifests import Finding
from kvplan.check.manifests.reading import Level
from kvplan.engines.base import EngineAnswer
from kvplan.errors import InputError
from kvplan.memory.budget import Budget
from kvplan.memory.feasible import feasible_share
from kvplan.units import gib, tokens

HIGH_SHARE = 0.95
_LOGIT_BYTES = 4
_FP8 = ("fp8", "fp8_e4m3", "fp8_e4m3fn")


def capacity_findings(figures: Figures) -> list[Finding]:
    """What the device makes of a launch command; nothing where model or device is unknown, or the engine refuses it."""
    try:
        answer, budget = figures.plan()
        return [
            *_share(figures, answer, budget),
            *_states(figures, answer),
            *_idle(figures, answer),
            *_formats(figures, answer),
        ]
    except InputError:
        return []


def _at(figures: Figures, rule: str, level: Level, text: str, flag: str) -> Finding:
    subject = figures.subject
    return Finding(rule, level, text, subject.lines.get(flag, subject.line), subject.place, flag)


def _share(figures: Figures, answer: EngineAnswer, budget: Budget | None) -> Iterator[Finding]:
    if budget is None or budget.share is None or answer.refused is not None or answer.name not in ("vllm", "sglang"):
        return
    feasible = feasible_share(budget, answer.needed_bytes_one_request)
    over = feasible.most is not None and budget.share > feasible.most
    if not over and budget.share < HIGH_SHARE:
        return
    flag = "gpu_memory_utilization" if answer.name == "vllm" else "mem_fraction_static"
    left = round((1 - budget.share) * budget.poorest.share_of)
    seats = next(
        (item.value for item in answer.settings if item.name in ("max_num_seqs", "max_running_requests")), None
    )
    vocabulary = figures.loaded.spec.vocab_size
    warm = ""
    if isinstance(seats, int) and vocabulary:
        size = gib(seats * vocabulary * _LOGIT_BYTES)
        warm = (
            f"; the sampler's warm-up alone takes {seats:,} sequences x {vocabulary:,} logits x 4 B = {size} at a time"
        )
    said = (
        f"{flag} {budget.share:g} leaves {gib(left)} of each GPU for CUDA graphs, sampler warm-up, NCCL and a draft "
        f"model, which come after the pool in many releases{warm}: lower the share or max_num_seqs"
    )
    # What SGLang needs outside its fraction is a rule of thumb of its own, so a fraction above that may well work.
    yield _at(figures, "share-too-high", "error" if over and answer.name == "vllm" else "warning", said, flag)


def _states(figures: Figures, answer: EngineAnswer) -> Iterator[Finding]:
    """vLLM stops where more sequences may run than its pool has blocks for their recurrent states."""
    if answer.name != "vllm" or answer.refused is not None or answer.num_blocks is None:
        return
    if not any("state" in group.kind for group in answer.groups):
        return
    seats = answer.setting("max_num_seqs")
    if isinstance(seats, int) and seats > answer.num_blocks:
        said = (
            f"max_num_seqs {seats:,} is more than the {answer.num_blocks:,} blocks that can hold recurrent states: "
            "newer releases of vLLM stop here, older ones capped it silently; the highest that starts is "
            f"{answer.num_blocks:,}"
        )
        given = "max_num_seqs" in figures.subject.settings
        yield _at(figures, "states-over-pool", "error" if given else "warning", said, "max_num_seqs")


def _idle(figures: Figures, answer: EngineAnswer) -> Iterator[Finding]:
    """How many tokens the GPUs would hold that no rank uses."""
    subject = figures.subject
    if subject.gpus is None or subject.gpus <= subject.ranks or answer.name in ("llama.cpp", "ik_llama.cpp", "ollama"):
        return
    tensor = figures.question.parallel.tensor * (subject.gpus // subject.ranks)
    try:
        other, _ = figures.plan(tensor_parallel_size=tensor)
    except InputError:
        return
    if other.refused is None:
        before = "it doesn't start" if answer.refused is not None else f"{tokens(answer.capacity_tokens or 0)} tokens"
        said = (
            f"{subject.gpus - subject.ranks} of {subject.gpus} GPUs stay idle: with tensor parallel size {tensor} the "
            f"cache holds {tokens(other.capacity_tokens or 0)} tokens, now {before}"
        )
        yield _at(figures, "idle-capacity", "warning", said, "tensor_parallel_size")


def _formats(figures: Figures, answer: EngineAnswer) -> Iterator[Finding]:
    """Number formats by compute capability: as vLLM checks them when it starts (0.11 to 0.32)."""
    capability = figures.question.device.compute_capability
    settings, spec = figures.subject.settings, figures.loaded.spec
    if answer.name != "vllm" or capability is None:
        return
    version = tuple(int(part) for part in capability.split("."))
    name = figures.question.device.name
    dtype = str(settings.get("dtype", "auto")).lower()
    if version < (8, 0) and dtype in ("bfloat16", "bf16"):
        said = (
            f"dtype {dtype} on {name}, compute capability {capability}: bfloat16 needs 8.0, so vLLM refuses it; "
            "float16 works and takes the same bytes"
        )
        yield _at(figures, "format-unsupported", "error", said, "dtype")
    elif version < (8, 0) and dtype == "auto" and spec.dtype == "bfloat16":
        said = (
            f"the checkpoint is bfloat16 and {name} has compute capability {capability}: bfloat16 needs 8.0; older "
            "releases refuse it, newer ones take float16, which takes the same bytes"
        )
        yield _at(figures, "format-unsupported", "warning", said, "dtype")
    cache = str(settings.get("kv_cache_dtype", "auto")).lower()
    if cache in _FP8 and version < (8, 9):
        said = (
            f"kv_cache_dtype {cache} on {name}, compute capability {capability}: e4m3 in hardware needs 8.9 and "
            f"several backends refuse it below; fp8_e5m2 takes the same bytes, 16 bits hold half the tokens "
            f"({tokens((answer.capacity_tokens or 0) // 2)})"
        )
        yield _at(figures, "format-unsupported", "warning", said, "kv_cache_dtype")
    quantized = spec.quantization
    if cache == "fp8_e5m2" and quantized is not None and quantized.bits == 8 and "fp8" in quantized.method:
        said = "kv_cache_dtype fp8_e5m2 with an fp8 checkpoint: vLLM refuses the pair; fp8 (e4m3) takes the same bytes"
        yield _at(figures, "format-unsupported", "error", said, "kv_cache_dtype")
