"""Reading less and keeping less, for real: Quest's page selection and eviction of a middle, over real pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan.cache.techniques.eviction import Eviction
from kvplan.cache.techniques.sparse_reads import Quest
from kvplan.validate.attention import SECTION, largest_error
from kvplan.validate.checks import Check
from kvplan.validate.device import Device
from kvplan.validate.kernels.backends import own_backend
from kvplan.validate.kernels.oracle import gather, sdpa
from kvplan.validate.kernels.problem import Decode, error_bound


def page_bounds(problem: Decode, blocks: Any) -> tuple[Any, Any]:
    """Quest's metadata of `blocks`: the smallest and largest key by page and channel, [blocks, KV heads, width]."""
    keys = problem.key[blocks].to(problem.torch.float32)
    return keys.amin(dim=1), keys.amax(dim=1)


def select_pages(problem: Decode, budget: int) -> Decode:
    """The same step over the pages with the highest bound on their scores, at most `budget` of them a request.

    The newest page is always in, and stays last since it may be part full. All heads of a request share one choice, so
    that a page is read once for all of them.
    """
    torch, page = problem.torch, problem.page
    table = torch.zeros((problem.table.shape[0], budget), dtype=torch.int32, device=problem.table.device)
    lengths = torch.zeros_like(problem.lengths)
    for row, length in enumerate(problem.lengths.tolist()):
        count = -(-length // page)
        blocks = problem.table[row, :count].to(torch.int64)
        query = problem.query[row].to(torch.float32).reshape(problem.kv_heads, problem.group, -1).unsqueeze(0)
        low, high = page_bounds(problem, blocks)
        bounds = torch.maximum(query * low.unsqueeze(2), query * high.unsqueeze(2))
        scores = bounds.sum(dim=(1, 2, 3))
        scores[-1] = torch.inf
        chosen = scores.topk(min(budget, count)).indices.sort().values
        table[row, : len(chosen)] = blocks[chosen].to(torch.int32)
        lengths[row] = (len(chosen) - 1) * page + (length - 1) % page + 1
    return problem.with_table(table, lengths)


def keep_sinks_and_recent(problem: Decode, sinks: int, recent: int) -> tuple[Decode, int]:
    """The step after whole pages between the first `sinks` and the last `recent` tokens were evicted; pages freed."""
    torch, page = problem.torch, problem.page
    table = torch.zeros_like(problem.table)
    lengths = problem.lengths.clone()
    freed = 0
    for row, length in enumerate(problem.lengths.tolist()):
        count = -(-length // page)
        first = -(-sinks // page)
        last = max(first, (length - recent) // page) if length > sinks + recent else first
        kept = (
            torch.cat((problem.table[row, :first], problem.table[row, last:count]))
            if last > first
            else (problem.table[row, :count])
        )
        table[row, : len(kept)] = kept
        lengths[row] = length - (count - len(kept)) * page
        freed += count - len(kept)
    return problem.with_table(table, lengths), freed


def sparse_checks(device: Device, case: str, problem: Decode, quest: Quest, eviction: Eviction) -> Iterator[Check]:
    """Tokens read against the plan's, the output over what was read against fp32, and the mass that was missed."""
    chosen = select_pages(problem, quest.pages)
    lengths = problem.lengths.tolist()
    # A selection ends in the newest page, which may be part full: the plan counts it whole.
    planned = sum(
        quest.read_tokens(length) - (-length % quest.page if length > quest.pages * quest.page else 0)
        for length in lengths
    )
    bound = error_bound(device.torch, problem.query)
    yield Check(SECTION, case, f"Quest, {quest.pages} pages: tokens read", planned, chosen.attended(), "tokens")
    yield Check(SECTION, case, f"Quest, {quest.pages} pages: output over what was read", bound,
                _error(device, chosen), "max abs error", "at most")  # fmt: skip
    dense = problem.attended()
    yield Check(SECTION, case, "Quest: attention mass of the pages read (random keys: no structure to find)", None,
                _mass(problem, chosen), "share", judged=False)  # fmt: skip
    sinks, recent = int(eviction.first), int(eviction.second)
    kept, freed = keep_sinks_and_recent(problem, sinks, recent)
    # Only whole pages can go: up to a page less one stays beside the budget at each edge.
    budget = sum(eviction.kept(length) + 2 * (problem.page - 1) for length in lengths)
    yield Check(SECTION, case, f"eviction to {sinks} + {recent}: tokens kept", budget, kept.attended(), "tokens",
                "at most")  # fmt: skip
    yield Check(SECTION, case, "eviction: pages freed are the tokens gone", (dense - kept.attended()) // problem.page,
                freed, "pages")  # fmt: skip
    yield Check(SECTION, case, "eviction: output over what is left", bound, _error(device, kept), "max abs error",
                "at most")  # fmt: skip


def _error(device: Device, problem: Decode) -> float:
    return largest_error(device, own_backend(device).prepare(problem)(), sdpa(problem))


def _mass(problem: Decode, chosen: Decode) -> float:
    """The mean share of the softmax that the chosen pages hold, over requests and heads."""
    shares = []
    for row in range(int(problem.lengths.numel())):
        sums = []
        for step in (chosen, problem):
            key, _ = gather(step, row, *step.span(row))
            query = step.query[row].to(step.torch.float32).reshape(step.kv_heads, step.group, -1)
            scores = problem.torch.einsum("hgd,thd->hgt", query, key) * step.scale
            sums.append(scores.logsumexp(dim=-1))
        shares.append(float((sums[0] - sums[1]).exp().mean()))
    return sum(shares) / len(shares)
