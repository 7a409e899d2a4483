"""Whether a replica starts and how many requests it holds: the engine's own plan in the bytes that memory leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.engines.base import Parallelism
from kvplan.engines.native import native_settings
from kvplan.errors import KvplanError
from kvplan.hardware.accelerators import find
from kvplan.planner.demand import Demand
from kvplan.planner.request import PlanRequest
from kvplan.planner.space import Shape
from kvplan.record import record
from kvplan.serving import serve
from kvplan.spec.resolve import LoadedModel

#: Batch budgets of an engine whose answer names none.
BATCHED, SEQS = 8192, 256

Progress = Callable[[int, int], None]


@record
class Room:
    """What one replica of a shape holds. `refused` says why it doesn't start, `short` that memory is why; then the rest
    is zero.

    `available_bytes` are one rank's cache bytes, `sure` says that a request of the greatest length fits even with every
    memory term at its most. `batched` and `seqs` are the batch budgets in force. `holds` is the number of the
    workload's requests that run at once, `most` an upper bound of it: bytes that the mathematics needs, before blocks.
    """

    refused: str | None
    short: bool = False
    available_bytes: int = 0
    capacity_tokens: int = 0
    max_concurrency: float = 0.0
    max_model_len: int = 0
    block_size: int | None = None
    batched: int = BATCHED
    seqs: int = SEQS
    sure: bool = False
    holds: float = 0.0
    most: float = 0.0
    version: str = ""
    command: str = ""


class Rooms:
    """Asks for each shape once. Shapes that differ in batch budgets are refused together when the leanest is."""

    def __init__(self, request: PlanRequest, models: dict[str, LoadedModel], demand: Demand) -> None:
        self.request, self.models, self.demand = request, models, demand
        self.length = request.max_model_len or demand.longest
        self._held: dict[tuple[str, int, str], tuple[float, float]] = {}
        self._rooms: dict[Shape, Room] = {}
        self._refused: dict[tuple[object, ...], str] = {}
        space = request.search
        self._leanest = min(space.max_num_batched_tokens or (0,)), min(space.max_num_seqs or (0,))

    def fill(self, shapes: Sequence[Shape], progress: Progress | None = None) -> None:
        """Find the room of every shape, the leanest batch budgets first."""
        ordered = sorted(shapes, key=lambda shape: (shape.batched or 0, shape.seqs or 0, shape.key))
        for number, shape in enumerate(ordered):
            self.of(shape)
            if progress is not None:
                progress(number + 1, len(ordered))

    def of(self, shape: Shape) -> Room:
        """The room of one shape."""
        room = self._rooms.get(shape)
        if room is None:
            kind = shape.key[:-2]
            said = self._refused.get(kind)
            # A larger batch budget takes more activations and graphs, so what the leanest lacks no other has.
            room = Room(said, True) if said is not None else self._ask(shape)
            if room.short and room.refused and (shape.batched or 0, shape.seqs or 0) == self._leanest:
                self._refused[kind] = room.refused
            self._rooms[shape] = room
        return room

    def _ask(self, shape: Shape) -> Room:
        loaded = self.models[shape.model]
        try:
            serving = serve(
                loaded, shape.engine, find(shape.gpu), self.settings(shape),
                parallel=parallelism(shape), help_wanted=False,
            )  # fmt: skip
        except KvplanError as error:
            return Room(str(error))
        engine = serving.engine
        if engine.refused is not None:
            return Room(engine.refused.text, True)
        available = min(engine.available_bytes, default=0)
        most, least = self._bytes(shape, loaded)
        concurrency = engine.max_concurrency or 0.0
        own = concurrency * most / least if least else concurrency
        bound = available * shape.pipeline * shape.decode_context / least if least else own
        block = engine.settings.get("block_size")
        return Room(
            None, False, available, engine.capacity_tokens or 0, concurrency, engine.max_model_len,
            block if isinstance(block, int) else None,
            shape.batched or _size(engine.settings.get("max_num_batched_tokens"), BATCHED),
            shape.seqs or _size(engine.settings.get("max_num_seqs"), SEQS),
            serving.budget is not None and serving.budget.poorest.low >= engine.needed_bytes_one_request,
            own, max(own, bound), engine.version, serving.command,
        )  # fmt: skip

    def settings(self, shape: Shape) -> dict[str, object]:
        """The engine's flags for a shape."""
        asked: dict[str, object] = {
            "kv_cache_dtype": shape.kv_cache_dtype,
            "gpu_memory_utilization": self.request.memory_utilization,
            "max_num_seqs": shape.seqs,
            "max_num_batched_tokens": shape.batched,
            "block_size": shape.block_size,
            "max_model_len": self.length,
        }
        found = native_settings(shape.engine, asked)
        if shape.engine.partition("@")[0] == "vllm":
            if "prefix-caching" in self.request.forbid:
                found["enable_prefix_caching"] = False
            if shape.expert:
                found["enable_expert_parallel"] = True
        return found

    def _bytes(self, shape: Shape, loaded: LoadedModel) -> tuple[float, float]:
        """Needed bytes on a rank of a request of the greatest length, and of the workload's, averaged over time."""
        key = (shape.model, shape.tensor, shape.kv_cache_dtype)
        if key not in self._held:
            plan = rank_plan(loaded, shape)
            rows = self.demand.rows
            lengths = numpy.array([max(1, row.prompt - row.reused + row.output // 2) for row in rows], numpy.int64)
            weights = numpy.array([row.output for row in rows], float)
            held = numpy.broadcast_to(numpy.asarray(plan.needed_bytes(lengths), float), lengths.shape)
            self._held[key] = (float(plan.needed_bytes(self.length)), float((held * weights).sum() / weights.sum()))
        return self._held[key]


def _size(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def parallelism(shape: Shape) -> Parallelism:
    """The ranks of a shape as the engines take them."""
    return Parallelism(shape.tensor, shape.pipeline, shape.data, shape.expert, shape.decode_context)


def rank_plan(loaded: LoadedModel, shape: Shape) -> CachePlan:
    """The cache plan of one tensor-parallel rank of a shape."""
    precision = resolve_precision(shape.kv_cache_dtype, model_dtype=loaded.spec.dtype)
    return plan_cache(loaded.spec, precision, ranks=shape.tensor)
