"""The pool of a scenario's engine: blocks and groups as `kvplan estimate --engine vllm` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.simulator.laws import GroupLaw, Layout
from kvplan.simulator.scenario import EngineSettings, Scenario

if TYPE_CHECKING:
    from kvplan.engines.base import EngineAnswer
    from kvplan.hardware.accelerators import Accelerator
    from kvplan.memory.budget import Budget
    from kvplan.spec.model import ModelSpec
    from kvplan.spec.resolve import LoadedModel

#: the scenario's engine settings that are vLLM's own flags, under both names
FLAGS = {
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "num_blocks": "num_gpu_blocks_override",
}


def engine_answer(scenario: Scenario, loaded: LoadedModel, says: list[str]) -> tuple[EngineAnswer, Accelerator]:
    """vLLM's plan in what the memory budget leaves on one rank, with the device; what was assumed goes to `says`.

    Where vLLM would refuse to start for the length of one request, the pool is that of the longest length it takes.
    Raises InputError for what can't be served at all.
    """
    from kvplan.engines.base import Parallelism
    from kvplan.engines.native import native_settings
    from kvplan.engines.registry import find_engine
    from kvplan.hardware.accelerators import find
    from kvplan.serving import Question, plan

    asked, hardware = scenario.engine, scenario.hardware
    if hardware is None:
        raise InputError("hardware: found nothing, expected a gpu for a scenario with a model")
    engine, _ = find_engine(asked.name)
    device = find(hardware.gpu, "hardware.gpu")
    flags = {flag: getattr(asked, name) for name, flag in FLAGS.items()}
    flags["gpu_memory_utilization"] = hardware.memory_utilization
    available = (asked.kv_cache_memory,) if asked.kv_cache_memory is not None else ()
    parallel = Parallelism(tensor=hardware.tensor_parallel)
    settings = native_settings(engine.name, flags)
    question = Question(loaded, engine, asked.version, device, parallel, settings, available)
    answer, budget = plan(question)
    if answer.refused is not None and answer.estimated_max_model_len:
        why = " ".join(answer.refused.text.split())
        says.append(f"vLLM would refuse to start: {why}; simulated all the same, with what doesn't fit as unservable")
        answer, budget = plan(question.changed(max_model_len=answer.estimated_max_model_len))
    if answer.refused is not None or not answer.usable_blocks:
        raise InputError(_too_small(answer, loaded, device))
    says += _sentences(answer, budget)
    return answer, device


def _too_small(answer: EngineAnswer, loaded: LoadedModel, device: Accelerator) -> str:
    why = "no block fits" if answer.refused is None else " ".join(answer.refused.text.split())
    return (
        f"hardware: found {device.slug}, on which vLLM {answer.version} doesn't start {loaded.spec.id} ({why[:200]}), "
        "expected more room for the cache"
    )


def _sentences(answer: EngineAnswer, budget: Budget | None) -> list[str]:
    blocks = f"{answer.usable_blocks:,} usable blocks of {max(answer.bytes_per_block):,} B on each rank"
    found = [f"vLLM {answer.version}: {blocks}"]
    if budget is not None:
        found.append(f"{budget.available_bytes[0]:,} B for the cache on each rank = {budget.identity}")
        found += budget.warnings
    return [*found, *answer.warnings]


def layout_of(answer: EngineAnswer, spec: ModelSpec) -> Layout:
    """The groups of `answer` as laws of what a sequence holds. Raises InputError for states kept along the prompt."""
    names = {setting.name: setting.value for setting in answer.settings}
    if names.get("mamba_cache_mode") == "all":
        raise InputError(
            f"engine: found vLLM {answer.version} keeping recurrent states all along a prompt (mamba_cache_mode all), "
            "expected enable_prefix_caching: false for this model"
        )
    window, groups = _window(spec), []
    for group in answer.groups:
        kinds = group.kind.split(" and ")
        if {"full attention", "latent attention"} & set(kinds):
            groups.append(GroupLaw("full", group.block_tokens))
        elif window and any(kind.startswith(("sliding", "chunked")) for kind in kinds):
            groups.append(GroupLaw("window", group.block_tokens, window))
        else:
            groups.append(GroupLaw("fixed", group.block_tokens, blocks=group.blocks_per_request))
    return Layout(tuple(groups), answer.usable_blocks or 0)


def _window(spec: ModelSpec) -> int:
    from kvplan.spec.model import branches

    windows = {
        getattr(layer, "window", None) or getattr(layer, "chunk", None) or 0
        for name in spec.counts
        for layer in branches(spec.blocks[name])
    }
    return max(windows, default=0)


def resolved(asked: EngineSettings, answer: EngineAnswer | None) -> EngineSettings:
    """`asked` with what it leaves open as the engine resolves it; without an engine's answer, plain defaults."""
    known = {} if answer is None else {setting.name: setting.value for setting in answer.settings}
    defaults = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "enable_prefix_caching": True}
    given = {name: getattr(asked, name) for name in defaults}
    filled = {name: known.get(name, plain) if given[name] is None else given[name] for name, plain in defaults.items()}
    return asked.model_copy(update=filled)
