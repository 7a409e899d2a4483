"""Block sizes: the tokens of a block, raised until attention pages cover states and mixed dtypes share a page.

The rules are those of vllm/platforms/interface.py 0.32.0, update_block_size_for_backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any

from kvplan.engines.base import Device
from kvplan.engines.versions import Rules, load_rules
from kvplan.engines.vllm.backends import common_block
from kvplan.engines.vllm.pages import Family, Model, Unit
from kvplan.engines.vllm.settings import Resolved
from kvplan.record import record

DEFAULT_BLOCK = 16


def ceil_div(value: int, divisor: int) -> int:
    """`value / divisor`, rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return ceil_div(value, multiple) * multiple


@record
class BlockSizes:
    """Tokens of a block, and the pages that others are padded to; `why` tells the rule in words.

    `state_page` is what a recurrent state's page is padded to, `shared_page` what windows' pages are padded to beside
    layers left in 16 bits; None where nothing is padded.
    """

    block: int
    state_block: int
    state_page: int | None
    shared_page: int | None
    why: str


@record
class CacheLayer:
    """One layer's cache in vLLM's pool: a page of `page` bytes holds `block` tokens (one state for `state` layers).

    `content` is the page without its padding.
    """

    unit: Unit
    family: Family
    block: int
    page: int
    content: int
    window: int | None

    @property
    def stage(self) -> int:
        return self.unit.stage

    @property
    def key(self) -> tuple[Any, ...]:
        """What two layers must have in common to be one kind of layer to vLLM."""
        return (*self.but_window, self.window)

    @property
    def but_window(self) -> tuple[Any, ...]:
        """The same without the window."""
        return (self.family, self.block, self.page, self.unit.shape, self.unit.checkpoint_blocks)


def block_sizes(model: Model, resolved: Resolved, rules: Rules, device: Device) -> BlockSizes:
    """Choose the block size as vLLM does. Raises InputError where the backends share none."""
    block, why = _base_block(model, resolved, device)
    states = [unit for unit in model.units if unit.family == "state"]
    attention = [unit for unit in model.units if unit.family != "state"]
    state_page = None
    if states and attention:
        block, state_page, why = _cover_states(model, states, resolved, block, why, rules)
    shared = None
    if resolved.skip_layers and model.token is not None:
        block, shared, why = _cover_skipped(model, block, why, state_page)
        state_page = shared if state_page is not None else None
    state_block = block if resolved.state_mode != "none" else resolved.max_model_len
    return BlockSizes(block, state_block, state_page, shared, why)


def _base_block(model: Model, resolved: Resolved, device: Device) -> tuple[int, str]:
    if not model.backends:
        return resolved.block_size or DEFAULT_BLOCK, "default"
    names = ", ".join(backend.name for backend in model.backends)
    if device.kind == "cpu":
        latent = any(backend.latent for backend in model.backends)
        default = load_rules("vllm_backends")["cpu_block"]["latent" if latent else "heads"]
        if latent or resolved.block_size is None:
            return default, f"{names} on a CPU"
    if resolved.block_size is not None:
        return resolved.block_size, "asked"
    return common_block(model.backends, DEFAULT_BLOCK), f"the smallest block that {names} takes"


def _cover_states(
    model: Model, states: Sequence[Unit], resolved: Resolved, block: int, why: str, rules: Rules
) -> tuple[int, int | None, str]:
    """Raise the block until one attention page covers the largest recurrent state; the state is padded to it."""
    assert model.token is not None
    token, latent = model.token.first, model.backends[0].latent
    if resolved.kv_cache_dtype.startswith("turboquant_"):
        token = model.token.cached
        token = lcm(token, model.token.sixteen_bit) if resolved.skip_layers else token
    largest = max(unit.entry_bytes for unit in states)
    step = max(model.backends[0].smallest_block, block)
    if latent:
        step = max(step, rules["latent_hybrid_block"])
    least = step * ceil_div(largest, step * token)
    least = round_up(least, lcm(*(backend.smallest_block for backend in model.backends)))
    if block < least:
        block = least
        why = f"least multiple of {step} tokens whose {token} B cover a state of {largest} B"
    page = block * token
    return block, page if page > largest else None, why


def _cover_skipped(model: Model, block: int, why: str, state_page: int | None) -> tuple[int, int | None, str]:
    """Raise the block until the quantized page covers a 16-bit page of the smallest kernel block."""
    assert model.token is not None
    primary, padded = model.token.first, model.token.sixteen_bit
    if padded <= primary:
        return block, None, why
    kernel = model.backends[0].smallest_block
    step = max(kernel, block)
    needed = max(padded * kernel, state_page or 0)
    least = step * ceil_div(needed, step * primary)
    if block < least:
        block, why = least, f"least multiple of {step} tokens whose quantized page covers {needed} B"
    return block, block * primary, why


def cache_layers(model: Model, sizes: BlockSizes) -> list[CacheLayer]:
    """The pages of every cache layer, in the model's order."""
    return [_layer(unit, sizes) for unit in model.units]


def _layer(unit: Unit, sizes: BlockSizes) -> CacheLayer:
    if unit.family == "state":
        page = max(unit.entry_bytes, sizes.state_page or 0)
        return CacheLayer(unit, "state", sizes.state_block, page, unit.entry_bytes, None)
    block = unit.own_block or sizes.block
    if unit.family == "sliding" and unit.backend is not None:
        budget = sizes.shared_page or unit.entry_bytes * block
        block = unit.backend.block_within(unit.entry_bytes, budget)
    content = block // unit.ratio * unit.entry_bytes
    page = round_up(content, unit.alignment)
    if unit.family == "sliding" and sizes.shared_page is not None:
        page = max(page, sizes.shared_page)
    return CacheLayer(unit, unit.family, block, page, content, unit.window)
