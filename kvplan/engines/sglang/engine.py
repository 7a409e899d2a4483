"""SGLang: token slots from a byte budget, window and state pools, the request table, drafts and HiCache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Setting
from kvplan.engines.options import Option, Options, read_options
from kvplan.engines.sglang.cells import CACHE_DTYPES, cell_of, has_window_pool, precision_for, stage_layers
from kvplan.engines.sglang.sizing import Sizes
from kvplan.engines.support import require_layers
from kvplan.engines.versions import load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import GB, GIB, tokens

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
OPTIONS = (
    Option("context_length", "tokens", aliases=("max_model_len", "ctx"), low=1),
    Option("kv_cache_dtype", "choice", "auto", choices=tuple(CACHE_DTYPES)),
    Option("page_size", "whole", 1, low=1, high=4096),
    Option("max_total_tokens", "tokens", low=1),
    Option("max_running_requests", "whole", low=1, high=10**6),
    Option("mem_fraction_static", "share", low=0, high=1, open_low=True),
    Option("swa_full_tokens_ratio", "share", low=0, high=1, open_low=True),
    Option("disable_hybrid_swa_memory", "switch", False),
    Option("mamba_full_memory_ratio", "share", low=0, high=100, open_low=True),
    Option("max_mamba_cache_size", "whole", low=1, high=10**9),
    Option("mamba_ssm_dtype", "choice", choices=("float32", "bfloat16", "float16")),
    Option("mamba_scheduler_strategy", "choice", "no_buffer", choices=STRATEGIES),
    Option("disable_radix_cache", "switch", False),
    Option("chunked_prefill_size", "whole", low=-1, high=10**7),
    Option("enable_dp_attention", "switch", False),
    Option(
        "speculative_algorithm", "choice", choices=("eagle", "eagle3", "nextn", "mtp", "dflash", "standalone", "ngram")
    ),
    Option("speculative_num_draft_tokens", "whole", 0, low=0, high=1024),
    Option("speculative_draft_layers", "whole", low=1, high=1000),
    Option("enable_hierarchical_cache", "switch", False),
    Option("hicache_ratio", "share", low=0, high=10**6, open_low=True),
    Option("hicache_size", "whole", 0, low=0, high=10**6),
)


@dataclass(frozen=True)
class Sglang:
    """The engine. All figures are those of one rank; every rank of a stage holds as many tokens."""

    name: str = "sglang"

    @property
    def default_version(self) -> str:
        return str(load_rules("sglang")["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Pools from `available_bytes`: what --mem-fraction-static leaves after the weights, one figure a stage.

        Raises InputError for values the engine refuses.
        """
        rules = rules_at(self.name, load_rules("sglang"), version)
        notes = require_layers(self.name, spec)
        options = read_options(OPTIONS, settings)
        ranks = _attention_ranks(options, parallel)
        stages = list(available_bytes) * parallel.pipeline if len(available_bytes) == 1 else list(available_bytes)
        if len(stages) != parallel.pipeline:
            raise InputError(
                f"--available-memory: found {len(stages)} sizes, expected 1 or {parallel.pipeline}: one a stage"
            )
        precision = precision_for(spec, options["kv_cache_dtype"], options["mamba_ssm_dtype"])
        layers = stage_layers(spec, precision, rules, ranks, parallel.pipeline)
        cells = [cell_of(stage, rules) for stage in layers]
        answer = _answer(Sizes(spec, options, rules, tuple(cells), tuple(stages)), self.name)
        return replace(answer, warnings=(*answer.warnings, *notes))


def _attention_ranks(options: Options, parallel: Parallelism) -> int:
    ranks = parallel.tensor // max(1, parallel.decode_context)
    if options["enable_dp_attention"]:
        ranks = parallel.tensor // max(1, parallel.data)
    return max(1, ranks)


