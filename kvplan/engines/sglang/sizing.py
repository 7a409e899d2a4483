"""How many token, window and state slots SGLang makes of a budget, and how many requests may run.

Source: sgl-project/sglang 0.5.23 srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.base import Refusal
from kvplan.engines.options import Options
from kvplan.engines.sglang.cells import Cell
from kvplan.engines.versions import Rules
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import gib, tokens

OWN_DRAFTS = ("eagle", "eagle3", "nextn", "mtp")


@dataclass(frozen=True)
class Sizes:
    """Cells and budgets of each stage, and every size that follows."""

    spec: ModelSpec
    options: Options
    rules: Rules
    cells: tuple[Cell, ...]
    budgets: tuple[int, ...]

    @property
    def is_v4(self) -> bool:
        return any(isinstance(block, kinds.CompressedSparse) for block in self.spec.blocks.values())

    @property
    def recurrent(self) -> bool:
        return not self.is_v4 and any(cell.slot for cell in self.cells)

    @property
    def page(self) -> int:
        asked = int(self.options["page_size"])
        return int(self.rules["page_size_v4"]) if self.is_v4 and not self.options.asked("page_size") else asked

    @property
    def ratio(self) -> Fraction:
        asked = self.options["swa_full_tokens_ratio"]
        default = self.rules["swa_full_tokens_ratio_v4" if self.is_v4 else "swa_full_tokens_ratio"]
        return Fraction(1) if self.options["disable_hybrid_swa_memory"] else Fraction(str(asked or default))

    @property
    def context(self) -> int:
        return int(self.options["context_length"] or self.spec.max_context or 4096)

    def slots(self, stage: int) -> int:
        """State slots of one stage, without the padding slot."""
        cell = self.cells[stage]
        if not self.recurrent or not cell.slot:
            return 0
        if self.options["max_mamba_cache_size"]:
            return int(self.options["max_mamba_cache_size"])
        ratio = Fraction(str(self.options["mamba_full_memory_ratio"] or self.rules["mamba_full_memory_ratio"]))
        pool = self.budgets[stage] * ratio / (1 + ratio)
        return max(0, int((pool - cell.slot) // cell.slot))

    def state_slots(self) -> int:
        return min((self.slots(stage) for stage, cell in enumerate(self.cells) if cell.slot), default=0)

    def token_bytes(self, stage: int) -> Fraction:
        """Bytes of one token of the full pool, its share of the window pool and of a draft pool included."""
        cell = self.cells[stage]
        share = self.ratio if cell.full else Fraction(1)
        return (cell.full + share * cell.window) * (1 + self.draft_share())

    def draft_share(self) -> Fraction:
        """A draft's pool over the target's: its layers over those that hold K and V."""
        if self.options["speculative_algorithm"] not in OWN_DRAFTS:
            return Fraction(0)
        holding = sum(cell.full_layers + cell.window_layers for cell in self.cells)
        drafts = self.options["speculative_draft_layers"] or sum(self.spec.draft_counts.values()) or 1
        return Fraction(drafts, holding) if holding else Fraction(0)

    def states_bytes(self, stage: int) -> int:
        """Bytes of the state pool, and of what drafting keeps of it for each request and draft token."""
        cell = self.cells[stage]
        if not self.recurrent:
            return 0
        size = (self.state_slots() + 1) * cell.slot
        draft_tokens = self.options["speculative_num_draft_tokens"]
        if self.options["speculative_algorithm"] and draft_tokens:
            size += cell.slot * (self.running_limit() + 1) * draft_tokens
        return size

    def running_limit(self) -> int:
        """The greatest number of running requests that the state slots allow."""
        strategy = "no_radix" if self.options["disable_radix_cache"] else self.options["mamba_scheduler_strategy"]
        allowed = self.state_slots() // int(self.rules["slots_per_request"][strategy])
        asked = self.options["max_running_requests"]
        return min(allowed, asked) if asked else allowed

    def full_tokens(self) -> int:
        """max_total_num_tokens: what the poorest stage holds, in whole pages."""
        counts = []
        for stage, budget in enumerate(self.budgets):
            cell = self.token_bytes(stage)
            if cell:
                counts.append(int(max(0, budget - self.states_bytes(stage)) // cell))
        count = min(counts, default=0)
        if self.options["max_total_tokens"]:
            count = min(count, self.options["max_total_tokens"])
        return count // self.page * self.page

    def window_tokens(self, full: int) -> int:
        if not any(cell.window for cell in self.cells):
            return 0
        share = self.ratio if any(cell.full for cell in self.cells) else Fraction(1)
        return int(full * share) // self.page * self.page

    def requests(self, full: int) -> int:
        """Rows of the request table: the running requests, capped by state slots where there are any."""
        rule = self.rules["request_rows"]
        asked = self.options["max_running_requests"]
        count = asked or min(max(full * rule["scale"] // self.context, rule["low"]), rule["high"])
        count = min(count, full // 2) if full else count
        return min(count, self.running_limit()) if self.recurrent else int(count)

    def refusal(self, full: int, window: int) -> Refusal | None:
        width = max((cell.width for cell in self.cells), default=0)
        stage = min(range(len(self.budgets)), key=lambda index: self.budgets[index])
        available = self.budgets[stage]
        if full <= 0 and any(cell.full or cell.window for cell in self.cells):
            needed = self.states_bytes(stage) + int(-(-self.token_bytes(stage) * self.page // 1))
            text = f"no token fits: {gib(max(0, available))} is left for the cache, expected at least {gib(needed)}"
            return Refusal(needed, available, None, text)
        if width and any(cell.window for cell in self.cells) and window <= width + self.page:
            least = int((width + self.page + 1) / self.ratio) + self.page
            needed = int(-(-self.token_bytes(stage) * least // 1))
            text = (
                f"the window pool holds {tokens(window)} tokens, expected more than the window of {tokens(width)} "
                f"and a page of {self.page}"
            )
            return Refusal(needed, available, None, text)
        return None
