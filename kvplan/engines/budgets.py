"""From a GPU and an engine's flags to the bytes for its cache: reads the flags, picks the release's figures, and asks
`kvplan.memory.budget`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from kvplan.engines.base import Device, Parallelism
from kvplan.engines.options import Option, read_options
from kvplan.engines.registry import canonical_engine
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator
from kvplan.memory.budget import Budget, Run, budget
from kvplan.memory.ranks import RankWeights, rank_weights
from kvplan.memory.terms import overheads, visible_bytes
from kvplan.record import record
from kvplan.spec.layers import LatentAttention
from kvplan.spec.resolve import LoadedModel
from kvplan.units import MIB

if TYPE_CHECKING:
    from kvplan.engines.vllm.settings import Resolved

VLLM_OPTIONS = (
    Option("gpu_memory_utilization", "share", low=0, high=1, open_low=True),
    Option("enforce_eager", "switch", False),
    Option("language_model_only", "switch", False),
)
SGLANG_OPTIONS = (
    Option("mem_fraction_static", "share", low=0, high=1, open_low=True),
    Option("chunked_prefill_size", "whole", low=1),
    Option("cuda_graph_max_bs", "whole", low=1),
)
TENSORRT_LLM_OPTIONS = (
    Option(
        "free_gpu_memory_fraction", "share", low=0, high=1, open_low=True,
        aliases=("kv_cache_free_gpu_memory_fraction", "kv_cache_config.free_gpu_memory_fraction"),
    ),
    Option("max_num_tokens", "whole", low=1),
    Option("max_batch_size", "whole", low=1),
)  # fmt: skip
LMDEPLOY_OPTIONS = (
    Option("cache_max_entry_count", "share", low=0, high=1, open_low=True),
    Option("max_prefill_token_num", "whole", low=1),
    Option("max_batch_size", "whole", low=1),
)
LLAMA_CPP_OPTIONS = (
    Option("ubatch_size", "whole", low=1, aliases=("ub",)),
    Option("ctx_size", "tokens", aliases=("c", "ctx", "max_model_len", "n_ctx")),
)


@record
class Ask:
    """One question about a budget: the engine's own flags, its figures at the release, and the memory it sees."""

    loaded: LoadedModel
    device: Accelerator
    parallel: Parallelism
    settings: Mapping[str, Any]
    rules: Rules
    total: int

    def weights(self, **options: Any) -> RankWeights:
        """The weights of each stage's ranks. Raises InputError where they aren't known."""
        found = rank_weights(self.loaded.spec, self.parallel, tensors=self.loaded.tensors, **options)
        if found is None:
            raise InputError(
                f"model: found no parameter count for {self.loaded.spec.id}, expected safetensors headers, or "
                "--available-memory to skip the memory budget"
            )
        return found

    def run(self, weights: RankWeights, share: Any, **more: Any) -> Run:
        """The run with everything that doesn't depend on the engine filled in."""
        exact = None if share is None else Fraction(str(share))
        return Run(self.loaded.spec, weights, self.parallel, self.total, exact, self.rules.values, **more)


#: Architectures that are conditional on text or sound.
TEXT_ENCODERS = ("T5", "UMT5", "MT5", "Bart", "MBart", "Pegasus", "Whisper", "BlenderBot")
#: Engines that share another one's identity.
SAME_AS = {"ollama": "llama.cpp", "ik_llama.cpp": "llama.cpp"}


def engine_device(device: Accelerator) -> Device:
    """The accelerator as an engine's model asks for it."""
    capability = device.compute_capability
    pair = None if capability is None else tuple(int(part) for part in capability.split("."))
    kind = "cuda" if device.vendor_class.startswith("nvidia") else device.vendor_class.split()[0]
    return Device(device.slug, device.memory_bytes, pair, kind)  # type: ignore[arg-type]


def total_bytes(device: Accelerator) -> int:
    """What the device shows an engine: CUDA keeps a part of the driver's total back."""
    known = device.memory_bytes_driver
    if known is None or not device.vendor_class.startswith("nvidia"):
        return device.memory_bytes
    return visible_bytes(known)[1]


def budget_for(
    engine: str,
    version: str | None,
    loaded: LoadedModel,
    device: Accelerator,
    parallel: Parallelism,
    settings: Mapping[str, Any],
    *,
    visible: int | None = None,
    figures: Mapping[str, Any] | None = None,
) -> Budget:
    """The budget of one rank of each stage, before anything is started.

    `settings` are the engine's own flags. `visible` is the memory that the engine sees, in bytes, where it is known;
    `figures` take the place of the release's (for calibration). Raises InputError for a flag the engine would not take,
    for a model whose weights aren't known, and for an engine without a budget of its own.
    """
    name = canonical_engine(engine)
    name = SAME_AS.get(name, name)
    if name not in _READERS:
        raise InputError(
            f"--engine: found {engine}, which sets no cache budget, expected one of {', '.join(_READERS)} or "
            "--available-memory"
        )
    rules = rules_at(name, overheads()[name], version if name == canonical_engine(engine) else None)
    if figures:
        rules = replace(rules, values={**rules.values, **figures})
    total = total_bytes(device) if visible is None else visible
    run = _READERS[name](Ask(loaded, device, parallel, settings, rules, total))
    warnings = () if rules.warning is None else (rules.warning,)
    return budget(name, rules.version, run, warnings=warnings)


