"""Split-KV paged decode in plain torch: the CPU twin of the Triton kernel, same splits, same merge."""

from __future__ import annotations

from typing import Any

from kvplan.validate.kernels.oracle import gather
from kvplan.validate.kernels.problem import Decode


def split_bounds(begin: int, end: int, splits: int, tile: int) -> list[tuple[int, int]]:
    """`splits` runs of whole tiles over [begin, end); the last ones may be short or empty."""
    share = (end - begin + splits - 1) // splits
    chunk = (share + tile - 1) // tile * tile
    starts = [min(end, begin + number * chunk) for number in range(splits)]
    return [(start, min(end, start + chunk)) for start in starts]


def decode(problem: Decode, out: Any, splits: int = 4, tile: int = 16) -> Any:
    """Write the output of every request into `out` [batch, query heads, value width] and return it."""
    torch = problem.torch
    for number in range(int(problem.lengths.numel())):
        query = problem.query[number].to(torch.float32).reshape(problem.kv_heads, problem.group, -1)
        parts, sums = [], []
        for begin, end in split_bounds(*problem.span(number), splits, tile):
            part, log_sum = _partial(problem, query, number, begin, end)
            parts.append(part)
            sums.append(log_sum)
        merged = merge(problem, torch.stack(parts), torch.stack(sums))
        out[number].copy_(merged.reshape(-1, problem.value_width))
    return out


def _partial(problem: Decode, query: Any, number: int, begin: int, end: int) -> tuple[Any, Any]:
    """Attention over one split: output [KV heads, group, width] and log-sum-exp [KV heads, group]."""
    torch = problem.torch
    if begin == end:
        empty = torch.zeros((*query.shape[:2], problem.value_width), device=query.device)
        return empty, torch.full(query.shape[:2], -torch.inf, device=query.device)
    key, value = gather(problem, number, begin, end)
    scores = torch.einsum("hgd,thd->hgt", query, key) * problem.scale
    return torch.einsum("hgt,thd->hgd", scores.softmax(dim=-1), value), scores.logsumexp(dim=-1)


def merge(problem: Decode, parts: Any, sums: Any) -> Any:
    """Weigh each split's output by its share of the softmax; sinks take their share and give nothing."""
    torch = problem.torch
    total = sums.logsumexp(dim=0)
    if problem.sinks is not None:
        sinks = problem.sinks.to(torch.float32).reshape(total.shape)
        total = torch.logaddexp(total, sinks)
    return (parts * (sums - total).exp().unsqueeze(-1)).sum(dim=0)
