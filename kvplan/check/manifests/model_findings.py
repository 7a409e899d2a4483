"""Findings that need the model's shape as well, for models that kvplan knows by name."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.check.manifests.reading import Finding, FoundCommand, Level
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches
from kvplan.spec.resolve import registry

_STATES = (
    kinds.Mamba1, kinds.Mamba2, kinds.GatedDelta, kinds.Kda, kinds.Lightning, kinds.RgLru, kinds.ShortConv, kinds.Rwkv,
    kinds.Mlstm,
)  # fmt: skip
_DEFAULT_UBATCH = 512


def known_spec(found: FoundCommand) -> ModelSpec | None:
    """The registered spec of the command's model, or of the model it hints at."""
    hint = found.command.hint
    name = found.command.model or (hint.model if hint else None)
    if name is None:
        return None
    try:
        return registry().find(name)
    except InputError:
        return None


def checkpoint_length(found: FoundCommand) -> int | None:
    """The greatest length that the checkpoint names, in tokens."""
    spec = known_spec(found)
    return spec.max_context if spec is not None else None


def _layers(spec: ModelSpec) -> list[object]:
    return [single for block in spec.blocks.values() for single in branches(block)]


def find(found: FoundCommand) -> Iterator[Finding]:
    """What the model's layers make of the flags."""
    spec = known_spec(found)
    if spec is None:
        return
    layers = _layers(spec)
    yield from _states(found, layers)
    yield from _latent(found, layers)
    yield from _windows(found, layers)
    yield from _heads(found, layers)
    yield from _beyond(found, spec)


def _at(found: FoundCommand, rule: str, level: Level, text: str, flag: str) -> Finding:
    line = found.command.lines.get(flag, found.line) or found.line
    return Finding(rule, level, text, line, found.place, flag)


def _states(found: FoundCommand, layers: list[object]) -> Iterator[Finding]:
    flags = found.command.flags
    drafts = flags.get("speculative_config")
    named = ["num_speculative_tokens"] if isinstance(drafts, dict) and "num_speculative_tokens" in drafts else []
    named += ["max_num_seqs"] if "max_num_seqs" in flags else []
    if found.command.engine == "vllm" and named and any(isinstance(layer, _STATES) for layer in layers):
        both = " and ".join(named)
        said = (
            f"{both} {'both change' if len(named) > 1 else 'changes'} the share of the pool that recurrent states take"
        )
        yield _at(found, "state-pool", "note", said, "max_num_seqs")


def _latent(found: FoundCommand, layers: list[object]) -> Iterator[Finding]:
    ranks = found.command.parallelism().tensor
    latent = any(isinstance(layer, kinds.LatentAttention) for layer in layers)
    apart = found.command.flags.get("enable_dp_attention") or found.command.flags.get("decode_context_parallel_size")
    if latent and ranks > 1 and not apart and found.command.engine in ("vllm", "sglang"):
        said = f"MLA keeps the whole latent on every rank: TP {ranks} does not multiply the token capacity"
        yield _at(found, "latent-on-every-rank", "note", said, "tensor_parallel_size")


def _windows(found: FoundCommand, layers: list[object]) -> Iterator[Finding]:
    size = found.command.flags.get("ubatch_size")
    windows = any(isinstance(layer, kinds.SlidingWindow) for layer in layers)
    if found.command.engine == "llama.cpp" and windows and isinstance(size, int) and size > _DEFAULT_UBATCH:
        said = f"--ubatch-size {size} widens the window layers of this model: each holds its window plus {size} tokens"
        yield _at(found, "wide-windows", "note", said, "ubatch_size")


def _heads(found: FoundCommand, layers: list[object]) -> Iterator[Finding]:
    ranks = found.command.parallelism().tensor
    heads = [layer.query_heads for layer in layers if isinstance(layer, kinds.FullAttention | kinds.LatentAttention)]
    bad = next((count for count in heads if count % ranks), None)
    if found.command.engine == "vllm" and bad is not None:
        valid = ", ".join(str(size) for size in (1, 2, 4, 8, 16, 32) if not any(count % size for count in heads))
        said = (
            f"{bad} attention heads don't divide by tensor parallel size {ranks}: vLLM refuses it; sizes "
            f"that do: {valid}"
        )
        yield _at(found, "heads-not-divisible", "error", said, "tensor_parallel_size")


def _beyond(found: FoundCommand, spec: ModelSpec) -> Iterator[Finding]:
    flags, longest = found.command.flags, spec.max_context
    length = flags.get("max_model_len")
    stretched = any(flags.get(name) is not None for name in ("hf_overrides", "rope_scaling", "rope_theta"))
    allowed = found.command.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if found.command.engine != "vllm" or not longest or not isinstance(length, int) or length <= longest or stretched:
        return
    level: Level = "warning" if allowed else "error"
    end = (
        "it starts, and answers are rubbish beyond"
        if allowed
        else "vLLM refuses it without an override of the positions"
    )
    said = f"max_model_len {length:,} is more than the {longest:,} positions of the checkpoint: {end}"
    yield _at(found, "beyond-checkpoint", level, said, "max_model_len")
