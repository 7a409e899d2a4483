"""A model on an engine and a device: what `kvplan estimate --engine` adds to the analytic answer.

The engine's model lays the cache out in the bytes that are left for it, `kvplan.memory` tells how many those are, and
this module asks both again with one thing changed to find what would help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvplan.engines.base import Engine, EngineAnswer, Group, Parallelism, Pool, Refusal, flag_name
from kvplan.engines.budgets import budget_for, engine_device
from kvplan.engines.native import EIGHT_BIT, PARALLEL_FLAGS, native_flags, native_settings, parallel_from
from kvplan.engines.registry import find_engine
from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator
from kvplan.memory.budget import Budget
from kvplan.memory.feasible import Feasible, feasible_share, overrun
from kvplan.record import record
from kvplan.spec.resolve import LoadedModel
from kvplan.units import gib, tokens


@record
class Question:
    """What is to be served, on what, with which of the engine's own flags.

    `available_bytes` are a worker's cache bytes, one a pipeline stage; empty to predict them from the device.
    """

    loaded: LoadedModel
    engine: Engine
    version: str | None
    device: Accelerator
    parallel: Parallelism
    settings: Mapping[str, Any]
    available_bytes: tuple[int, ...] = ()

    def changed(self, **options: Any) -> Question:
        """The same question with some of kvplan's options, under vLLM's names, set anew."""
        settings = {**self.settings, **native_settings(self.engine.name, options)}
        parallel = parallel_from(settings) if PARALLEL_FLAGS & set(options) else self.parallel
        return Question(self.loaded, self.engine, self.version, self.device, parallel, settings, self.available_bytes)


@record
class EngineSection:
    """The engine's answer under its JSON names; bytes are one worker's.

    `bytes_per_block` is one number, or one a pipeline stage where there are several; `available_bytes` has one a stage.
    """

    name: str
    version: str
    max_model_len: int
    num_blocks: int | None
    usable_blocks: int | None
    bytes_per_block: int | tuple[int, ...]
    blocks_per_request: int | None
    capacity_tokens: int | None
    max_concurrency: float | None
    needed_bytes_one_request: int
    reserved_bytes_one_request: int
    available_bytes: tuple[int, ...]
    groups: tuple[Group, ...]
    pools: tuple[Pool, ...]
    binding: str | None
    log_line: str | None
    log_lines: tuple[str, ...]
    refused: Refusal | None
    estimated_max_model_len: int | None
    settings: dict[str, Any]
    setting_sources: dict[str, str]
    derivation: tuple[str, ...]


@record
class Change:
    """One thing to change, what it costs, and what the engine's model answers with it changed."""

    flag: str
    value: str
    cost: str
    starts: bool
    capacity_tokens: int | None
    max_concurrency: float | None
    effect: str


@record
class Serving:
    """The engine's plan, the memory budget it stands on (None where the bytes were given), and what would help."""

    engine: EngineSection
    budget: Budget | None
    feasible: Feasible | None
    changes: tuple[Change, ...]
    command: str
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]


def serve(
    loaded: LoadedModel,
    engine: str,
    device: Accelerator,
    settings: Mapping[str, Any],
    *,
    parallel: Parallelism | None = None,
    available_bytes: Sequence[int] = (),
    help_wanted: bool = True,
) -> Serving:
    """Plan one model on one engine. `settings` are the engine's flags, long names with - or _.

    The parallel sizes among them are used where `parallel` is None. Without `help_wanted` no changes are tried out.
    Raises InputError for what the engine would not take.
    """
    model, version = find_engine(engine)
    own = {flag_name(name): value for name, value in settings.items()}
    chosen = parallel if parallel is not None else parallel_from(own)
    question = Question(loaded, model, version, device, chosen, own, tuple(available_bytes))
    answer, budget = plan(question)
    doubts = () if budget is None else (overrun(budget), _undecided(answer, budget))
    return Serving(
        engine=_section(answer, budget, question),
        budget=budget,
        feasible=None if budget is None else feasible_share(budget, _checked_bytes(answer)),
        changes=tuple(_changes(question, answer)) if help_wanted else (),
        command=command_for(question, answer),
        warnings=tuple(
            dict.fromkeys((*answer.warnings, *(budget.warnings if budget else ()), *(line for line in doubts if line)))
        ),
        assumptions=(*answer.assumptions, *(budget.assumptions if budget else ())),
    )


def _undecided(answer: EngineAnswer, budget: Budget) -> str | None:
    """The sentence where the budget's range holds both a start and a refusal."""
    needed = answer.refused.needed_bytes if answer.refused is not None else answer.needed_bytes_one_request
    stage = budget.poorest
    if not max(0, stage.low) < needed <= stage.high:
        return None
    return (
        f"the range of the memory budget, {gib(max(0, stage.low))} to {gib(stage.high)} of KV cache, holds both a "
        f"start and a refusal: {gib(needed)} must be free"
    )


