"""From a model's layers to vLLM's cache layers: what each asks of a backend and what one entry of it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

from kvplan.cache.layout import LayerContext, Part, layer_parts
from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.shard import shard_layer
from kvplan.engines.base import Device, Parallelism
from kvplan.engines.versions import Rules, load_rules
from kvplan.engines.vllm.backends import SIXTEEN_BIT, Backend, LayerNeed, backends, choose_backend, find_backend
from kvplan.engines.vllm.resolve import split_layers
from kvplan.engines.vllm.settings import Resolved
from kvplan.errors import InputError, UnsupportedArchitectureError
from kvplan.record import record, vary
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

Family = Literal["full", "latent", "sliding", "sliding_latent", "chunked", "cross", "state"]


@record
class Unit:
    """One cache layer before its block size is known.

    `entry_bytes` is what one token costs (one compressed entry where `ratio` tokens make one, one row of a compressor
    state, a whole recurrent state). `shape` tells layers apart whose blocks may not be shared. `window` is the window
    or chunk in tokens. `own_block` is a block size the layer brings along, `alignment` what its page is rounded up to.
    A `packed` layer asks for the pages of all layers side by side in one block.
    """

    name: str
    stage: int
    family: Family
    entry_bytes: int
    formula: str
    shape: tuple[Any, ...]
    backend: Backend | None = None
    ratio: int = 1
    window: int | None = None
    own_block: int | None = None
    alignment: int = 1
    skipped: bool = False
    checkpoint_blocks: int = 0
    packed: bool = False


@record
class TokenBytes:
    """Bytes of one token in one attention layer of the model's main shape, V as wide as K, by which blocks are sized.

    `cached` is in the cache dtype, `sixteen_bit` in the model's. `first` is `cached` as the model's first backend sees
    it: one byte a value where that backend doesn't know the dtype's packing (the layer it serves stays in 16 bits).
    """

    cached: int
    sixteen_bit: int
    first: int


@record
class Model:
    """A model as vLLM sees it: its cache layers in order, the attention backends in order, what was assumed."""

    units: tuple[Unit, ...]
    backends: tuple[Backend, ...]
    token: TokenBytes | None
    draft_tokens: int
    extra_window: int
    assumptions: tuple[str, ...]


@record
class _Builder:
    spec: ModelSpec
    resolved: Resolved
    rules: Rules
    parallel: Parallelism
    device: Device

    def precision(self, dtype: str, layer: kinds.SingleLayer) -> Precision:
        """The cache formats of one layer under vLLM's dtype name `dtype`."""
        kv = "auto" if dtype in SIXTEEN_BIT else dtype
        if kv == "auto" and self.resolved.model_dtype == "float32":
            kv = "fp32"
        index = "fp8" if isinstance(layer, kinds.LatentAttention | kinds.CompressedSparse) else "auto"
        precision = resolve_precision(kv, index, self._state_dtype(layer), model_dtype=self.resolved.model_dtype)
        return replace(precision, conv=self.resolved.conv_dtype)

    def _state_dtype(self, layer: kinds.SingleLayer) -> str:
        """The dtype of a layer's recurrent matrix: the flag, the kind's, the family's, else the convolution's."""
        if not isinstance(layer, kinds.RECURRENT):
            return "auto"
        if self.resolved.ssm_dtype != "auto":
            return self.resolved.ssm_dtype
        by_kind, by_model = load_rules("vllm")["state_dtype_by_kind"], load_rules("vllm")["state_dtype_by_model"]
        if layer.kind in by_kind:
            return str(by_kind[layer.kind])
        if self.spec.model_type in by_model:
            own = getattr(layer, "state_dtype", None) or by_model[self.spec.model_type]
            return str(own or self.resolved.conv_dtype)
        return self.resolved.conv_dtype

    @property
    def indexer_backend(self) -> str:
        return "DEEPSEEK_V32_INDEXER_ROCM" if self.device.kind == "amd" else "DEEPSEEK_V32_INDEXER"

    def is_skipped(self, layer: kinds.SingleLayer, index: int) -> bool:
        """Whether --kv-cache-dtype-skip-layers leaves the layer in 16 bits."""
        windowed = isinstance(layer, kinds.SlidingWindow) and "sliding_window" in self.resolved.skip_layers
        return windowed or str(index) in self.resolved.skip_layers

    def backend(self, layer: kinds.SingleLayer, dtype: str) -> Backend:
        """The backend of an attention layer. Raises InputError where there is none."""
        if isinstance(layer, kinds.CompressedSparse):
            return backends()["DEEPSEEK_V4"]
        latent = isinstance(layer, kinds.LatentAttention)
        indexer = getattr(layer, "indexer", None)
        if indexer is not None and not latent:
            return backends()["MINIMAX_M3_SPARSE"]
        head = layer.latent_dim + layer.rope_dim if isinstance(layer, kinds.LatentAttention) else _head(layer)
        need = LayerNeed(
            dtype=dtype,
            head_dim=head,
            latent=latent,
            sparse=latent and indexer is not None,
            window=isinstance(layer, kinds.SlidingWindow),
            sinks=self.spec.model_type in load_rules("vllm_backends")["sink_models"],
            float32=self.resolved.model_dtype == "float32",
        )
        asked = None if self.resolved.backend is None else find_backend(self.resolved.backend)
        block = None if self.device.kind == "cpu" else self.resolved.block_size
        return choose_backend(need, self.device, block, asked)


