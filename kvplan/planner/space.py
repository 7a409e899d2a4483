"""What is searched: every layout of a replica, and what rules one out before anything is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from kvplan.cache.formats import find_format
from kvplan.engines.registry import canonical_engine
from kvplan.engines.support import kv_dtypes
from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator, find
from kvplan.planner.prices import Offer, Prices
from kvplan.planner.request import PlanRequest
from kvplan.record import record
from kvplan.spec.layers import SharedCache
from kvplan.spec.model import ModelSpec, branches

SIMULATED = ("vllm",)


@record
class Shape:
    """One replica: what runs on how many GPUs, with which settings. The order of the fields is the order of search."""

    model: str
    engine: str
    gpu: str
    tensor: int
    pipeline: int
    data: int
    decode_context: int
    expert: bool
    kv_cache_dtype: str
    block_size: int | None
    batched: int | None
    seqs: int | None

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline * self.data

    @property
    def simulated(self) -> bool:
        """Whether the simulator runs it: vLLM, one group of tensor-parallel ranks."""
        return self.engine.partition("@")[0] in SIMULATED and self.pipeline == self.data == self.decode_context == 1

    @property
    def key(self) -> tuple[str | int, ...]:
        """A total order for ties."""
        return (
            self.model, self.engine, self.gpu, self.tensor, self.pipeline, self.data, self.decode_context,
            int(self.expert), self.kv_cache_dtype, self.block_size or 0, self.batched or 0, self.seqs or 0,
        )  # fmt: skip

    def words(self) -> str:
        """A short name: `4 x h100, tp 4, fp8`."""
        sizes = (("tp", self.tensor), ("pp", self.pipeline), ("dp", self.data), ("dcp", self.decode_context))
        ranks = " ".join(f"{name}{size}" for name, size in sizes if size > 1)
        engine = "" if self.engine == "vllm" else self.engine
        parts = [engine, f"{self.gpus} x {self.gpu}", ranks, "ep" if self.expert else ""]
        dtype = "" if self.kv_cache_dtype == "auto" else f"kv {self.kv_cache_dtype}"
        batch = "" if self.batched is None else f"batch {self.batched}"
        seqs = "" if self.seqs in (None, 256) else f"seqs {self.seqs}"
        return ", ".join(part for part in (*parts, dtype, batch, seqs) if part)


def devices(request: PlanRequest, prices: Prices) -> tuple[tuple[Accelerator, Offer], ...]:
    """The GPUs to search with their offers: those asked for, or all that have a price. Raises InputError."""
    asked = request.gpus if request.gpus is not None else tuple(prices.offers)
    found = {}
    for name in asked:
        device = find(name, "gpus")
        found[device.slug] = (device, prices.of(device))
    return tuple(found.values())


def shapes(
    request: PlanRequest, specs: dict[str, ModelSpec], offered: tuple[tuple[Accelerator, Offer], ...]
) -> tuple[list[Shape], Counter[str], int]:
    """All shapes that the constraints allow, how many each constraint removed, and how many there were before."""
    removed: Counter[str] = Counter()
    kept, total = [], 0
    heads = {model: query_heads(spec) for model, spec in specs.items()}
    for shape, device, offer in _all(request, offered):
        total += 1
        why = _forbidden(request, shape, specs[shape.model], heads[shape.model], device, offer)
        if why is None:
            kept.append(shape)
        else:
            removed[why] += 1
    return kept, removed, total


def _all(
    request: PlanRequest, offered: tuple[tuple[Accelerator, Offer], ...]
) -> Iterator[tuple[Shape, Accelerator, Offer]]:
    space = request.search
    engines = [f"{canonical_engine(name)}{at}{version}" for name, at, version in map(_split, request.engines)]
    for model, engine, (device, offer) in product(request.models, engines, offered):
        for values in product(
            space.tensor_parallel, space.pipeline_parallel, space.data_parallel, space.decode_context_parallel,
            (False, True) if space.expert_parallel else (False,), space.kv_cache_dtypes,
            space.block_sizes or (None,), space.max_num_batched_tokens or (None,), space.max_num_seqs or (None,),
        ):  # fmt: skip
            yield Shape(model, engine, device.slug, *values), device, offer


def _split(text: str) -> tuple[str, str, str]:
    return text.partition("@")


def query_heads(spec: ModelSpec) -> frozenset[int]:
    """Query heads of the attention layers."""
    return frozenset(
        layer.query_heads
        for name in spec.counts
        for layer in branches(spec.blocks[name])
        if not isinstance(layer, SharedCache) and hasattr(layer, "query_heads")
    )


def _forbidden(
    request: PlanRequest, shape: Shape, spec: ModelSpec, heads: frozenset[int], device: Accelerator, offer: Offer
) -> str | None:
    """The constraint that rules a shape out, None for none."""
    forbid = request.forbid
    bits = 16.0 if shape.kv_cache_dtype == "auto" else float(find_format(shape.kv_cache_dtype).effective_bits(128))
    weights = spec.quantization.bits if spec.quantization is not None else 16
    engine = shape.engine.partition("@")[0]
    rules = (
        ("forbid: quantized-weights", "quantized-weights" in forbid and (weights or 8) < 16),
        ("forbid: 4-bit", "4-bit" in forbid and ((weights or 8) < 5 or bits < 5)),
        ("forbid: 8-bit-kv", "8-bit-kv" in forbid and bits < 16),
        ("forbid: pipeline-parallel", "pipeline-parallel" in forbid and shape.pipeline > 1),
        ("forbid: expert-parallel", "expert-parallel" in forbid and shape.expert),
        ("forbid: decode-context-parallel", "decode-context-parallel" in forbid and shape.decode_context > 1),
        ("forbid: multi-node", "multi-node" in forbid and shape.gpus > offer.per_node),
        ("forbid: unsimulated", "unsimulated" in forbid and not shape.simulated),
        ("max_gpus", shape.gpus > request.max_gpus),
        ("a tensor-parallel group stays inside one machine", shape.tensor > offer.per_node),
        ("heads divide by the tensor-parallel ranks", any(count % shape.tensor for count in heads)),
        ("experts on ranks need experts", shape.expert and not (spec.parameters and spec.parameters.experts)),
        ("data-parallel ranks share experts", shape.data > 1 and not shape.expert),
        ("decode context ranks divide the tensor-parallel ones", shape.tensor % shape.decode_context != 0),
        (f"{engine} has the cache dtype", not _has_dtype(engine, shape.kv_cache_dtype)),
        ("max_num_batched_tokens is at least max_num_seqs", 0 < (shape.batched or 0) < (shape.seqs or 0)),
        ("a device with a known rate and link", not _known(device, shape)),
    )  # fmt: skip
    return next((name for name, broken in rules if broken), None)


def _has_dtype(engine: str, dtype: str) -> bool:
    if dtype == "auto":
        return True
    try:
        return find_format(dtype).name in kv_dtypes(engine)
    except InputError:
        return False


def _known(device: Accelerator, shape: Shape) -> bool:
    link = device.device_link_bandwidth or device.pcie_bandwidth
    return device.bf16_flops is not None and (shape.tensor == 1 or link is not None)
