"""LMDeploy: all layers of a token in one block, states beside them.

Source: InternLM/lmdeploy 2026-08 lmdeploy/pytorch/engine/cache_engine.py, src/turbomind/kernels/attention/block.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvplan.cache.layout import WINDOW
from kvplan.cache.precision import resolve_precision
from kvplan.cache.shard import shard_layer
from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Refusal
from kvplan.engines.options import Option, Options, read_options
from kvplan.engines.stored import Stored, stored_layers
from kvplan.engines.support import require_layers
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import gib, tokens

OPTIONS = (
    Option("session_len", "tokens", aliases=("max_model_len", "ctx"), low=1),
    Option("max_batch_size", "whole", 128, low=1, high=10**6),
    Option("backend", "choice", "pytorch", choices=("pytorch", "turbomind")),
    Option("cache_block_seq_len", "whole", aliases=("block_size",), low=1, high=4096),
    Option("cache_max_entry_count", "share", low=0, high=1, open_low=True),
    Option("quant_policy", "choice", "0", choices=("0", "4", "8", "16", "17", "42")),
    Option("max_prefill_token_num", "whole", low=1, high=10**7),
    Option("enable_prefix_caching", "switch", False),
)


@dataclass(frozen=True)
class Lmdeploy:
    """The engine. Every rank has as many blocks as the poorest one."""

    name: str = "lmdeploy"

    @property
    def default_version(self) -> str:
        return str(load_rules("lmdeploy")["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Blocks from `available_bytes`, a share of what is free on one rank after the weights.

        Raises InputError for heads that don't divide by the ranks (PyTorch engine), several stages, and a quantization
        policy that TurboMind lacks.
        """
        rules = rules_at(self.name, load_rules("lmdeploy"), version)
        notes = require_layers(self.name, spec)
        options = read_options(OPTIONS, settings)
        policy, turbomind = int(options["quant_policy"]), options["backend"] == "turbomind"
        if turbomind and policy not in rules["turbomind_policies"]:
            expected = ", ".join(str(item) for item in rules["turbomind_policies"])
            raise InputError(f"quant_policy: found {policy} with the turbomind backend, expected one of {expected}")
        if parallel.pipeline > 1:
            raise InputError(f"pipeline: found {parallel.pipeline} stages, expected 1: LMDeploy has no pipeline ranks")
        if not turbomind:
            _check_heads(spec, parallel.tensor)
        precision = resolve_precision(rules["quant_policy"][policy], "fp8", model_dtype=spec.dtype)
        layers = stored_layers(spec, precision, adapt=_adapt(spec, parallel.tensor))
        answer = _answer(self.name, spec, rules, options, layers, available_bytes[0])
        return replace(answer, warnings=(*answer.warnings, *notes))


def _check_heads(spec: ModelSpec, ranks: int) -> None:
    for block in spec.blocks.values():
        heads = getattr(block, "kv_heads", None)
        if heads is not None and heads % ranks:
            raise InputError(
                f"--tp: found {ranks} ranks for {heads} KV heads, expected a divisor of {heads}: LMDeploy's PyTorch "
                "engine replicates none"
            )


def _adapt(spec: ModelSpec, ranks: int) -> Any:
    """Layers of mixed types keep every token; only a model with one window on all layers drops blocks behind it."""
    windows = {getattr(block, "window", None) for block in spec.blocks.values()}
    uniform = len(windows) == 1 and None not in windows

    def adapt(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        layer = shard_layer(layer, ranks)
        if isinstance(layer, kinds.ChunkedAttention) or (isinstance(layer, kinds.SlidingWindow) and not uniform):
            return kinds.FullAttention(layer.query_heads, layer.kv_heads, layer.head_dim, layer.v_head_dim)
        return layer

    return adapt


def _block_tokens(options: Options, rules: Rules, layers: Sequence[Stored]) -> int:
    size = int(options["cache_block_seq_len"] or rules["block_size"])
    if any(isinstance(item.layer, kinds.CompressedSparse) for item in layers):
        return max(size, int(rules["block_size_v4"]))
    wide = any(getattr(item.layer, "head_dim", 0) >= rules["wide_head"] for item in layers)
    return min(size, int(rules["wide_head_block"])) if wide and options["backend"] == "pytorch" else size


def _block_bytes(layers: Sequence[Stored], block: int) -> int:
    """Bytes of one block over all layers; DeepSeek V4's windows are state, not blocks."""
    total = Fraction(0)
    for item in layers:
        for part in item.parts:
            if part.role == "growing" and part.name != WINDOW and (part.stored.grows or part.stored.constant):
                total += Fraction(part.entry_bytes * block, part.stored.ratio)
    return int(-(-total // 1))


def _state_bytes(layers: Sequence[Stored]) -> int:
    """One state slot: recurrent state, and DeepSeek V4's window rings and compressor rows."""
    rings = 0
    for item in layers:
        part = item.part(WINDOW)
        if part is not None:
            rings += part.entry_bytes * (part.stored.window or 0)
    return rings + sum(item.bytes("state") for item in layers)


def _answer(
    name: str, spec: ModelSpec, rules: Rules, options: Options, layers: Sequence[Stored], available: int
) -> EngineAnswer:
    block = _block_tokens(options, rules, layers)
    each, state = _block_bytes(layers, block), _state_bytes(layers)
    batch = options["max_batch_size"]
    slots = batch + int(rules["state_slots_extra"]) if state else 0
    blocks = max(0, available - slots * state) // each if each else 0
    length = options["session_len"] or spec.max_context or 4096
    widths = [width for item in layers if (width := getattr(item.layer, "window", None)) and not state]
    pages = -(-length // block)
    if widths and len(widths) == len(layers):
        pages = min(pages, -(-widths[0] // block) + 1)
    refused = None
    if each and blocks < rules["least_blocks"]:
        needed = rules["least_blocks"] * each + slots * state
        text = f"{blocks} blocks fit in {gib(available)}, expected at least {rules['least_blocks']}: {gib(needed)}"
        refused = Refusal(needed, available, None, text)
    warnings = [rules.warning] if rules.warning else []
    warnings += options.warnings(name)
    if 0 < blocks < pages:
        warnings.append(f"the blocks hold {tokens(blocks * block)} tokens, fewer than one request of {tokens(length)}")
    pools = [Pool("blocks", len({item.index for item in layers}), blocks, each, blocks * each)]
    if slots:
        pools.append(Pool("state slots", sum(1 for item in layers if item.bytes("state")), slots, state, slots * state))
    concurrency = min(float(Fraction(blocks, pages)), float(batch))
    return EngineAnswer(
        name=name,
        version=rules.version,
        max_model_len=length,
        num_blocks=None if refused else blocks,
        usable_blocks=None if refused else blocks,
        bytes_per_block=(each,),
        blocks_per_request=pages,
        capacity_tokens=None if refused else blocks * block,
        max_concurrency=None if refused else concurrency,
        needed_bytes_one_request=pages * each + state,
        reserved_bytes_one_request=pages * each + state,
        groups=(Group("all layers", len({i.index for i in layers}), (spec.layer_count,), block, 0, each, pages),),
        refused=refused,
        estimated_max_model_len=blocks * block or None,
        settings=options.settings,
        derivation=(f"({available} B - {slots} x {state} B of state) / {each} B a block of {block} tokens = {blocks}",),
        warnings=tuple(warnings),
        pools=tuple(pools),
        binding="blocks" if concurrency < batch else "max_batch_size",
    )


ENGINE = Lmdeploy()
