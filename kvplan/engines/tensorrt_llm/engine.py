"""TensorRT-LLM: one pool of blocks for each window, sized from a byte budget; a host pool behind it.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/_torch/pyexecutor/{_util,resource_manager}.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.shard import shard_layer
from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Refusal
from kvplan.engines.options import Option, Options, read_options
from kvplan.engines.stored import Stored, by_stage, stored_layers
from kvplan.engines.support import require_layers
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB, gib, tokens

CACHE_DTYPES = {"auto": "auto", "bf16": "bf16", "fp16": "fp16", "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8",
                "nvfp4": "fp4_mx_block16"}  # fmt: skip
OPTIONS = (
    Option("max_seq_len", "tokens", aliases=("max_model_len", "ctx"), low=1),
    Option("max_batch_size", "whole", 2048, low=1, high=10**6),
    Option("kv_cache_dtype", "choice", "auto", aliases=("dtype", "kv_cache_config.dtype"), choices=tuple(CACHE_DTYPES)),
    Option("tokens_per_block", "whole", aliases=("kv_cache_config.tokens_per_block",), low=1, high=4096),
    Option("max_tokens", "tokens", aliases=("kv_cache_config.max_tokens",), low=1),
    Option(
        "free_gpu_memory_fraction", "share",
        aliases=("kv_cache_free_gpu_memory_fraction", "kv_cache_config.free_gpu_memory_fraction"),
        low=0, high=1, open_low=True,
    ),
    Option("max_gpu_total_bytes", "bytes", aliases=("kv_cache_config.max_gpu_total_bytes",), low=1),
    Option("max_attention_window", "list", (), aliases=("kv_cache_config.max_attention_window",), low=1, high=10**9),
    Option("host_cache_size", "bytes", 0, aliases=("kv_cache_config.host_cache_size",)),
    Option("enable_block_reuse", "switch", True, aliases=("kv_cache_config.enable_block_reuse",)),
    Option("enable_attention_dp", "switch", False),
    Option("mamba_ssm_cache_dtype", "choice", "auto", choices=("auto", "float32", "bfloat16", "float16")),
)  # fmt: skip


@dataclass(frozen=True)
class TensorrtLlm:
    """The engine. A rank's pool keeps ceil(KV heads / ranks) heads; its own estimate before that rounds down."""

    name: str = "tensorrt-llm"

    @property
    def default_version(self) -> str:
        return str(load_rules("tensorrt_llm")["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Blocks from `available_bytes`: free memory after weights and activations times the fraction, one a stage.

        Raises InputError for a block that is no power of two or sizes that don't match the stages.
        """
        rules = rules_at(self.name, load_rules("tensorrt_llm"), version)
        notes = require_layers(self.name, spec)
        options = read_options(OPTIONS, settings)
        block = options["tokens_per_block"] or rules["tokens_per_block"]
        if block & (block - 1):
            raise InputError(f"tokens_per_block: found {block}, expected a power of two such as 32 or 64")
        budgets = list(available_bytes) * parallel.pipeline if len(available_bytes) == 1 else list(available_bytes)
        if len(budgets) != parallel.pipeline:
            raise InputError(
                f"--available-memory: found {len(budgets)} sizes, expected 1 or {parallel.pipeline}: one a stage"
            )
        if options["max_gpu_total_bytes"]:
            budgets = [min(budget, options["max_gpu_total_bytes"]) for budget in budgets]
        ranks = 1 if options["enable_attention_dp"] else parallel.tensor
        precision = _precision(spec, options)
        layers = _layers(spec, precision, options, rules, ranks)
        stages = by_stage(layers, spec.layer_count, parallel.pipeline)
        length = options["max_seq_len"] or spec.max_context or 4096
        pools = _Pools(spec, options, rules, block, length, length, tuple(map(tuple, stages)), tuple(budgets))
        answer = pools.shrunk().answer(self.name)
        return replace(answer, warnings=(*answer.warnings, *notes))


def _precision(spec: ModelSpec, options: Options) -> Precision:
    """Index keys are always 132 bytes; recurrent state as asked, else the checkpoint's."""
    state = options["mamba_ssm_cache_dtype"]
    return resolve_precision(CACHE_DTYPES[options["kv_cache_dtype"]], "fp8", state, model_dtype=spec.dtype)


def _layers(spec: ModelSpec, precision: Precision, options: Options, rules: Rules, ranks: int) -> list[Stored]:
    """The layers with the windows the manager knows: derived from the model, listed by hand, or none."""
    derived = spec.model_type.removesuffix("_text") in rules["derived_windows"]
    listed = tuple(int(width) for width in options["max_attention_window"])

    def adapt(layer: kinds.SingleLayer) -> kinds.SingleLayer:
        layer = shard_layer(layer, ranks)
        if isinstance(layer, kinds.ChunkedAttention) or (isinstance(layer, kinds.SlidingWindow) and not derived):
            return kinds.FullAttention(layer.query_heads, layer.kv_heads, layer.head_dim, layer.v_head_dim)
        return layer

    stored = stored_layers(spec, precision, adapt=adapt)
    return [_listed(item, listed[item.index % len(listed)]) for item in stored] if listed else stored


def _listed(item: Stored, window: int) -> Stored:
    """A layer whose window the user set by hand; the list repeats over the layers."""
    if not isinstance(item.layer, kinds.FullAttention | kinds.SlidingWindow):
        return item
    layer = item.layer
    narrow = kinds.SlidingWindow(layer.query_heads, layer.kv_heads, layer.head_dim, window, layer.v_head_dim)
    return replace(item, layer=narrow)


def _window(item: Stored) -> int | None:
    return getattr(item.layer, "window", None)


def _entry_share(item: Stored) -> Fraction:
    """Growing bytes of one token of one layer."""
    owned = (part for part in item.parts if part.role == "growing" and (part.stored.grows or part.stored.constant))
    return sum((Fraction(part.entry_bytes, part.stored.ratio) for part in owned), Fraction(0))


@dataclass(frozen=True)
class _Pools:
    """Layers by window on each stage, and the sizes that follow from the budgets.

    `length` is the longest request, which the pools may have shortened from the `wanted` one.
    """

    spec: ModelSpec
    options: Options
    rules: Rules
    block: int
    length: int
    wanted: int
    stages: tuple[tuple[Stored, ...], ...]
    budgets: tuple[int, ...]

    @property
    def windows(self) -> list[int | None]:
        """The windows of the pools, whole context first. A window of the whole length is no window."""
        found = {self.capped(item) for stage in self.stages for item in stage if _entry_share(item)}
        return sorted(found, key=lambda width: (width is not None, width or 0))

    def capped(self, item: Stored) -> int | None:
        width = _window(item)
        return None if width is None or width >= self.length else width

    def token_bytes(self, stage: int, width: int | None) -> Fraction:
        layers = (item for item in self.stages[stage] if self.capped(item) == width)
        return sum((_entry_share(item) for item in layers), Fraction(0))

    def pages(self, width: int | None) -> int:
        """Blocks one request of the greatest length holds in a pool."""
        whole = -(-self.length // self.block)
        return whole if width is None else min(whole, -(-width // self.block) + int(self.rules["window_pages_extra"]))

    def state_bytes(self, stage: int) -> int:
        return sum(item.bytes("state") for item in self.stages[stage])

    def request_bytes(self, stage: int) -> int:
        """Growing bytes of one request of the greatest length on one stage."""
        sizes = (self.token_bytes(stage, width) * self.block * self.pages(width) for width in self.windows)
        return int(-(-sum(sizes, Fraction(0)) // 1))

    def requests(self) -> Fraction:
        """Requests of the greatest length that all stages hold; state for the whole batch comes off first."""
        batch = self.options["max_batch_size"]
        held = []
        for stage, budget in enumerate(self.budgets):
            need, state = self.request_bytes(stage), self.state_bytes(stage)
            left = max(0, budget - (batch * state if state else 0))
            if need:
                held.append(Fraction(left, need))
        return min(held, default=Fraction(0))

    def blocks(self, width: int | None) -> int:
        """Blocks of one window's pool: all that fit, or with several pools as many as requests need of each."""
        if len(self.windows) > 1:
            count = int(self.requests() * self.pages(width))
        else:
            counts = []
            for stage, budget in enumerate(self.budgets):
                state = self.state_bytes(stage) * self.options["max_batch_size"]
                each = self.token_bytes(stage, width) * self.block
                if each:
                    counts.append(int(max(0, budget - state) // each))
            count = min(counts, default=0)
        limit = self.options["max_tokens"]
        return min(count, limit // self.block) if limit else count

    def shrunk(self) -> _Pools:
        """The same pools with max_seq_len cut to whole blocks that the main one holds; as they are if none fits."""
        low, high = 0, self.length // self.block
        if not self.windows or self.holds():
            return self
        if len(self.windows) == 1:
            low = high = min(high, self.blocks(self.windows[0]))
        while low < high:
            middle = (low + high + 1) // 2
            if replace(self, length=middle * self.block).holds():
                low = middle
            else:
                high = middle - 1
        return replace(self, length=low * self.block) if low else self

    def holds(self) -> bool:
        """Whether every pool has the blocks of one request of the greatest length."""
        return all(self.blocks(width) >= self.pages(width) for width in self.windows)

    def answer(self, name: str) -> EngineAnswer:
        main = self.windows[0] if self.windows else None
        blocks, pages = self.blocks(main), self.pages(main)
        stage = max(range(len(self.stages)), key=lambda index: self.request_bytes(index) - self.budgets[index])
        state = self.state_bytes(stage)
        needed = self.request_bytes(stage) + state
        refused = None
        if blocks < 1 or not self.holds():
            one = replace(self, length=min(self.length, self.block))
            least = one.request_bytes(stage) + state * self.options["max_batch_size"]
            text = f"no block fits: {gib(least)} is needed, {gib(self.budgets[stage])} is left for the cache"
            refused = Refusal(least, self.budgets[stage], None, text)
        concurrency = Fraction(blocks, pages)
        batch = self.options["max_batch_size"]
        return EngineAnswer(
            name=name,
            version=self.rules.version,
            max_model_len=self.length,
            num_blocks=None if refused else blocks,
            usable_blocks=None if refused else blocks,
            bytes_per_block=tuple(
                int(-(-self.token_bytes(index, main) * self.block // 1)) for index in range(len(self.stages))
            ),
            blocks_per_request=pages,
            capacity_tokens=None if refused else blocks * self.block,
            max_concurrency=None if refused else min(float(concurrency), float(batch)),
            needed_bytes_one_request=needed,
            reserved_bytes_one_request=needed,
            groups=self.groups(),
            log_lines=() if refused else self.log_lines(main, blocks),
            refused=refused,
            estimated_max_model_len=blocks * self.block or None,
            settings=self.options.settings,
            derivation=self.derivation(),
            warnings=self.warnings(name, blocks),
            pools=self.pools(),
            binding="blocks" if concurrency < batch else "max_batch_size",
        )

    def groups(self) -> tuple[Group, ...]:
        found = []
        for width in self.windows:
            counts = [sum(1 for i in stage if self.capped(i) == width and _entry_share(i)) for stage in self.stages]
            each = max(self.token_bytes(stage, width) for stage in range(len(self.stages))) * self.block
            kind = "full" if width is None else f"window {width}"
            size = int(-(-each // 1))
            page = -(-size // max(1, max(counts)))
            found.append(Group(kind, sum(counts), tuple(counts), self.block, page, size, self.pages(width)))
        return tuple(found)

    def pools(self) -> tuple[Pool, ...]:
        found = []
        for width, group in zip(self.windows, self.groups(), strict=True):
            count = self.blocks(width)
            sizes = [int(self.token_bytes(stage, width) * self.block * count) for stage in range(len(self.stages))]
            name = f"{group.kind} blocks"
            found.append(
                Pool(name, group.layers, count, group.bytes_per_block, sum(sizes), bytes_per_stage=tuple(sizes))
            )
        states = [self.state_bytes(stage) for stage in range(len(self.stages))]
        if any(states):
            slots = self.options["max_batch_size"]
            layers = sum(1 for stage in self.stages for item in stage if item.bytes("state"))
            sizes = [slots * size for size in states]
            found.append(Pool("state slots", layers, slots, sum(states), sum(sizes), bytes_per_stage=tuple(sizes)))
        each = int(-(-sum((self.token_bytes(0, width) for width in self.windows), Fraction(0)) * self.block // 1))
        host = self.options["host_cache_size"] // each if each else 0
        if host:
            found.append(Pool("host blocks", 0, host, each, host * each))
        return tuple(found)

    def log_lines(self, main: int | None, blocks: int) -> tuple[str, ...]:
        total = max(
            sum(
                (self.token_bytes(stage, width) * self.block * self.blocks(width) for width in self.windows),
                Fraction(0),
            )
            for stage in range(len(self.stages))
        )
        return (
            f"Number of tokens per block: {self.block}.",
            f"Allocated {float(total / GIB):.2f} GiB for max tokens in paged KV cache ({blocks * self.block}).",
        )

    def derivation(self) -> tuple[str, ...]:
        lines = []
        for stage, budget in enumerate(self.budgets):
            for width in self.windows:
                each = float(self.token_bytes(stage, width))
                kind = "full layers" if width is None else f"window {width}"
                lines.append(f"stage {stage}, {kind}: {each:g} B a token x {self.block} tokens a block of {budget} B")
        return tuple(lines)

    def warnings(self, name: str, blocks: int) -> tuple[str, ...]:
        found = [self.rules.warning] if self.rules.warning else []
        if self.length < self.wanted:
            found.append(
                f"max_seq_len becomes {tokens(self.length)}: the pool holds no more than that of {tokens(self.wanted)}"
            )
        found += self.options.warnings(name)
        windowed = any(isinstance(block, kinds.SlidingWindow) for block in self.spec.blocks.values())
        if windowed and not any(self.windows):
            found.append(
                f"TensorRT-LLM {self.rules.version} stores every token of {self.spec.model_type}'s window layers "
                "unless max_attention_window lists their windows"
            )
        if len(self.windows) > 1:
            found.append("pools of several windows are sized in step with what a request of the greatest length needs")
        return tuple(found)


ENGINE = TensorrtLlm()