def _answer(sizes: Sizes, name: str) -> EngineAnswer:
    full = sizes.full_tokens()
    window = sizes.window_tokens(full)
    requests = sizes.requests(full)
    pools = _pools(sizes, full, window, requests)
    need = sizes.context
    refused = sizes.refusal(full, window)
    cell = max(range(len(sizes.cells)), key=lambda stage: sizes.token_bytes(stage))
    rows = Fraction(full, need)
    limited = min(float(rows), float(requests)) if requests else float(rows)
    needed = int(-(-sizes.token_bytes(cell) * need // 1)) + sizes.cells[cell].slot
    return EngineAnswer(
        name=name,
        version=sizes.rules.version,
        max_model_len=need,
        num_blocks=None if refused else full // sizes.page,
        usable_blocks=None if refused else full // sizes.page,
        bytes_per_block=tuple(int(-(-sizes.token_bytes(stage) * sizes.page // 1)) for stage in range(len(sizes.cells))),
        blocks_per_request=-(-need // sizes.page),
        capacity_tokens=None if refused else full,
        max_concurrency=None if refused else limited,
        needed_bytes_one_request=needed,
        reserved_bytes_one_request=needed,
        groups=_groups(sizes),
        log_lines=() if refused else _log_lines(sizes, full, window, requests),
        refused=refused,
        estimated_max_model_len=full or None,
        settings=_settings(sizes, requests),
        derivation=_derivation(sizes, full, window),
        warnings=_warnings(sizes, name, full),
        assumptions=_assumptions(sizes),
        pools=pools,
        binding="state slots" if sizes.recurrent and requests < rows else "token slots",
    )


def _settings(sizes: Sizes, requests: int) -> tuple[Setting, ...]:
    """The settings with the values the engine resolves for those that weren't asked for."""
    resolved = {
        "page_size": sizes.page,
        "context_length": sizes.context,
        "swa_full_tokens_ratio": float(sizes.ratio),
        "max_running_requests": requests,
    }
    return tuple(
        setting if setting.source == "asked" else replace(setting, value=resolved.get(setting.name, setting.value))
        for setting in sizes.options.settings
    )


def _pools(sizes: Sizes, full: int, window: int, requests: int) -> tuple[Pool, ...]:
    """Token and window slots with the spare page each allocates, state slots, drafts, the request table, HiCache."""
    found = [_tokens(sizes, "token slots", full, windowed=False)]
    if window:
        found.append(_tokens(sizes, "window slots", window, windowed=True))
    if sizes.recurrent:
        slots = sizes.state_slots() + 1
        held = tuple(slots * cell.slot for cell in sizes.cells)
        layers = sum(cell.state_layers for cell in sizes.cells)
        each = sum(cell.slot for cell in sizes.cells)
        found.append(Pool("state slots", layers, slots, each, slots * each, bytes_per_stage=held))
    share = sizes.draft_share()
    if share:
        each_draft = max(sizes.token_bytes(stage) for stage in range(len(sizes.cells))) * share / (1 + share)
        found.append(Pool("draft slots", 0, full, int(each_draft), int(each_draft * full)))
    rule = sizes.rules["request_rows"]
    columns = sizes.context + rule["extra_columns"] + sizes.options["speculative_num_draft_tokens"]
    row = columns * rule["bytes"]
    found.append(Pool("request table", 0, requests + 1, row, (requests + 1) * row))
    if sizes.options["enable_hierarchical_cache"]:
        found.append(_hicache(sizes, full))
    return tuple(pool for pool in found if pool.slots)


def _tokens(sizes: Sizes, name: str, count: int, *, windowed: bool) -> Pool:
    slots = count + sizes.page if count else 0
    each = [cell.window if windowed else cell.full for cell in sizes.cells]
    keys = sum(cell.window_key if windowed else cell.key for cell in sizes.cells)
    layers = sum(cell.window_layers if windowed else cell.full_layers for cell in sizes.cells)
    total = sum(each)
    return Pool(
        name,
        layers,
        slots,
        int(-(-total // 1)),
        int(total * slots),
        parts={"K": int(keys * slots), "V": int((total - keys) * slots)},
        bytes_per_stage=tuple(int(size * slots) for size in each),
    )


def _hicache(sizes: Sizes, full: int) -> Pool:
    """Host slots: a multiple of the device's, or --hicache-size in decimal GB; one page more than either."""
    each = max(cell.full for cell in sizes.cells)
    size = sizes.options["hicache_size"]
    ratio = Fraction(str(sizes.options["hicache_ratio"] or sizes.rules["hicache_ratio"]))
    count = int(size * GB // each) if size and each else int(full * ratio)
    slots = count // sizes.page * sizes.page + sizes.page
    return Pool("host slots (HiCache)", 0, slots, int(-(-each // 1)), int(each * slots))


def _groups(sizes: Sizes) -> tuple[Group, ...]:
    found = []
    heaviest = max(sizes.cells, key=lambda cell: cell.full + cell.window)
    blocks = -(-sizes.context // sizes.page)
    for kind, layers, size in (
        ("full", [cell.full_layers for cell in sizes.cells], heaviest.full),
        ("window", [cell.window_layers for cell in sizes.cells], heaviest.window),
    ):
        if sum(layers):
            block = int(-(-size * sizes.page // 1))
            page = int(-(-block // max(1, max(layers))))
            found.append(Group(kind, sum(layers), tuple(layers), sizes.page, page, block, blocks))
    if sizes.recurrent:
        states = [cell.state_layers for cell in sizes.cells]
        slot = max(cell.slot for cell in sizes.cells)
        found.append(Group("state", sum(states), tuple(states), sizes.context, slot // max(1, max(states)), slot, 1))
    return tuple(found)


def _log_lines(sizes: Sizes, full: int, window: int, requests: int) -> tuple[str, ...]:
    cell = max(sizes.cells, key=lambda item: item.full)
    keys, values = float(cell.key * full / GIB), float((cell.full - cell.key) * full / GIB)
    lines = []
    if sizes.recurrent:
        lines.append(f"Mamba Cache is allocated. max_mamba_cache_size: {sizes.state_slots()}")
    if window:
        lines.append(f"Use sliding window memory pool. full_layer_tokens={full}, swa_layer_tokens={window}")
    split = f"K size: {keys:.2f} GB, V size: {values:.2f} GB" if keys and values else f"KV size: {keys + values:.2f} GB"
    lines.append(f"KV Cache is allocated. #tokens: {full}, {split}")
    lines.append(f"max_total_num_tokens={full}, max_running_requests={requests}, context_len={sizes.context}")
    return tuple(lines)


def _derivation(sizes: Sizes, full: int, window: int) -> tuple[str, ...]:
    lines = []
    for stage, cell in enumerate(sizes.cells):
        lines.append(
            f"stage {stage}: ({sizes.budgets[stage]} B - {sizes.states_bytes(stage)} B of state) / "
            f"{float(sizes.token_bytes(stage)):g} B a token, in pages of {sizes.page}"
        )
        if cell.window:
            lines.append(
                f"stage {stage}: {float(cell.full):g} B full + {float(sizes.ratio):g} x {float(cell.window):g} B"
            )
    lines.append(f"{tokens(full)} token slots" + (f", {tokens(window)} window slots" if window else ""))
    return tuple(lines)


def _warnings(sizes: Sizes, name: str, full: int) -> tuple[str, ...]:
    found = [sizes.rules.warning] if sizes.rules.warning else []
    found += sizes.options.warnings(name)
    windowed = any(isinstance(b, kinds.SlidingWindow | kinds.ChunkedAttention) for b in sizes.spec.blocks.values())
    if windowed and not has_window_pool(sizes.spec, sizes.rules):
        found.append(
            f"SGLang {sizes.rules.version} has no window pool for {sizes.spec.model_type}: its window layers store "
            "every token"
        )
    if 0 < full < sizes.context:
        found.append(
            f"the server starts with a context of {tokens(sizes.context)} though the pool holds {tokens(full)} tokens: "
            "a longer request fails when it arrives"
        )
    if sizes.is_v4:
        found.append("DeepSeek V4's compressor state and ring rows are not taken off the budget here")
    return tuple(found)


def _assumptions(sizes: Sizes) -> tuple[str, ...]:
    share = sizes.draft_share()
    if share and not sizes.options["speculative_draft_layers"] and not sizes.spec.draft_counts:
        return ("the draft model is taken to have one layer as wide as the target's",)
    return ()


ENGINE = Sglang()
