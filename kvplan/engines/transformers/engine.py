"""Hugging Face transformers as an engine: no pool and no memory share, tensors per layer and batch entry.

While a layer's tensor grows, the old and the new copy of that layer exist together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Refusal
from kvplan.engines.options import Option, Options, read_options
from kvplan.engines.stored import split_evenly
from kvplan.engines.support import require_layers
from kvplan.engines.transformers.conventions import CacheKind, TensorLayer, peak_storage, tensor_layers
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec.model import ModelSpec
from kvplan.units import MAX_TOKENS, gib, tokens

OPTIONS = (
    Option("max_length", "tokens", aliases=("max_cache_len", "max_model_len", "ctx"), low=1),
    Option("batch_size", "whole", 1, low=1, high=10**6),
    Option("num_beams", "whole", 1, low=1, high=10**4),
    Option("cache_implementation", "choice", "dynamic", choices=("dynamic", "static", "offloaded", "offloaded_static")),
)
DEFAULT_LENGTH = 4096


@dataclass(frozen=True)
class Transformers:
    """The engine. Sequences are batch entries times beams; each holds its own copy of the prompt."""

    name: str = "transformers"

    @property
    def default_version(self) -> str:
        return str(load_rules("transformers")["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Size the cache tensors of the batch at its greatest length; layers split over `parallel.pipeline` devices.

        Raises InputError for sizes that don't match the stages, UnsupportedArchitectureError where an old version
        stores expanded MLA heads whose widths the spec lacks.
        """
        rules = rules_at(self.name, load_rules("transformers"), version)
        notes = require_layers(self.name, spec)
        options = read_options(OPTIONS, settings)
        kind: CacheKind = "static" if "static" in options["cache_implementation"] else "dynamic"
        length = options["max_length"] or spec.max_context or DEFAULT_LENGTH
        layers = tensor_layers(spec, rules, kind)
        stages = [[layers[index] for index in places] for places in split_evenly(len(layers), parallel.pipeline)]
        available = list(available_bytes) * len(stages) if len(available_bytes) == 1 else list(available_bytes)
        if len(available) != len(stages):
            raise InputError(
                f"--available-memory: found {len(available)} sizes, expected one or {len(stages)}, one for each stage"
            )
        if "offloaded" in options["cache_implementation"]:
            stages = [_one_layer_at_a_time(stage, length) for stage in stages]
        answer = _answer(self.name, spec, rules, options, parallel, stages, available, length)
        return replace(answer, warnings=(*answer.warnings, *notes))


def _one_layer_at_a_time(stage: Sequence[TensorLayer], length: int) -> list[TensorLayer]:
    """An offloaded cache keeps the layer at work on the device and the next one being fetched."""
    return sorted(stage, key=lambda layer: layer.bytes(length), reverse=True)[:2]


def _answer(
    name: str,
    spec: ModelSpec,
    rules: Rules,
    options: Options,
    parallel: Parallelism,
    stages: Sequence[Sequence[TensorLayer]],
    available: Sequence[int],
    length: int,
) -> EngineAnswer:
    sequences = options["batch_size"] * options["num_beams"]
    one = [sum(layer.bytes(length) for layer in stage) for stage in stages]
    worst = max(range(len(stages)), key=lambda stage: one[stage] * sequences - available[stage])
    longest = min(
        _longest(stage, have // sequences, spec.max_context or length)
        for stage, have in zip(stages, available, strict=True)
    )
    refused = None
    if one[worst] * sequences > available[worst]:
        text = (
            f"{sequences} sequence(s) of {tokens(length)} tokens need {gib(one[worst] * sequences)} of stage {worst}, "
            f"which has {gib(available[worst])} for them"
        )
        refused = Refusal(one[worst] * sequences, available[worst], longest or None, text)
    fitting = min(have // need if need else sequences for have, need in zip(available, one, strict=True))
    pool = Pool(
        "cache tensors",
        sum(len(stage) for stage in stages),
        sequences,
        sum(one),
        sum(one) * sequences,
        bytes_per_stage=tuple(need * sequences for need in one),
    )
    warnings = [rules.warning] if rules.warning else []
    warnings += options.warnings(name)
    if parallel.tensor > 1:
        warnings.append("transformers splits no cache over tensor-parallel ranks by default: each holds it whole")
    peak = peak_storage(spec, rules, length)
    if options["cache_implementation"] == "dynamic" and peak > sum(one):
        warnings.append(
            f"right after a prompt of {tokens(length)} tokens window layers still hold all of it: "
            f"{gib(peak * sequences)} until the next step"
        )
    return EngineAnswer(
        name=name,
        version=rules.version,
        max_model_len=length,
        num_blocks=None,
        usable_blocks=None,
        bytes_per_block=(),
        blocks_per_request=None,
        capacity_tokens=None if refused else fitting * length,
        max_concurrency=None if refused else float(fitting),
        needed_bytes_one_request=one[worst],
        reserved_bytes_one_request=one[worst],
        groups=_groups(stages, length),
        refused=refused,
        estimated_max_model_len=longest or None,
        settings=options.settings,
        derivation=tuple(
            f"stage {stage}: {len(layers)} layers, {need} B a sequence of {tokens(length)} tokens x {sequences}"
            for stage, (layers, need) in enumerate(zip(stages, one, strict=True))
        ),
        warnings=tuple(warnings),
        pools=(pool,),
        binding="cache tensors",
    )


def _groups(stages: Sequence[Sequence[TensorLayer]], length: int) -> tuple[Group, ...]:
    """Layers by what they are; a block is one sequence's tensor."""
    kinds: dict[str, list[list[int]]] = {}
    for stage, layers in enumerate(stages):
        for layer in layers:
            if layer.mixers:
                kind = " + ".join(mixer.kind for mixer, _ in layer.mixers)
                kinds.setdefault(kind, [[] for _ in stages])[stage].append(layer.bytes(length))
    return tuple(
        Group(
            kind,
            sum(map(len, sizes)),
            tuple(map(len, sizes)),
            length,
            max(max(stage, default=0) for stage in sizes),
            max(map(sum, sizes)),
            1,
        )
        for kind, sizes in kinds.items()
    )


def _longest(layers: Sequence[TensorLayer], budget: int, limit: int) -> int:
    low, high = 0, min(limit, MAX_TOKENS)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(layer.bytes(middle) for layer in layers) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


ENGINE = Transformers()
