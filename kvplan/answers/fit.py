"""Weights and cache against the memory of a device: simple and conservative, without any engine's rounding."""

from __future__ import annotations

from kvplan.answers.composed import RankCache
from kvplan.answers.records import Fit, Weights
from kvplan.cache.size import CachePlan
from kvplan.hardware.accelerators import Accelerator
from kvplan.spec.resolve import LoadedModel
from kvplan.units import MAX_TOKENS

USABLE_SHARE_PERCENT = 90
MAX_BATCH = 10**9


def weights_of(loaded: LoadedModel, drafting: bool = False) -> tuple[Weights | None, list[str]]:
    """The weights of a model, None where their size is unknown, and what was assumed.

    Where more parameters are published than counted the published ones are taken.
    """
    from kvplan.memory.weights import uncounted, usable, weight_bytes

    found = weight_bytes(loaded.spec, tensors=loaded.tensors, drafting=drafting)
    if found is None:
        return None, ["the size of the weights is unknown: the model's files carry no parameter counts"]
    read = loaded.tensors is not None and usable(loaded.tensors)
    more = None if read else uncounted(loaded.spec, drafting)
    if more is None:
        return Weights(found.total_bytes, found.exact, found.source), list(found.assumptions)
    source = f"{found.source}, and {more.parameters:,} more that are published"
    return Weights(found.total_bytes + more.bytes, False, source), [*found.assumptions, more.says]


def fit_on(
    device: Accelerator,
    count: int,
    plan: CachePlan,
    weights: Weights,
    context: int,
    batch: int,
    held: RankCache | None = None,
) -> tuple[Fit, list[str]]:
    """Whether `batch` sequences fit beside the weights on `count` devices, and what was assumed.

    `plan` is that of one tensor-parallel rank, `held` the same under techniques.
    """
    usable = device.memory_bytes * USABLE_SHARE_PERCENT // 100
    per_gpu_weights = -(-weights.bytes // count)
    left = usable - per_gpu_weights
    limit = plan.spec.max_context or MAX_TOKENS
    if held is None:
        per_sequence = plan.needed_bytes(context)
        total = batch * per_sequence
        sequences = max(0, left // per_sequence) if per_sequence else MAX_BATCH
        longest = plan.longest_context(left, limit) if left > 0 else 0
    else:
        per_sequence, total = held.sequence_bytes(context), held.batch_bytes(batch)
        sequences = held.most_sequences(left, MAX_BATCH)
        longest = held.longest_context(left, limit)
    notes = [
        f"{USABLE_SHARE_PERCENT} % of each GPU's memory is taken for weights and KV cache; activations, CUDA graphs "
        "and the engine's own buffers must fit in the rest",
    ]
    if count > 1:
        notes.append(
            f"weights are split evenly over {count} GPUs; KV heads are split, and copied where there are too few; "
            "latents are copied"
        )
    fit = Fit(
        gpu=device.name,
        count=count,
        memory_bytes_per_gpu=device.memory_bytes,
        memory_source=device.memory_source,
        usable_bytes_per_gpu=usable,
        weights_bytes_per_gpu=per_gpu_weights,
        kv_bytes_per_sequence_per_gpu=per_sequence,
        max_full_length_sequences=sequences,
        longest_context_tokens=longest,
        longest_context_bound="memory" if longest < limit else "model" if plan.spec.max_context else "none",
        fits=total <= left,
    )
    return fit, notes
