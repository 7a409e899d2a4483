"""The pool of an engine, allocated as the engine model says: pages by slot, all groups drawing blocks from one pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from kvplan.engines.base import Device as EngineDevice
from kvplan.engines.base import EngineAnswer, Parallelism
from kvplan.engines.registry import find_engine
from kvplan.errors import InputError
from kvplan.memory.allocator import predict_allocations
from kvplan.spec.model import ModelSpec
from kvplan.units import both
from kvplan.validate.blocks import BlockPool, PoolExhausted
from kvplan.validate.checks import Check, DeviceFacts, skipped
from kvplan.validate.device import Device
from kvplan.validate.pools import fill_random, tensor_bytes

SECTION = "engine"
LONGEST = 8192
MARK_BYTES = 8


def ask_engine(
    text: str, spec: ModelSpec, budget: int, facts: DeviceFacts, settings: Mapping[str, Any], length: int | None = None
) -> EngineAnswer:
    """What the engine makes of `budget` cache bytes, with the longest requests it would start with.

    Raises InputError where it would refuse even the shortest.
    """
    engine, version = find_engine(text)
    device = EngineDevice(facts.name, facts.total_bytes, facts.compute_capability, facts.kind)
    longest = length or min(spec.max_context or LONGEST, LONGEST)
    answer = engine.plan(spec, {**settings, "max_model_len": longest}, Parallelism(), [budget], device, version)
    if answer.refused is not None and answer.refused.estimated_max_model_len:
        fitting = answer.refused.estimated_max_model_len
        answer = engine.plan(spec, {**settings, "max_model_len": fitting}, Parallelism(), [budget], device, version)
    if answer.refused is not None:
        raise InputError(
            f"--pool: found {both(budget)}, with which {answer.name} refuses to start {spec.id} "
            f"({answer.refused.text}), expected a larger pool"
        )
    return answer


class EnginePool:
    """The tensors of an engine's pool: bytes of pages, one tensor a layer slot. A context manager that frees them."""

    def __init__(self, device: Device, answer: EngineAnswer) -> None:
        self.device, self.answer = device, answer
        self.tensors: list[Any] = []

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """[blocks, page bytes] of each tensor; pools that are no blocks (llama.cpp's cells) are one row each."""
        answer = self.answer
        if answer.num_blocks is None:
            return [(1, pool.bytes) for pool in answer.pools if pool.bytes]
        block = answer.bytes_per_block[0]
        page = max(group.page_bytes for group in answer.groups)
        slots, rest = divmod(block, page)
        return [(answer.num_blocks, page)] * slots + ([(answer.num_blocks, rest)] if rest else [])

    def __enter__(self) -> EnginePool:
        try:
            self.tensors.extend(self.device.empty(shape, "uint8") for shape in self.shapes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.tensors.clear()
        self.device.release()

    def rows(self, blocks: list[int], marks: list[int]) -> Iterator[tuple[Any, Any, Any]]:
        """For each tensor the first bytes of every block, the blocks, and the marks that belong there."""
        torch = self.device.torch
        index = torch.tensor(blocks, dtype=torch.int64, device=self.device.handle)
        values = torch.tensor(marks, dtype=torch.int64, device=self.device.handle).view(torch.uint8)
        for tensor in self.tensors:
            yield tensor[:, :MARK_BYTES], index, values.reshape(-1, MARK_BYTES)


def engine_checks(pool: EnginePool, case: str, generator: Any) -> Iterator[Check]:
    """Bytes against the engine model's, and requests of the greatest length until the next one is refused."""
    answer = pool.answer
    name = f"{answer.name} {answer.version}"
    for tensor in pool.tensors:
        fill_random(pool.device.torch, tensor.view(-1), generator)
    if answer.num_blocks is None or answer.blocks_per_request is None or answer.usable_blocks is None:
        predicted = sum(one.bytes for one in answer.pools)
        yield Check(SECTION, case, f"{name}: pool bytes", predicted, sum(map(tensor_bytes, pool.tensors)), "B")
        yield skipped(SECTION, case, f"{name}: requests at refusal", "this engine's pool is no set of blocks")
        return
    predicted = answer.num_blocks * answer.bytes_per_block[0]
    yield Check(SECTION, case, f"{name}: pool bytes, {answer.num_blocks} blocks", predicted,
                sum(map(tensor_bytes, pool.tensors)), "B")  # fmt: skip
    figures = pool.device.allocator()
    if figures is not None:
        wanted = predict_allocations(map(tensor_bytes, pool.tensors))
        yield Check(SECTION, case, f"{name}: waste of a tensor a layer", wanted.waste, figures.waste, "B",
                    judged=False)  # fmt: skip
    held, admitted, wrong = _fill(pool)
    length = answer.max_model_len
    yield Check(SECTION, case, f"{name}: requests of {length:,} at refusal",
                answer.usable_blocks // answer.blocks_per_request, admitted, "requests")  # fmt: skip
    yield Check(SECTION, case, f"{name}: blocks held at refusal", admitted * answer.blocks_per_request, held, "blocks")
    yield Check(SECTION, case, f"{name}: pages overwritten", 0, wrong, "pages")


def _fill(pool: EnginePool) -> tuple[int, int, int]:
    """Blocks held, requests admitted and pages found overwritten, all groups drawing from one pool."""
    answer = pool.answer
    assert answer.usable_blocks is not None
    blocks = BlockPool(answer.usable_blocks)
    owners: dict[int, int] = {}
    admitted = 0
    while True:
        taken: list[int] = []
        try:
            for group in answer.groups:
                taken.extend(blocks.take() for _ in range(group.blocks_per_request))
        except PoolExhausted:
            for block in taken:
                blocks.release(block)
            break
        owners |= {block: (admitted << 32) + position + 1 for position, block in enumerate(taken)}
        for rows, index, values in pool.rows(taken, [owners[block] for block in taken]):
            rows[index] = values
        admitted += 1
    if not owners:
        return 0, 0, 0
    wrong = sum(
        int((rows[index] != values).any(dim=1).sum())
        for rows, index, values in pool.rows(list(owners), list(owners.values()))
    )
    return answer.usable_blocks - blocks.free, admitted, wrong
