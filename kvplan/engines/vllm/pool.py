"""The pool of blocks that every group draws from, the start-up check against it, and its copy in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.engines.base import Parallelism, Pool
from kvplan.engines.vllm.blocks import round_up
from kvplan.engines.vllm.capacity import Demand, longest_length, pool_block_bytes, request_blocks
from kvplan.engines.vllm.grouping import LayerGroup
from kvplan.engines.vllm.settings import Resolved
from kvplan.errors import InputError
from kvplan.record import record

CHUNK_ALIGNMENT = 4096


@record
class BlockPool:
    """The pool and how one request of the planned length fares in it.

    `available` is what each stage plans with and `checked` what it checks one request against, both in bytes.
    `poorest` is the first stage that can't hold the request, `estimate` the longest length that would fit there.
    """

    groups: tuple[LayerGroup, ...]
    demand: Demand
    block_bytes: tuple[int, ...]
    available: tuple[int, ...]
    checked: tuple[int, ...]
    num_blocks: int
    length: int
    request: int
    poorest: int | None
    estimate: int

    @property
    def has_states(self) -> bool:
        return any(layer.family == "state" for group in self.groups for layer in group.layers)


def size_pool(
    groups: Sequence[LayerGroup],
    demand: Demand,
    available: Sequence[int],
    resolved: Resolved,
    *,
    spare_null_block: bool,
) -> BlockPool:
    """Size the pool in `available` bytes, one figure a stage. Without any group it has one block, the null block.

    `spare_null_block` leaves the block that is never handed out away from the check of one request. Raises InputError
    for a stage without any cache, which vLLM can't size.
    """
    sizes = tuple(pool_block_bytes(groups, stage) for stage in range(len(available)))
    if groups and 0 in sizes:
        raise InputError(
            f"--pipeline-parallel-size: found {len(sizes)}, which leaves stage {sizes.index(0)} without a layer that "
            f"has a cache, expected fewer stages or a VLLM_PP_LAYER_PARTITION that gives it one"
        )
    if resolved.blocks_override is not None:
        available = [resolved.blocks_override * size for size in sizes]
    checked = tuple(have - spare_null_block * size for have, size in zip(available, sizes, strict=True))
    blocks = [have // size for have, size in zip(available, sizes, strict=True) if groups]
    room = [have // size for have, size in zip(checked, sizes, strict=True) if groups]
    length, poorest, estimate = resolved.max_model_len, None, 0
    if resolved.auto_fit and room:
        length = longest_length(groups, demand, min(room), length)
    request = request_blocks(groups, demand, length)
    for stage, (have, size) in enumerate(zip(checked, sizes, strict=True)):
        if groups and (have <= 0 or request * size > have or length == 0):
            poorest = stage
            estimate = longest_length(groups, demand, max(0, have) // size, resolved.max_model_len)
            break
    return BlockPool(
        tuple(groups), demand, sizes, tuple(available), checked, max(0, min(blocks, default=1)), length, request,
        poorest, estimate,
    )  # fmt: skip


def host_pool(pool: BlockPool, offload_bytes: int, parallel: Parallelism) -> Pool | None:
    """The chunks that native offloading keeps in `offload_bytes` of host memory, summed over ranks.

    A chunk holds one block of every rank, or of one rank where tensor parallelism only copies latents. Its size is
    rounded up to the operating system's page (vllm/v1/kv_offload/cpu/spec.py 0.32.0).
    """
    ranks = parallel.tensor * parallel.pipeline
    latent = all(layer.family in ("latent", "sliding_latent") for group in pool.groups for layer in group.layers)
    copied = latent and parallel.tensor > 1 and parallel.pipeline == 1 and parallel.decode_context == 1
    block = max(pool.block_bytes)
    if not block:
        return None
    chunk = round_up(block * (1 if copied else ranks), CHUNK_ALIGNMENT)
    chunks = offload_bytes // chunk
    return Pool("host", sum(len(group.layers) for group in pool.groups), chunks, chunk, chunks * chunk)