def _head(layer: Any) -> int:
    return int(max(layer.head_dim, getattr(layer, "v_head_dim", None) or 0))


def build_model(spec: ModelSpec, resolved: Resolved, rules: Rules, parallel: Parallelism, device: Device) -> Model:
    """List the cache layers of `spec` in vLLM's order, drafts last.

    Raises InputError for ranks that don't divide the heads or a dtype no backend takes, UnsupportedArchitectureError
    for layer kinds that vLLM has not.
    """
    builder = _Builder(spec, resolved, rules, parallel, device)
    drafts, assumptions, extra = _drafts(spec, resolved, rules)
    stages = resolved.partition or split_layers(spec.layer_count, parallel.pipeline)
    starts = [stage for stage, count in enumerate(stages) for _ in range(count)]
    tokens = resolved.speculation.tokens if resolved.speculation else 0
    units: list[Unit] = []
    made: dict[tuple[str, bool], list[Unit]] = {}
    for index, name in enumerate((*spec.sequence(), *drafts)):
        stage = starts[index] if index < len(starts) else parallel.pipeline - 1
        # Layers of one block differ in their place alone, and in whether they are skipped.
        key = (name, str(index) in resolved.skip_layers)
        if key not in made:
            made[key] = [
                unit for branch in branches(spec.blocks[name]) for unit in _units(builder, branch, index, name, tokens)
            ]
        units += [vary(unit, name=f"{index}.{unit.name}", stage=stage) for unit in made[key]]
    used = dict.fromkeys(unit.backend for unit in units if unit.backend is not None)
    _check_block(resolved.block_size, used, device)
    if spec.model_type in load_rules("vllm")["unverified_models"]:
        assumptions.append(f"the cache of {spec.model_type} has a layout of its own in vLLM, approximated here")
    if device.kind not in ("cuda", "amd", "cpu"):
        assumptions.append(f"vLLM's layout on CUDA: its plugin for {device.name} may lay the cache out otherwise")
    if any(layer.kind == "compressed_sparse" for layer in spec.blocks.values()) and _major(device) != 9:
        assumptions.append("DeepSeek V4's packed 584-byte records, as on compute capability 9, are assumed here too")
    if spec.meta_tokens:
        assumptions.append(f"{spec.meta_tokens} learned tokens a sequence, which vLLM does not keep, are left out")
    token = _token_bytes(builder, next(iter(used))) if used else None
    return Model(tuple(units), tuple(used), token, tokens, extra, tuple(assumptions))


def _check_block(block: int | None, used: Iterable[Backend], device: Device) -> None:
    if block is None or device.kind == "cpu":
        return
    for backend in used:
        if not backend.takes_block(block):
            raise InputError(
                f"--block-size: found {block}, expected a multiple of {backend.smallest_block}, which {backend.name} "
                f"takes"
            )


def _major(device: Device) -> int:
    return (device.compute_capability or (0, 0))[0]


def _token_bytes(builder: _Builder, first: Backend) -> TokenBytes | None:
    """Bytes of a token in the model's main attention layer: the latent, else the full, else any that holds heads."""
    layers = [branch for name in builder.spec.counts for branch in branches(builder.spec.blocks[name])]
    order = (kinds.LatentAttention, kinds.FullAttention, kinds.SlidingWindow, kinds.ChunkedAttention)
    main = next((layer for kind in order for layer in layers if isinstance(layer, kind)), None)
    if main is None:
        return None
    sharded = shard_layer(main, builder.parallel.tensor)
    if isinstance(sharded, kinds.LatentAttention):
        sharded = replace(sharded, indexer=None)
    elif isinstance(sharded, kinds.FullAttention | kinds.SlidingWindow | kinds.ChunkedAttention):
        sharded = replace(sharded, v_head_dim=None)

    def entry(dtype: str) -> int:
        return layer_parts(sharded, LayerContext(builder.precision(dtype, sharded)))[0].entry_bytes

    dtype = builder.resolved.kv_cache_dtype
    known = dtype in SIXTEEN_BIT or dtype in first.dtypes or first.latent
    return TokenBytes(entry(dtype), entry("auto"), entry(dtype if known else "fp8"))


