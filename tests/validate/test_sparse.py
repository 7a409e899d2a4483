"""Pages chosen and pages evicted are the ones the rules name, and what is read is what was chosen."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cache.techniques.eviction import Eviction
from kvplan.cache.techniques.sparse_reads import Quest, page_scores
from kvplan.cache.techniques.sparse_reads import select_pages as reference_pages
from kvplan.validate.device import open_device
from kvplan.validate.kernels.problem import Decode
from kvplan.validate.sparse import keep_sinks_and_recent, select_pages, sparse_checks

torch = pytest.importorskip("torch", reason="needs torch")


def problem(generator: Any, lengths: tuple[int, ...], page: int = 4, heads: int = 1, group: int = 1) -> Decode:
    from kvplan.validate.kernels.problem import shuffled_table

    blocks = sum(-(-length // page) for length in lengths) + 2
    shape = (blocks, page, heads, 8)
    key, value = (torch.randn(shape, generator=generator) for _ in range(2))
    query = torch.randn((len(lengths), heads * group, 8), generator=generator)
    table = shuffled_table(torch, blocks, lengths, page, generator, "cpu")
    return Decode(torch, query, key, value, table, torch.tensor(lengths, dtype=torch.int32), 8**-0.5)


def test_the_pages_chosen_are_quests(generator: Any) -> None:
    """One head: the bound of each page worked out by the plain-Python rule."""
    step = problem(generator, (38, 5))
    chosen = select_pages(step, 3)
    for row, length in enumerate((38, 5)):
        count = -(-length // 4)
        blocks = step.table[row, :count].tolist()
        scores = page_scores([step.key[block, :, 0].tolist() for block in blocks], step.query[row, 0].tolist())
        wanted = [blocks[page] for page in reference_pages(scores, 3, newest=count - 1)]
        assert chosen.table[row, : len(wanted)].tolist() == wanted
    # 38 tokens end in a page of 2: two whole pages and those; 5 tokens are read whole.
    assert chosen.lengths.tolist() == [10, 5]


def test_a_page_that_stands_out_is_chosen(generator: Any) -> None:
    step = problem(generator, (80,), heads=2, group=2)
    loud = int(step.table[0, 7])
    step.key[loud] = step.query[0].reshape(2, 2, 8).sum(dim=1) * 10
    assert loud in select_pages(step, 2).table[0].tolist()


@pytest.mark.parametrize(
    ("length", "kept", "freed"),
    # page 4, 4 sinks, 9 recent, by hand: 40 tokens keep page 0 and pages from token 31 on, page 7 whole: 4 + 12
    [(40, 16, 6), (13, 13, 0), (14, 14, 0), (21, 13, 2), (3, 3, 0)],
)
def test_eviction_keeps_sinks_and_recent(length: int, kept: int, freed: int, generator: Any) -> None:
    step = problem(generator, (length,))
    left, pages = keep_sinks_and_recent(step, 4, 9)
    assert (int(left.lengths[0]), pages) == (kept, freed)
    old, new = step.table[0].tolist(), left.table[0].tolist()[: -(-kept // 4)]
    assert new[0] == old[0]
    assert new[1:] == old[1 + pages :][: len(new) - 1]


def test_every_row_passes(generator: Any) -> None:
    step = problem(generator, (100, 7, 33), page=16, heads=2, group=3)
    rows = list(sparse_checks(open_device("cpu"), "m", step, Quest(16, 48), Eviction("streamingllm", 4, 28)))
    assert [row.status for row in rows if row.judged] == ["pass"] * 5
    assert next(row for row in rows if "tokens read" in row.name).measured == 36 + 7 + 33  # 100 ends in a page of 4