def _checked_bytes(answer: EngineAnswer) -> int:
    """What must be free for a start with one request: its blocks, and the block that vLLM never hands out."""
    spare = (answer.num_blocks or 0) - (answer.usable_blocks or 0)
    return answer.needed_bytes_one_request + max(0, spare) * max(answer.bytes_per_block, default=0)


def plan(question: Question) -> tuple[EngineAnswer, Budget | None]:
    """Ask the engine's model, with the bytes given or the ones the memory budget predicts."""
    budget = None
    available = question.available_bytes
    if not available:
        budget = budget_for(
            question.engine.name, question.version, question.loaded, question.device, question.parallel,
            question.settings,
        )  # fmt: skip
        available = budget.available_bytes
    flags = {flag: value for flag, value in question.settings.items() if flag not in PARALLEL_FLAGS}
    device = engine_device(question.device)
    answer = question.engine.plan(question.loaded.spec, flags, question.parallel, available, device, question.version)
    return answer, budget


def _section(answer: EngineAnswer, budget: Budget | None, question: Question) -> EngineSection:
    return EngineSection(
        name=answer.name,
        version=answer.version,
        max_model_len=answer.max_model_len,
        num_blocks=answer.num_blocks,
        usable_blocks=answer.usable_blocks,
        bytes_per_block=answer.bytes_per_block[0] if len(answer.bytes_per_block) == 1 else answer.bytes_per_block,
        blocks_per_request=answer.blocks_per_request,
        capacity_tokens=answer.capacity_tokens,
        max_concurrency=answer.max_concurrency,
        needed_bytes_one_request=answer.needed_bytes_one_request,
        reserved_bytes_one_request=answer.reserved_bytes_one_request,
        available_bytes=question.available_bytes or (budget.available_bytes if budget else ()),
        groups=answer.groups,
        pools=answer.pools,
        binding=answer.binding,
        log_line=answer.log_lines[-1] if answer.log_lines else None,
        log_lines=answer.log_lines,
        refused=answer.refused,
        estimated_max_model_len=answer.estimated_max_model_len,
        settings={setting.name: setting.value for setting in answer.settings},
        setting_sources={setting.name: setting.source for setting in answer.settings},
        derivation=answer.derivation,
    )


def _candidates(question: Question, answer: EngineAnswer) -> Iterator[tuple[str, Any, str]]:
    """Single changes worth asking about, cheapest first: one of kvplan's options, its value, what it costs."""
    engine, predicted = question.engine.name, not question.available_bytes
    have = {setting.name: setting.value for setting in answer.settings}
    batched = have.get("max_num_batched_tokens")
    if isinstance(batched, int) and batched > 2048:
        yield "max_num_batched_tokens", 2048, "prompts are prefilled in smaller steps"
    if predicted and engine == "vllm":
        yield "gpu_memory_utilization", 0.95, "less room for what the budget does not know"
    asked = question.settings.get(native_flags(engine, "kv_cache_dtype")[0], "auto")
    if str(asked).lower() in ("auto", "bfloat16", "float16", "bf16", "f16", "0"):
        yield "kv_cache_dtype", EIGHT_BIT.get(engine, "fp8"), "test the quality of long outputs first"
    if answer.refused is not None and answer.refused.estimated_max_model_len:
        yield "max_model_len", answer.refused.estimated_max_model_len, "longer requests are refused"
    if predicted and "tensor_parallel_size" in _SPLITS.get(engine, ("tensor_parallel_size",)):
        yield "tensor_parallel_size", 2 * question.parallel.tensor, "twice the GPUs"


# Engines that spread a model over GPUs without tensor-parallel ranks.
_SPLITS: dict[str, tuple[str, ...]] = {"llama.cpp": (), "ik_llama.cpp": (), "ollama": (), "transformers": ()}


def _changes(question: Question, answer: EngineAnswer) -> Iterator[Change]:
    """The candidates that make a refused start fit, or add at least a hundredth of the tokens; cheapest first."""
    before = answer.capacity_tokens or 0
    for option, value, cost in _candidates(question, answer):
        try:
            other, _ = plan(question.changed(**{option: value}))
        except InputError:  # the engine or the checkpoint doesn't take this change
            continue
        after = other.capacity_tokens or 0
        if other.refused is None and (answer.refused is not None or after * 100 >= before * 101):
            own = native_settings(question.engine.name, {option: value})
            flags = " ".join(_flag(answer.name, name) for name in own)
            effect = _effect(answer, other)
            said = str(next(iter(own.values())))
            yield Change(flags, said, cost, True, other.capacity_tokens, other.max_concurrency, effect)