def _drafts(spec: ModelSpec, resolved: Resolved, rules: Rules) -> tuple[list[str], list[str], int]:
    """Names of the draft layers' blocks, what was assumed about them, and tokens kept beyond the window."""
    if resolved.speculation is None:
        return [], [], 0
    how = load_rules("vllm")["speculative"][resolved.speculation.method]["layers"]
    if how == "none":
        return [], [], 0
    names = [name for name, count in spec.draft_counts.items() for _ in range(count)]
    if how == "checkpoint" and names:
        modules = min(len(names), resolved.speculation.tokens)
        return names, [], resolved.speculation.tokens - 1 if modules > 1 else 0
    like = load_rules("vllm")["draft_by_model"].get(spec.model_type) if how == "checkpoint" else None
    if like == "none":
        return [], [], 0
    wanted = ("sliding_window",) if like == "sliding_window" else ("full_attention", "latent_attention")
    target = [name for kind in wanted for name in spec.counts if spec.blocks[name].kind == kind]
    if not target:
        return [], [f"the {resolved.speculation.method} draft layer is left out: the model has no full attention"], 0
    return [target[0]], [f"one {resolved.speculation.method} draft layer with the shape of the target's {target[0]}"], 0


def _check_ranks(layer: kinds.SingleLayer, ranks: int, name: str) -> None:
    """vLLM splits heads and channels evenly or replicates KV heads evenly. Raises InputError otherwise."""
    fields = ("query_heads", "heads", "inner", "channels", "value_heads", "key_heads")
    for field_name in fields:
        count = getattr(layer, field_name, None)
        if count is not None and count % ranks:
            raise InputError(
                f"--tensor-parallel-size: found {ranks}, expected a divisor of the {count} "
                f"{field_name.replace('_', ' ')} of layer {name}"
            )
    kv_heads = getattr(layer, "kv_heads", None)
    if kv_heads is not None and kv_heads % ranks and ranks % kv_heads:
        raise InputError(
            f"--tensor-parallel-size: found {ranks}, expected a divisor or a multiple of the {kv_heads} KV heads of "
            f"layer {name}"
        )


def _units(builder: _Builder, layer: kinds.SingleLayer, index: int, name: str, drafted: int) -> Iterator[Unit]:
    """The cache layers that one mixer of one layer makes, all of the first stage."""
    if isinstance(layer, kinds.SharedCache | kinds.NoCache):
        return
    if isinstance(layer, kinds.Lightning) and not builder.rules["lightning_layers"]:
        raise InputError(
            f"--engine: vLLM {builder.rules.version} has no lightning attention, which {builder.spec.id} needs; "
            f"the last release that has it: vllm@0.23"
        )
    _check_ranks(layer, builder.parallel.tensor, f"{index}.{name}")
    sharded = shard_layer(layer, builder.parallel.tensor)
    if isinstance(layer, kinds.RECURRENT):
        yield _state_unit(builder, sharded, name, drafted)
        return
    skipped = builder.is_skipped(layer, index)
    dtype = "auto" if skipped else builder.resolved.kv_cache_dtype
    backend = builder.backend(layer, dtype)
    if dtype in SIXTEEN_BIT and backend.auto_dtype is not None:
        dtype = backend.auto_dtype
    parts = _parts(builder, sharded, dtype, backend)
    if isinstance(sharded, kinds.CompressedSparse):
        yield from _compressed_units(builder.rules, sharded, parts, name, backend)
        return
    window = getattr(sharded, "window", None) or getattr(sharded, "chunk", None)
    if builder.spec.model_type in load_rules("vllm")["window_plus_one"] and isinstance(layer, kinds.SlidingWindow):
        window = layer.window + 1
    for part in sorted(parts, key=lambda part: part.name != "index keys"):
        if not (part.stored.grows or part.stored.constant or part.role == "cross"):
            continue
        keys = part.name == "index keys"
        family: Family = "latent" if keys else _family(sharded)
        shape = (part.name, part.dtype, part.entry_bytes, replace_query(sharded) if not keys else None)
        indexer = backends()[builder.indexer_backend] if keys and backend.latent else None
        yield Unit(
            name=f"{name}.{part.name}" if keys else name, stage=0, family=family, entry_bytes=part.entry_bytes,
            formula=part.entry_formula, shape=shape, backend=indexer or backend, ratio=part.stored.ratio,
            window=None if keys else window, skipped=skipped, packed=keys and part.stored.ratio > 1,
        )  # fmt: skip


