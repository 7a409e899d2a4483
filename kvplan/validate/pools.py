"""Real paged tensors on a device: one set a layer, blocks first, filled with random values from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kvplan.validate.device import Device
from kvplan.validate.groups import Case, PoolGroup
from kvplan.validate.tensors import FP8, Entry

MARK_BYTES = 8
INT8_SCALE = 1 / 64  # brings whole-range integers near unit variance


@dataclass
class LayerTensors:
    """One layer's blocks: `tensors` are what was allocated, `fields` what a kernel sees of them.

    Fields are [blocks, entries, *shape]; those of a packed record are views into its bytes.
    """

    tensors: list[Any]
    fields: dict[str, Any]

    def fill(self, torch: Any, generator: Any) -> None:
        """Random values everywhere; dequantisation scales so that values come out near unit variance."""
        integers = any(tensor.dtype == torch.int8 for tensor in self.fields.values())
        for name, tensor in self.fields.items():
            scale = (INT8_SCALE if integers else 1.0) if name.endswith("scale") else None
            fill_random(torch, tensor, generator, scale)


@dataclass
class GroupPool:
    """All layers of one group, `blocks` blocks each."""

    group: PoolGroup
    blocks: int
    layers: list[LayerTensors]

    @property
    def measured_bytes(self) -> int:
        """numel x element size over every tensor that was allocated."""
        return sum(tensor_bytes(tensor) for layer in self.layers for tensor in layer.tensors)

    def write_marks(self, torch: Any, blocks: Sequence[int], marks: Sequence[int]) -> None:
        """Write each mark into the first eight bytes of its block, in every tensor of every layer."""
        if not self.layers:
            return
        for rows, index, values in self._rows(torch, blocks, marks):
            rows[index] = values

    def wrong_marks(self, torch: Any, blocks: Sequence[int], marks: Sequence[int]) -> int:
        """How many blocks of all tensors no longer hold their mark."""
        return sum(
            int((rows[index] != values).any(dim=1).sum()) for rows, index, values in self._rows(torch, blocks, marks)
        )

    def _rows(self, torch: Any, blocks: Sequence[int], marks: Sequence[int]) -> Iterator[tuple[Any, Any, Any]]:
        device = self.layers[0].tensors[0].device
        index = torch.tensor(blocks, dtype=torch.int64, device=device)
        values = torch.tensor(marks, dtype=torch.int64, device=device).view(torch.uint8).reshape(-1, MARK_BYTES)
        for layer in self.layers:
            for tensor in layer.tensors:
                rows = tensor.view(torch.uint8).reshape(self.blocks, -1)
                width = min(MARK_BYTES, rows.shape[1])
                yield rows[:, :width], index, values[:, :width]


def tensor_bytes(tensor: Any) -> int:
    """numel x element size."""
    return int(tensor.numel() * tensor.element_size())


class Pools:
    """The pools of one case. A context manager: on leaving, however it is left, every tensor is dropped."""

    def __init__(self, device: Device, case: Case) -> None:
        self.device = device
        self.case = case
        self.groups: list[GroupPool] = []

    def __enter__(self) -> Pools:
        try:
            for group, blocks in zip(self.case.groups, self.case.blocks, strict=True):
                pool = GroupPool(group, blocks, [])
                self.groups.append(pool)
                for _ in range(group.layers):
                    pool.layers.append(allocate_layer(self.device, group.entry, blocks, group.entries_per_block))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop every tensor and give the memory back."""
        for pool in self.groups:
            pool.layers.clear()
        self.groups.clear()
        self.device.release()

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor in the order of allocation."""
        return [tensor_bytes(tensor) for pool in self.groups for layer in pool.layers for tensor in layer.tensors]

    def fill(self, generator: Any) -> None:
        """Random values into every byte of every block, so that no page is left unmapped, zero or NaN."""
        for pool in self.groups:
            for layer in pool.layers:
                layer.fill(self.device.torch, generator)


def allocate_layer(device: Device, entry: Entry, blocks: int, entries: int) -> LayerTensors:
    """The tensors of one layer: one a field, or one of records whose fields are views."""
    torch = device.torch
    if not entry.packed:
        fields = {field.name: device.empty((blocks, entries, *field.shape), field.dtype) for field in entry.fields}
        return LayerTensors(list(fields.values()), fields)
    widths = [_itemsize(torch, field.dtype) * _count(field.shape) for field in entry.fields]
    record = device.empty((blocks, entries, sum(widths) + entry.pad), "uint8")
    views, start = {}, 0
    for field, width in zip(entry.fields, widths, strict=True):
        views[field.name] = record[..., start : start + width].view(getattr(torch, field.dtype))
        start += width
    return LayerTensors([record], views)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _itemsize(torch: Any, dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


CHUNK = 1 << 24


def fill_random(torch: Any, tensor: Any, generator: Any, scale: float | None = None) -> None:
    """Standard normal values, through a real cast for 8-bit floats; integers over their whole range.

    With `scale` the tensor holds dequantisation scales: uniform from half of it to one and a half.
    """
    for block in tensor.split(max(1, CHUNK // max(1, tensor[0].numel()))):
        if tensor.dtype in (torch.uint8, torch.int8):
            low, high = (0, 256) if tensor.dtype == torch.uint8 else (-128, 128)
            values = torch.randint(low, high, block.shape, generator=generator, device=block.device, dtype=torch.int16)
            block.copy_(values)
            continue
        wide = tensor.dtype if tensor.dtype != getattr(torch, FP8) else torch.bfloat16
        values = (
            block
            if block.is_contiguous() and wide == tensor.dtype
            else torch.empty(block.shape, dtype=wide, device=block.device)
        )
        if scale is None:
            values.normal_(generator=generator)
        else:
            values.uniform_(scale / 2, scale * 3 / 2, generator=generator)
        if values is not block:
            block.copy_(values)