def _flag(engine: str, name: str) -> str:
    return f"--{name if engine == 'tensorrt-llm' else name.replace('_', '-')}"


def _effect(answer: EngineAnswer, other: EngineAnswer) -> str:
    count = other.capacity_tokens or 0
    if answer.refused is not None:
        return f"starts, with {tokens(count)} tokens and {other.max_concurrency or 0:.2f}x concurrency"
    ratio = count / answer.capacity_tokens if answer.capacity_tokens else 0
    return f"{ratio:.2f}x the tokens: {tokens(count)}"


_LAUNCHERS = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "tensorrt-llm": "trtllm-serve {model}",
    "llama.cpp": "llama-server -m {model}.gguf",
    "ik_llama.cpp": "llama-server -m {model}.gguf",
    "lmdeploy": "lmdeploy serve api_server {model}",
}


def command_for(question: Question, answer: EngineAnswer) -> str:
    """The command that starts the engine as planned, ready to be copied; "" for one that isn't started by a command."""
    import shlex

    launcher = _LAUNCHERS.get(answer.name)
    if launcher is None:
        return ""
    spec = question.loaded.spec
    # A GGUF file lies on the disk under a name of the user's; the spec's is as good as any.
    hub = spec.hf_ids and answer.name not in ("llama.cpp", "ik_llama.cpp")
    words = [launcher.format(model=shlex.quote(spec.hf_ids[0] if hub else spec.id))]
    sizes = {name: getattr(question.parallel, name) for name in ("tensor", "pipeline", "data")}
    ranks = {f"{name}_parallel_size": size for name, size in sizes.items() if size > 1}
    given = native_settings(answer.name, ranks)
    if question.parallel.decode_context > 1:
        given["decode_context_parallel_size"] = question.parallel.decode_context
    given |= {flag: value for flag, value in question.settings.items() if flag not in PARALLEL_FLAGS}
    if question.parallel.expert:
        given["enable_expert_parallel"] = True
    for flag, value in given.items():
        if value is None or value is False or not _exists(flag, answer):
            continue
        name = _flag(answer.name, flag)
        words.append(name if value is True else f"{name} {shlex.quote(str(value))}")
    return " ".join(words)


def _exists(flag: str, answer: EngineAnswer) -> bool:
    """Whether the engine would take the flag: an unknown one stops its start."""
    if any(setting.name == flag for setting in answer.settings):
        return True
    from kvplan.engines.commands.flags import load_table, version_number

    try:
        table = load_table(answer.name)
    except InputError:
        return True
    return table.find(f"--{flag.replace('_', '-')}", version_number(answer.version)) is not None or (
        table.find(f"--{flag}", version_number(answer.version)) is not None
    )


def verdict(serving: Serving, model: str) -> str:
    """The answer in one sentence, the engine's own figures in it."""
    engine = serving.engine
    where = f"{engine.name} {engine.version}"
    if engine.refused is not None:
        beyond = _weights_beyond(serving.budget)
        if beyond:
            return f"{model} would NOT start on {where}: {beyond}."
        needed, have = gib(engine.refused.needed_bytes), gib(max(0, engine.refused.available_bytes))
        # Some engines refuse for less than a whole request: a pool without a single token, say.
        whole = engine.refused.needed_bytes == engine.needed_bytes_one_request
        what = f"one request of {tokens(engine.max_model_len)} tokens needs" if whole else "a start needs at least"
        return f"{model} would NOT start on {where}: {what} {needed} of KV cache a worker and {have} are available."
    count, concurrency = tokens(engine.capacity_tokens or 0), engine.max_concurrency or 0
    if engine.name == "vllm" and (engine.capacity_tokens or 0) < 0.99 * concurrency * engine.max_model_len:
        return (
            f"{model} on {where} has room for {concurrency:.2f} requests of {tokens(engine.max_model_len)} tokens at "
            f"once; the {count} tokens it logs are divided by its {len(engine.groups)} cache groups."
        )
    return (
        f"{model} on {where} holds {count} tokens of KV cache: {concurrency:.2f} requests of "
        f"{tokens(engine.max_model_len)} tokens at once."
    )


def _weights_beyond(budget: Budget | None) -> str | None:
    if budget is None:
        return None
    size = max((term.nominal for stage in budget.stages for term in stage.terms if term.name == "weights"), default=0)
    if size <= budget.total_bytes:
        return None
    return f"the weights take {gib(size)} of a GPU that has {gib(budget.total_bytes)}"