def _parts(builder: _Builder, layer: kinds.SingleLayer, dtype: str, backend: Backend) -> tuple[Part, ...]:
    """The layer's parts; a sparse backend without the packed record stores plain rows beside the index keys."""
    context = LayerContext(builder.precision(dtype, layer), encoder_tokens=1)
    parts = layer_parts(layer, context)
    plain = backend.sparse and not backend.packed and isinstance(layer, kinds.LatentAttention)
    if not plain:
        return parts
    assert isinstance(layer, kinds.LatentAttention)
    return (*layer_parts(replace(layer, indexer=None), context), *(part for part in parts if part.name == "index keys"))


def _family(layer: kinds.SingleLayer) -> Family:
    match layer:
        case kinds.LatentAttention():
            return "latent" if layer.window is None else "sliding_latent"
        case kinds.SlidingWindow():
            return "sliding"
        case kinds.ChunkedAttention():
            return "chunked"
        case kinds.CrossAttention():
            return "cross"
        case _:
            return "full"


def replace_query(layer: Any) -> tuple[Any, ...]:
    """What fixes the shape of a layer's page: KV heads and widths."""
    names = ("kv_heads", "head_dim", "v_head_dim", "latent_dim", "rope_dim")
    return tuple(getattr(layer, name, None) for name in names)


def _state_unit(builder: _Builder, layer: Any, name: str, drafted: int) -> Unit:
    """A recurrent layer: one page holds all its state tensors; drafted tokens widen the convolution."""
    if drafted and hasattr(layer, "conv_kernel") and not isinstance(layer, kinds.Mamba1):
        layer = replace(layer, conv_kernel=layer.conv_kernel + drafted)
    parts = layer_parts(layer, LayerContext(builder.precision("auto", layer)))
    checkpoint = builder.rules["mamba2_checkpoint_blocks"] if isinstance(layer, kinds.Mamba2) else 0
    size = sum(part.entry_bytes for part in parts)
    return Unit(
        name=name, stage=0, family="state", entry_bytes=size,
        formula=" + ".join(part.entry_formula for part in parts),
        shape=(layer.kind, tuple((part.dtype, part.entry_bytes) for part in parts)), checkpoint_blocks=checkpoint,
    )  # fmt: skip


def _compressed_units(
    rules: Rules, layer: kinds.CompressedSparse, parts: tuple[Part, ...], name: str, backend: Backend
) -> Iterator[Unit]:
    """DeepSeek V4: a window layer, compressed entries with their index keys, and paged compressor states."""
    table = load_rules("vllm")["compressed_sparse"]
    order = ("window", "index keys", "index compressor state", "compressed", "compressor state")
    for part in sorted(parts, key=lambda part: order.index(part.name)):
        if part.role != "state" and not (part.stored.grows or part.stored.constant):
            continue
        common: dict[str, Any] = {"name": f"{name}.{part.name}", "stage": 0, "alignment": table["alignment"],
                                  "formula": part.entry_formula, "backend": backend, "packed": True}  # fmt: skip
        if part.role == "state":
            assert layer.ratio is not None
            rows = layer.ratio * (2 if layer.overlap else 1)
            if layer.ratio not in table["state_rows"]:
                raise UnsupportedArchitectureError(
                    f"layers: found compression ratio {layer.ratio} in {name}, which vLLM {rules.version} has no "
                    f"compressor for"
                )
            yield Unit(
                family="sliding_latent", entry_bytes=part.entry_bytes // rows, shape=(part.name, layer.ratio),
                window=rows, own_block=table["state_rows"][layer.ratio], **common,
            )  # fmt: skip
        elif part.name == "window":
            yield Unit(
                family="sliding_latent", entry_bytes=part.entry_bytes, shape=(part.name, part.dtype),
                window=layer.window, own_block=table["window_block"], **common,
            )  # fmt: skip
        else:
            yield Unit(
                family="latent", entry_bytes=part.entry_bytes, ratio=part.stored.ratio,
                shape=(part.name, part.dtype, part.stored.ratio), **common,
            )  # fmt: skip
