"""Reads that skip: Quest's page summaries and budget. Stored bytes never fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvplan.cache.entries import EntryLaw
from kvplan.cache.layout import Part
from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.options import parse_option
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.units import parse_tokens

TECHNIQUE = Technique(
    number=7,
    name="quest",
    title="Quest: reads chosen per query; DSA: reads chosen by a trained indexer",
    term="reads",
    stored="Quest + 1/page (6.25 % at 16); DSA + 132 bytes a token and layer",
    read="page summaries and the budget; below the budget more than dense",
    computed="page scores and attention over the budget",
    needs_training=False,
    kinds=("full_attention",),
    untouched="bytes stored; windows, latents and recurrent state",
    metadata="one minimum and one maximum key a page and KV head, in their own dtype",
    quality="training-free; recall depends on the budget; the first layers stay dense",
    kernel="page scoring, top-k and a sparse decode kernel; choices per query head lose GQA's shared reads",
    headline="7.03x on self-attention at 32,768 with 2,048 (88 % of the ideal 8.0x), 2.23x end to end",
    source="mit-han-lab/Quest README; arXiv 2406.10774",
    option="--sparse-read quest:page=16,budget=2048",
)

FIELD = "--sparse-read"
_EXAMPLE = "quest:page=16,budget=2048"
_TRAINED = ("dsa", "nsa", "moba", "seerattention", "csa")
_METADATA_BYTES = {"bf16": 2, "fp32": 4}
SUMMARY = "page summaries"


@record
class Quest:
    """Quest's settings: `page` tokens a page, `budget` tokens read, `dense` first layers read whole.

    `metadata` is the dtype of the minimum and maximum keys (SGLang keeps them in fp32). With `per_query_head` the
    query heads of a group choose apart, and the group loads up to as many pages as they choose together.
    """

    page: int = 16
    budget: int = 2048
    dense: int = 2
    metadata: str = "bf16"
    per_query_head: bool = False

    @property
    def pages(self) -> int:
        """Whole pages the budget buys, the newest page among them."""
        return self.budget // self.page

    @property
    def selectable_pages(self) -> int:
        """Pages left to choose once the newest one is in."""
        return self.pages - 1

    def read_tokens(self, resident: int) -> int:
        """Tokens a sparse layer reads of `resident` ones."""
        return min(self.pages * self.page, resident)

    def read_fraction(self, n: int) -> Fraction:
        """Reads of a sparse layer over dense reads: a page's summary weighs one K/V entry, the budget the rest."""
        return Fraction(-(-n // self.page) + self.read_tokens(n), n)

    def model_read_fraction(self, n: int, layers: int) -> Fraction:
        """The same over `layers` layers of which the first `dense` read everything."""
        dense = min(self.dense, layers)
        return (dense + (layers - dense) * self.read_fraction(n)) / layers

    def summary(self, part: Part, key_width: int, kv_heads: int, reads: bool) -> Part:
        """The page summaries beside `part`: a minimum and a maximum key for each page of its stored entries."""
        law = part.stored
        limit = None if law.limit is None else -(-law.limit // self.page)
        constant = -(-law.constant // self.page)
        pages = replace(law, ratio=self.page, limit=limit, constant=constant, started=True)
        width = _METADATA_BYTES[self.metadata]
        return Part(
            SUMMARY, "growing", self.metadata, pages, pages if reads else EntryLaw(grows=False),
            2 * kv_heads * key_width * width, f"2 x {kv_heads} KV heads x {key_width} x {width} B",
            dtype_source="mit-han-lab/Quest quest/utils/controller.py",
        )  # fmt: skip

    def sparse(self, part: Part, group: int) -> Part:
        """`part` read under the budget; `group` query heads share a KV head."""
        budget = self.pages * self.page * (group if self.per_query_head else 1)
        limit = budget if part.read.limit is None else min(budget, part.read.limit)
        return replace(part, read=replace(part.read, limit=limit))


def parse_sparse_read(text: str) -> Quest:
    """Parse `quest:page=16,budget=2048[,dense=2][,metadata=bf16|fp32][,per-query-head]`. Raises InputError."""
    option = parse_option(text, FIELD, _EXAMPLE)
    if option.name in _TRAINED:
        raise InputError(
            f"{FIELD}: found {option.name}, which needs training and can't be switched on; expected {_EXAMPLE}, or a "
            f"model that has {option.name} in its checkpoint"
        )
    if option.name != "quest":
        raise InputError(f"{FIELD}: found {show(text)}, expected {_EXAMPLE}{did_you_mean(option.name, ('quest',))}")
    budget = 2048 if option.value is None else parse_tokens(option.value, FIELD)
    quest = Quest(
        option.whole("page", 16, 1, 10**6),
        option.tokens("budget", budget),
        option.whole("dense", 2, 0, 10**4),
        option.word("metadata", tuple(_METADATA_BYTES), "bf16"),
        option.flag("per-query-head"),
    )
    option.finish(("page", "budget", "dense", "metadata", "per-query-head"))
    if quest.pages < 1:
        raise InputError(f"{FIELD}: found budget={quest.budget}, expected at least one page of {quest.page} tokens")
    return quest


def page_scores(pages: Sequence[Sequence[Sequence[float]]], query: Sequence[float]) -> tuple[float, ...]:
    """Quest's upper bound of each page's attention score: the sum over channels of max(q x min, q x max).

    `pages` holds keys as pages x tokens x channels.
    """
    scores = []
    for page in pages:
        channels = list(zip(*page, strict=True))
        scores.append(sum(max(q * min(c), q * max(c)) for q, c in zip(query, channels, strict=True)))
    return tuple(scores)


def select_pages(scores: Sequence[float], pages: int, newest: int | None = None) -> tuple[int, ...]:
    """The `pages` best pages in order of position; `newest`, the page being written, is always among them."""
    ranked = sorted(range(len(scores)), key=lambda page: (page != newest, -scores[page], page))
    return tuple(sorted(ranked[:pages]))
