"""llama.cpp, ik_llama.cpp: contexts rounded to cells, one or many streams, everything allocated when the server starts.

There is no page pool: a start needs every cache whole, and memory doesn't shrink while fewer tokens are in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.base import Device, EngineAnswer, Group, Parallelism, Pool, Refusal, Setting
from kvplan.engines.llama_cpp.caches import DRAFT, STATES, Cache, CacheTypes, build_caches
from kvplan.engines.llama_cpp.cells import Cells, resolve_cells
from kvplan.engines.llama_cpp.devices import HOST, layer_devices
from kvplan.engines.options import Option, Options, read_options
from kvplan.engines.support import require_layers
from kvplan.engines.versions import Rules, load_rules, rules_at
from kvplan.errors import InputError
from kvplan.spec.layers import LatentAttention
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import MIB, gib, tokens

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
PLAIN_TYPES = ("f32", "f16", "bf16")
DEFAULT_CONTEXT = 4096
FIT_LEAST = 4096

OPTIONS = (
    Option("ctx_size", "tokens", 0, aliases=("c", "n_ctx", "max_model_len", "fit_ctx")),
    Option("parallel", "whole", -1, aliases=("np", "n_parallel", "n_seq_max"), low=-1, high=256),
    Option("kv_unified", "switch", aliases=("kvu",)),
    Option("cache_type_k", "choice", "f16", aliases=("ctk", "type_k", "k_type"), choices=CACHE_TYPES),
    Option("cache_type_v", "choice", "f16", aliases=("ctv", "type_v", "v_type"), choices=CACHE_TYPES),
    Option("flash_attn", "choice", aliases=("fa",), choices=("auto", "on", "off", "1", "0", "true", "false", "")),
    Option("swa_full", "switch", False),
    Option("ubatch_size", "whole", 512, aliases=("ub", "n_ubatch"), low=1, high=2**24),
    Option("batch_size", "whole", 2048, aliases=("b", "n_batch"), low=1, high=2**24),
    Option("n_rs_seq", "whole", 0, aliases=("rollback_states",), low=0, high=64),
    Option("spec_type", "choice", "none", choices=("none", "draft-mtp")),
    Option("gguf_mla_keys", "switch", True),
    Option("mla_use", "whole", 3, aliases=("mla", "mla_attn"), low=0, high=3),
    Option("n_gpu_layers", "whole", -1, aliases=("ngl", "gpu_layers"), low=-1, high=10_000),
    Option("tensor_split", "list", (), aliases=("ts",), low=0, high=10**9),
    Option("split_mode", "choice", "layer", aliases=("sm",), choices=("layer", "row", "none")),
    Option("no_kv_offload", "switch", False, aliases=("nkvo",)),
    Option("cache_ram", "whole", 8192, aliases=("cram",), low=-1, high=10**9),
    Option("fit", "switch", True),
)


@dataclass(frozen=True)
class LlamaCpp:
    """One engine of the family: its name, the name of its rules file, and the version it means without one."""

    name: str = "llama.cpp"
    rules: str = "llama_cpp"

    @property
    def default_version(self) -> str:
        return str(load_rules(self.rules)["default"])

    def plan(
        self,
        spec: ModelSpec,
        settings: Mapping[str, Any],
        parallel: Parallelism,
        available_bytes: Sequence[int],
        device: Device,
        version: str | None = None,
    ) -> EngineAnswer:
        """Lay out every cache of `spec` over the devices (tensor x pipeline of them, split by layer).

        `available_bytes` holds one figure for all devices or one each; KV in host memory is counted against none.
        Raises InputError for settings the engine refuses: unequal types on an MLA cache, quantized V without flash
        attention, block types that don't divide a head.
        """
        rules = rules_at(self.name, load_rules(self.rules), version)
        notes = require_layers(self.name, spec)
        options = read_options(OPTIONS, settings)
        types = cache_types(spec, options, rules)
        plan = _Plan(spec, options, rules, types, parallel.tensor * parallel.pipeline)
        available = plan.available(available_bytes, parallel)
        context, source = plan.context(available)
        answer = plan.answer(self.name, context, source, available)
        return replace(answer, warnings=(*answer.warnings, *notes))


def cache_types(spec: ModelSpec, options: Options, rules: Rules) -> CacheTypes:
    """The cache types and storage rules in force. Raises InputError for quantized V without flash attention."""
    key, value = options["cache_type_k"], options["cache_type_v"]
    flash = _flash(options, rules)
    if value not in PLAIN_TYPES and not flash and not (rules["mla"] == "by_flag" and options["mla_use"]):
        raise InputError(
            f"--cache-type-v: found {value} with flash attention off, expected --flash-attn on or one of "
            f"{', '.join(PLAIN_TYPES)}"
        )
    mla = rules["mla"]
    if mla == "by_flag":
        mla = {0: "expanded", 1: "latent" if flash else "double"}.get(options["mla_use"], "shared")
    if not options["gguf_mla_keys"]:
        mla = "expanded"
    return CacheTypes(
        key,
        value,
        mla,
        window_pool=rules["window_pool"],
        window_in_f16=rules["window_in_f16"],
        widest_value=rules["widest_value"] and not flash,
        whole_context=spec.model_type in rules["whole_context"],
    )


def _flash(options: Options, rules: Rules) -> bool:
    asked = options["flash_attn"]
    return (rules["flash_attn"] if asked is None else asked) not in ("off", "0", "false")


@dataclass(frozen=True)
class _Plan:
    """One question to the engine, answerable at any context."""

    spec: ModelSpec
    options: Options
    rules: Rules
    types: CacheTypes
    devices: int

    @property
    def slots(self) -> int:
        asked = int(self.options["parallel"])
        return asked if asked > 0 else int(self.rules["auto_slots"])

    @property
    def unified(self) -> bool:
        asked = self.options["kv_unified"]
        return self.options["parallel"] < 1 and self.slots > 1 if asked is None else bool(asked)

    def cells(self, context: int) -> Cells:
        flash = _flash(self.options, self.rules)
        return resolve_cells(
            context,
            self.slots,
            unified=self.unified,
            streams=self.rules["streams"],
            padding=self.rules["pad_flash" if flash else "pad_plain"],
            ubatch=self.options["ubatch_size"],
            batch=self.options["batch_size"],
            swa_full=self.options["swa_full"],
        )

    def caches(self, context: int) -> list[Cache]:
        rolls = self.spec.model_type in self.rules["rollback"]
        copies = 1 + (self.options["n_rs_seq"] if rolls else 0)
        drafting = self.options["spec_type"] == "draft-mtp"
        return build_caches(self.spec, self.types, self.cells(context), copies, drafting)

    def places(self) -> list[int]:
        """The device of each layer, draft layers with the last one's."""
        layers = self.spec.layer_count
        if self.options["no_kv_offload"]:
            found = [HOST] * layers
        elif self.options["split_mode"] == "row":
            found = [0] * layers
        else:
            count = 1 if self.options["split_mode"] == "none" else self.devices
            found = layer_devices(layers, count, self.options["n_gpu_layers"], self.options["tensor_split"])
        return found + [found[-1]] * sum(self.spec.draft_counts.values())

    def per_device(self, context: int) -> tuple[int, ...]:
        """Bytes of all caches on each device."""
        order = range(self.devices)
        pools = [cache.pool(order, self.places()) for cache in self.caches(context)]
        return tuple(sum(pool.bytes_per_stage[device] for pool in pools) for device in order)

    def fits(self, context: int, available: Sequence[int]) -> bool:
        return all(need <= have for need, have in zip(self.per_device(context), available, strict=True))

    def context(self, available: Sequence[int]) -> tuple[int, str]:
        """The context to allocate and where it comes from: asked, or the model's own, shrunk where --fit may."""
        asked = int(self.options["ctx_size"])
        if asked:
            return asked, "asked"
        longest = self.spec.max_context or DEFAULT_CONTEXT
        if not self.rules["fit"] or not self.options["fit"] or self.fits(longest, available):
            return longest, "the model's own length"
        shrunk = self.longest(available, longest)
        return max(shrunk, FIT_LEAST), "--fit: the longest that fits, at least 4,096"

    def longest(self, available: Sequence[int], limit: int) -> int:
        """The longest context that fits, in steps of 256; 0 when not even one step does."""
        low, high = 0, -(-limit // 256)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(middle * 256, available):
                low = middle
            else:
                high = middle - 1
        return low * 256

    def available(self, given: Sequence[int], parallel: Parallelism) -> list[int]:
        """One figure a device, of one for all, one a device or one a pipeline stage."""
        figures = list(given) * self.devices if len(given) == 1 else list(given)
        if len(figures) == parallel.pipeline:
            figures = [figure for figure in figures for _ in range(parallel.tensor)]
        if len(figures) != self.devices:
            raise InputError(
                f"--available-memory: found {len(figures)} sizes, expected one or {self.devices}, one for each device"
            )
        return figures

    def answer(self, name: str, context: int, source: str, available: Sequence[int]) -> EngineAnswer:
        cells, caches, places = self.cells(context), self.caches(context), self.places()
        pools = tuple(cache.pool(range(self.devices), places) for cache in caches)
        needs = [sum(pool.bytes_per_stage[device] for pool in pools) for device in range(self.devices)]
        worst = max(range(self.devices), key=lambda device: needs[device] - available[device])
        main, requests = _main(caches), _requests(caches, cells)
        limit = self.spec.max_context or context
        longest = self.longest(available, max(limit, context))
        refused = None
        if needs[worst] > available[worst]:
            refused = Refusal(
                needs[worst],
                available[worst],
                longest or None,
                f"the caches need {gib(needs[worst])} of device {worst}, which has {gib(available[worst])} for them",
            )
        return EngineAnswer(
            name=name,
            version=self.rules.version,
            max_model_len=cells.per_slot,
            num_blocks=None if refused else main.cells * main.streams,
            usable_blocks=None if refused else main.cells * main.streams,
            bytes_per_block=_cell_bytes(main, places, self.devices),
            blocks_per_request=min(main.cells, cells.per_slot),
            capacity_tokens=None if refused else max(cells.context, requests * cells.per_slot),
            max_concurrency=None if refused else float(requests),
            needed_bytes_one_request=needs[worst],
            reserved_bytes_one_request=needs[worst] // requests,
            groups=_groups(caches, places, self.devices),
            log_lines=_log_lines(caches, cells),
            refused=refused,
            estimated_max_model_len=longest or None,
            settings=self._settings(cells, source),
            derivation=_derivation(caches, cells),
            warnings=(*self._warnings(name, caches, pools, cells), *self._offload(refused)),
            assumptions=_assumptions(self),
            pools=pools,
            binding="slots" if requests == cells.slots else main.name,
        )

    def _settings(self, cells: Cells, source: str) -> tuple[Setting, ...]:
        resolved = {
            "ctx_size": Setting("ctx_size", cells.context, source),
            "parallel": Setting("parallel", cells.slots, "asked" if self.options["parallel"] > 0 else "auto"),
            "kv_unified": Setting(
                "kv_unified", self.unified, "asked" if self.options["kv_unified"] is not None else "auto"
            ),
        }
        return tuple(resolved.get(setting.name, setting) for setting in self.options.settings)

    def _warnings(self, name: str, caches: Sequence[Cache], pools: Sequence[Pool], cells: Cells) -> tuple[str, ...]:
        found = [self.rules.warning] if self.rules.warning else []
        found += self.options.warnings(name)
        asked = int(self.options["ctx_size"])
        if asked and cells.context > asked:
            found.append(f"--ctx-size {asked} becomes {tokens(cells.context)} cells: each slot's share is rounded up")
        if self.options["n_rs_seq"] and self.spec.model_type not in self.rules["rollback"]:
            found.append(f"n_rs_seq is set to 0: {self.spec.model_type} has no rollback of its state in {name}")
        host = sum(pool.bytes - sum(pool.bytes_per_stage) for pool in pools)
        if host:
            found.append(f"{gib(host)} of the caches are in host memory")
        if any(cache.name == STATES for cache in caches) and self.options["cache_type_k"] not in ("f16", "f32"):
            found.append("the recurrent state stays in f32: --cache-type-k and -v don't reach it")
        return tuple(found)

    def _offload(self, refused: Refusal | None) -> tuple[str, ...]:
        """What the engine does instead of stopping, where nobody said how many layers stay on the devices."""
        fits = self.rules["fit"] and self.options["fit"]
        return (offload_note("-ngl"),) if refused and fits and self.options["n_gpu_layers"] == -1 else ()


def offload_note(flag: str) -> str:
    """A sentence on a plan that doesn't fit, for an engine that moves layers; `flag` says how many stay."""
    return (
        "this plan keeps every layer on the GPU, where it doesn't fit: the engine would put layers on the CPU and run "
        f"slower ({flag} says how many stay); a smaller quantization of the weights or a q8_0 cache takes less"
    )


def _requests(caches: Sequence[Cache], cells: Cells) -> int:
    """Requests of the greatest length at once: the slots, unless they share the cells of one stream.

    Windows, states and DeepSeek V4's streams are kept for each slot even in a unified cache.
    """
    shared = any(
        cache.rows and cache.labels[0] == "K" and cache.streams == 1 and cache.cells == cells.per_stream
        for cache in caches
    )
    return min(cells.slots, cells.context // cells.per_slot) if shared else cells.slots


def _main(caches: Sequence[Cache]) -> Cache:
    """The cache whose cells stand for tokens: the first that has layers, the state where nothing grows."""
    for cache in caches:
        if cache.rows and cache.name != DRAFT:
            return cache
    raise InputError("model: found no layer that keeps a cache, expected at least one")


def _cell_bytes(cache: Cache, places: Sequence[int], devices: int) -> tuple[int, ...]:
    on = [0] * devices
    for row in cache.rows:
        if places[row.index] != HOST:
            on[places[row.index]] += row.key + row.value
    return tuple(on)


def _groups(caches: Sequence[Cache], places: Sequence[int], devices: int) -> tuple[Group, ...]:
    groups = []
    for cache in caches:
        per_device = [sum(1 for row in cache.rows if places[row.index] == device) for device in range(devices)]
        page = max((row.key + row.value for row in cache.rows), default=0)
        heaviest = max(_cell_bytes(cache, places, devices), default=0)
        groups.append(Group(cache.name, len(cache.rows), tuple(per_device), cache.tokens, page, heaviest, cache.cells))
    return tuple(groups)


def _log_lines(caches: Sequence[Cache], cells: Cells) -> tuple[str, ...]:
    """The lines the engine prints, MiB to two decimals."""
    lines = []
    for cache in caches:
        slots = cache.cells * cache.streams
        first, total = sum(row.key for row in cache.rows) * slots, cache.bytes()
        k, v = cache.labels
        text = f"size = {total / MIB:7.2f} MiB ({cache.cells:6d} cells, {len(cache.rows):3d} layers, "
        if v == "V":
            text += f"{cells.slots:2d}/{cache.streams} seqs), "
        else:
            text += f"{cells.slots:2d} seqs), "
        text += f"{k} ({cache.types[0]}): {first / MIB:7.2f} MiB"
        if v:
            text += f", {v} ({cache.types[1]}): {(total - first) / MIB:7.2f} MiB"
        lines.append(f"{cache.name}: {text}")
    return tuple(lines)


def _derivation(caches: Sequence[Cache], cells: Cells) -> tuple[str, ...]:
    lines = [
        f"{tokens(cells.context)} cells of context: {cells.streams} stream(s) of {tokens(cells.per_stream)}, "
        f"rounded up to {cells.padding}, for {cells.slots} slot(s)"
    ]
    for cache in caches:
        cell = sum(row.key + row.value for row in cache.rows)
        lines.append(
            f"{cache.name}: {len(cache.rows)} layers of {cell} B a cell together x {tokens(cache.cells)} cells "
            f"x {cache.streams} stream(s) = {cache.bytes()} B"
        )
    return tuple(lines)


def _assumptions(plan: _Plan) -> tuple[str, ...]:
    found = []
    if plan.options["flash_attn"] is None and plan.rules["flash_attn"] == "auto":
        found.append("flash attention is taken as on: auto switches it off only where a device lacks it")
    if plan.types.whole_context:
        found.append(f"{plan.spec.model_type}: its window isn't applied by llama.cpp, so layers hold the whole context")
    latent = any(isinstance(part, LatentAttention) for block in plan.spec.blocks.values() for part in branches(block))
    if latent and not plan.options.asked("gguf_mla_keys") and plan.types.mla in ("latent", "double"):
        found.append("the GGUF is taken to carry the MLA keys; without them expanded heads are stored")
    return tuple(found)


ENGINE = LlamaCpp()
IK_ENGINE = replace(ENGINE, name="ik_llama.cpp", rules="ik_llama_cpp")
