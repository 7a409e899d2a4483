"""Attention over the pools that were allocated: each kernel against fp32, on random data, through a shuffled table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from kvplan.spec import layers as kinds
from kvplan.validate.checks import Check, skipped
from kvplan.validate.device import Device, OutOfMemory
from kvplan.validate.groups import PoolGroup
from kvplan.validate.kernels.backends import INTERPRETED, Backend, other_backends, own_backend, triton_backend
from kvplan.validate.kernels.oracle import sdpa
from kvplan.validate.kernels.problem import Decode, error_bound, shuffled_table
from kvplan.validate.pools import GroupPool, LayerTensors, Pools

SECTION = "attention"
NOT_FINITE = 1e30  # JSON has no infinity
_STATES = "a state is read whole: there is no attention over it"


def attention_checks(pools: Pools, generator: Any, longest: int, extra: bool = True) -> Iterator[Check]:
    """One row per group and kernel: the largest error over a batch of a one-token, a ragged and a long request."""
    for pool in pools.groups:
        case, group = pools.case.name, pool.group
        reason = unsupported(group)
        if reason is not None:
            yield skipped(SECTION, case, group.name, reason)
            continue
        problem = pool_problem(pools.device, pool, generator, longest)
        yield from numerics(pools.device, case, group.name, problem, extra)


def unsupported(group: PoolGroup) -> str | None:
    """Why no kernel here attends over a group, None where one does."""
    layer, names = group.layer, {field.name for field in group.entry.fields}
    if group.part.role == "state":
        return _STATES
    if group.part.role == "cross" or not isinstance(
        layer, kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention | kinds.LatentAttention
    ):
        return "no kernel here attends over this layout: its bytes and tables are checked"
    if names & {"index key"}:
        return "index keys are scored by the indexer, not attended"
    if any(field.dtype == "uint8" for field in group.entry.fields):
        return "packed 4-bit values have no kernel here"
    return None


def pool_problem(device: Device, pool: GroupPool, generator: Any, longest: int, layer: int = 0) -> Decode:
    """A decode step over one layer of a pool: lengths 1, one past a page, and the longest that fits."""
    torch, group = device.torch, pool.group
    room = max(1, pool.blocks - 4) * group.block_tokens
    lengths = [1, group.block_tokens + 1, min(longest, room)]
    lengths = lengths if pool.blocks >= 6 else [min(longest, pool.blocks * group.block_tokens)]
    table = shuffled_table(torch, pool.blocks, lengths, group.block_tokens, generator, device.handle)
    spec = group.layer
    assert isinstance(spec, kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention | kinds.LatentAttention)
    counts = torch.tensor(lengths, dtype=torch.int32, device=device.handle)
    window = getattr(spec, "window", None) or 0
    views = _views(pool.layers[layer], spec)
    width = int(views["key"].shape[3]) + (0 if views.get("rope") is None else int(views["rope"].shape[3]))
    query = _query(device, (len(lengths), spec.query_heads, width), generator)
    return Decode(torch, query, table=table, lengths=counts, window=window, scale=_scale(spec), **views)


def _query(device: Device, shape: Sequence[int], generator: Any) -> Any:
    return device.empty(shape, "bfloat16").normal_(generator=generator)


def _scale(layer: Any) -> float:
    """1 / sqrt of the width a head scores over; MLA's is that of its expanded heads, where they are known."""
    if isinstance(layer, kinds.LatentAttention):
        return 1 / math.sqrt((layer.nope_head_dim or layer.latent_dim) + layer.rope_dim)
    return 1 / math.sqrt(layer.head_dim)


def _views(tensors: LayerTensors, layer: Any) -> dict[str, Any]:
    """The tensors of one layer as a kernel takes them: [blocks, page, KV heads, width]."""
    fields = tensors.fields
    if "record" in fields:
        record = fields["record"].unsqueeze(2)
        latent = record[..., : layer.latent_dim]
        rope = record[..., layer.latent_dim :] if layer.rope_dim else None
        return {"key": latent, "value": latent, "rope": rope, "shared": True}
    if "nope" in fields:
        nope, scale, rope = (fields[name].unsqueeze(2) for name in ("nope", "scale", "rope"))
        return {"key": nope, "value": nope, "rope": rope, "key_scale": scale, "shared": True}
    views: dict[str, Any] = {"key": fields["key"], "value": fields["value"]}
    if "key scale" in fields:
        views["key_scale"] = fields["key scale"].unsqueeze(-1)
        views["value_scale"] = fields["value scale"].unsqueeze(-1)
    return views


def numerics(device: Device, case: str, name: str, problem: Decode, extra: bool = True) -> Iterator[Check]:
    """The largest absolute error of every kernel at hand against fp32 attention over gathered pages."""
    right = sdpa(problem)
    bound = error_bound(device.torch, problem.query)
    tokens = problem.attended()
    backends: list[Backend] = [own_backend(device)]
    if device.kind == "cpu":
        backends.append(triton_backend(device))
    if extra and device.kind == "cuda":
        backends.extend(other_backends(device))
    for backend in backends:
        title = f"{name}: {backend.name}, {tokens:,} tokens"
        if backend.name == INTERPRETED:  # slow: two KV heads tell the same
            problem = problem.first_heads(2)
            right = right[:, : problem.query.shape[1]]
        reason = backend.refuses(problem)
        if reason is not None:
            yield skipped(SECTION, case, title, reason)
            continue
        judged = backend.name in (backends[0].name, INTERPRETED)
        try:
            error = largest_error(device, backend.prepare(problem)(), right)
        except OutOfMemory:
            raise
        except Exception as failure:
            said = f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:120]}"
            if judged:
                yield Check(SECTION, case, title, bound, NOT_FINITE, "max abs error", "at most", note=said)
            else:
                yield skipped(SECTION, case, title, said)
            continue
        yield Check(SECTION, case, title, bound, error, "max abs error", "at most", judged=judged)


def largest_error(device: Device, out: Any, right: Any) -> float:
    """max |out - right|; NOT_FINITE when anything is no finite number, since that was never written."""
    wide = out.to(device.torch.float32)
    if not bool(device.torch.isfinite(wide).all()):
        return NOT_FINITE
    return float((wide - right).abs().max())


def window_and_sink_problem(device: Device, generator: Any, page: int = 16) -> Decode:
    """A step with attention sinks and a window that starts inside a page, over pages of its own (gpt-oss's shape)."""
    torch = device.torch
    lengths = [3, 2 * page + 5, 7 * page + 1]
    blocks = sum(-(-length // page) for length in lengths) + 3
    shape = (blocks, page, 2, 64)
    key, value = (device.empty(shape, "bfloat16").normal_(generator=generator) for _ in range(2))
    sinks = device.empty((16,), "float32").normal_(generator=generator)
    return Decode(
        torch, _query(device, (len(lengths), 16, 64), generator), key, value,
        shuffled_table(torch, blocks, lengths, page, generator, device.handle),
        torch.tensor(lengths, dtype=torch.int32, device=device.handle), 1 / math.sqrt(64),
        window=3 * page + 5, sinks=sinks,
    )  # fmt: skip