def _vllm(ask: Ask) -> Run:
    from kvplan.engines.vllm.resolve import resolve
    from kvplan.engines.vllm.settings import read_flags

    options, asked = read_options(VLLM_OPTIONS, ask.settings), read_flags(ask.settings)
    layout = rules_at("vllm", load_rules("vllm"), ask.rules.version)
    resolved = resolve(ask.loaded.spec, asked, ask.parallel, engine_device(ask.device), layout)
    drafted = resolved.speculation.tokens if resolved.speculation else 0
    text_only = bool(options["language_model_only"])
    weights = ask.weights(drafting=bool(drafted), partition=resolved.partition, text_only=text_only)
    if resolved.speculation and resolved.speculation.method not in ("mtp", "ngram"):
        note = f"the weights of the {resolved.speculation.method} draft model aren't counted"
        weights = replace(weights, assumptions=(*weights.assumptions, note))
    tokens, sequences = _profiled(ask.rules, asked.get("max_num_batched_tokens"), asked.get("max_num_seqs"), resolved)
    return ask.run(
        weights, options["gpu_memory_utilization"] or ask.rules["utilization"], tokens=tokens, sequences=sequences,
        length=resolved.max_model_len, drafts=drafted, eager=bool(options["enforce_eager"]),
        unified="unified" in ask.device.memory_type.lower(), vision=not text_only and _multimodal(ask.loaded, weights),
    )  # fmt: skip


def _multimodal(loaded: LoadedModel, weights: RankWeights) -> bool:
    """Whether an encoder is loaded: its weights are known, or the architecture is one that has images."""
    architecture = loaded.spec.architecture or ""
    seen = any(part.name == "vision" for part in weights.stages[0])
    return seen or (architecture.endswith("ForConditionalGeneration") and not architecture.startswith(TEXT_ENCODERS))


def _profiled(
    rules: Rules, asked_tokens: int | None, asked_sequences: int | None, resolved: Resolved
) -> tuple[int, int]:
    """Tokens of the profile run, and the sequences whose logits it samples."""
    profile = rules["profile"]
    if profile["tokens"] == "batch":
        return resolved.max_num_batched_tokens, resolved.max_num_seqs
    if profile["chunked_above"] is not None and resolved.max_model_len > profile["chunked_above"]:
        return asked_tokens or profile["chunk"], 0
    return asked_tokens or max(profile["least"], resolved.max_model_len), asked_sequences or profile["sequences"]


def _sglang(ask: Ask) -> Run:
    from kvplan.engines.sglang.budget import default_mem_fraction, static_budget

    options, weights = read_options(SGLANG_OPTIONS, ask.settings), ask.weights()
    latent = any(isinstance(block, LatentAttention) for block in ask.loaded.spec.blocks.values())
    default = default_mem_fraction(
        ask.device.memory_bytes // MIB, tp=ask.parallel.tensor, pp=ask.parallel.pipeline, mla=latent,
        chunked_prefill_size=options["chunked_prefill_size"], decode_max_bs=options["cuda_graph_max_bs"],
    )  # fmt: skip
    asked = options["mem_fraction_static"]
    vision = _multimodal(ask.loaded, weights)
    reserve = ask.total - static_budget(ask.total, ask.total, 1.0, multimodal=vision)
    return ask.run(
        weights, default.fraction if asked is None else asked, reserve_bytes=reserve,
        outside_share=1 - default.fraction,
    )  # fmt: skip


def _tensorrt_llm(ask: Ask) -> Run:
    options, rules = read_options(TENSORRT_LLM_OPTIONS, ask.settings), ask.rules
    return ask.run(
        ask.weights(), options["free_gpu_memory_fraction"] or rules["free_fraction"],
        tokens=options["max_num_tokens"] or rules["max_num_tokens"],
        sequences=options["max_batch_size"] or rules["max_batch_size"],
    )  # fmt: skip


def _lmdeploy(ask: Ask) -> Run:
    options, rules = read_options(LMDEPLOY_OPTIONS, ask.settings), ask.rules
    return ask.run(
        ask.weights(), options["cache_max_entry_count"] or rules["free_share"],
        tokens=options["max_prefill_token_num"] or rules["max_prefill_tokens"],
        sequences=options["max_batch_size"] or rules["max_batch_size"],
    )  # fmt: skip


def _llama_cpp(ask: Ask) -> Run:
    options = read_options(LLAMA_CPP_OPTIONS, ask.settings)
    length = options["ctx_size"] or ask.loaded.spec.max_context or 4096
    return ask.run(ask.weights(), None, tokens=options["ubatch_size"] or ask.rules["ubatch"], length=length)


_READERS: dict[str, Callable[[Ask], Run]] = {
    "vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm, "lmdeploy": _lmdeploy, "llama.cpp": _llama_cpp,
}  # fmt: skip
