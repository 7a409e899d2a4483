"""Many answers at once: sizes over contexts and batches, and the ways to spread a model over GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvplan.engines.base import Parallelism
from kvplan.engines.native import PARALLEL_FLAGS, native_settings, parallel_from
from kvplan.engines.registry import canonical_engine
from kvplan.errors import InputError, KvplanError, show
from kvplan.estimator import estimate
from kvplan.hardware.accelerators import find
from kvplan.record import record
from kvplan.serving import serve
from kvplan.spec.resolve import LoadedModel
from kvplan.units import parse_tokens

MOST_CELLS = 400
DEFAULT_ENGINE = "vllm"
#: Engines that split a model by whole layers alone, and those that split a request's tokens over ranks.
LAYER_SPLIT = ("llama.cpp", "ik_llama.cpp", "ollama")
TOKEN_SPLIT = ("vllm",)


@record
class MatrixRow:
    """One context: `bytes` of each batch over all GPUs, None where it doesn't fit, and the greatest concurrency.

    `max_concurrency` is None without a device.
    """

    context_tokens: int
    bytes: tuple[int | None, ...]
    max_concurrency: float | None


@record
class Matrix:
    """Cache sizes over contexts (rows) and batches (columns). `size` is *needed*, or *reserved* by an engine."""

    schema_version: int
    model: str
    size: str
    engine: str | None
    gpu: str | None
    batches: tuple[int, ...]
    rows: tuple[MatrixRow, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@record
class Layout:
    """One way to spread a model: ranks by kind, what a rank holds, and what the engine makes of it."""

    tensor: int
    pipeline: int
    data: int
    decode_context: int
    weights_bytes_per_rank: int | None
    reserved_bytes_one_request: int | None
    capacity_tokens: int | None
    max_concurrency: float | None
    starts: bool
    says: str


@record
class Layouts:
    """Every layout of `count` GPUs, the one with the most concurrency first. Tokens and concurrency are those of all
    data-parallel copies together."""

    schema_version: int
    model: str
    engine: str
    gpu: str
    count: int
    rows: tuple[Layout, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_axes(words: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`ctx=8k,32k` and `batch=1,8` in either order. Raises InputError."""
    axes: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if name not in ("ctx", "batch") or name in axes:
            raise InputError(f"--matrix: found {show(word)}, expected ctx=8k,32k,128k and batch=1,8,64")
        axes[name] = tuple(parse_tokens(value, f"--matrix {name}") for value in values.split(","))
    contexts, batches = axes["ctx"], axes["batch"]
    if len(contexts) * len(batches) > MOST_CELLS:
        raise InputError(f"--matrix: found {len(contexts) * len(batches)} cells, expected at most {MOST_CELLS}")
    return contexts, batches


def matrix(
    loaded: LoadedModel, words: Sequence[str], engine: str | None, gpu: str | None, count: int,
    settings: Mapping[str, Any], asked: Mapping[str, Any], available_bytes: Sequence[int] = (),
) -> Matrix:  # fmt: skip
    """Sizes over contexts and batches: analytic, or with `engine` what that engine reserves on `gpu`."""
    contexts, batches = parse_axes(words)
    if engine is not None:
        if gpu is None:
            raise InputError("--gpu: found nothing beside --engine, expected the device to serve on")
        rows = tuple(_served_row(loaded, n, batches, engine, gpu, settings, available_bytes) for n in contexts)
    else:
        rows = tuple(_plain_row(loaded, n, batches, gpu, count, asked) for n in contexts)
    return Matrix(1, loaded.spec.id, "needed" if engine is None else "reserved", engine, gpu, batches, rows)


def _plain_row(
    loaded: LoadedModel, n: int, batches: Sequence[int], gpu: str | None, count: int, asked: Mapping[str, Any]
) -> MatrixRow:
    one = {**asked, "ctx": n, "batch": 1, "gpu": gpu, "num_gpus": count}
    answer = estimate(loaded, **one)
    size = answer.cache.needed_bytes
    most = None if answer.fit is None else answer.fit.max_full_length_sequences
    cells = tuple(size * batch if most is None or batch <= most else None for batch in batches)
    return MatrixRow(n, cells, None if most is None else float(most))


def _served_row(
    loaded: LoadedModel, n: int, batches: Sequence[int], engine: str, gpu: str, settings: Mapping[str, Any],
    available_bytes: Sequence[int],
) -> MatrixRow:  # fmt: skip
    serving = serve(
        loaded,
        engine,
        find(gpu),
        {**settings, **native_settings(engine, {"max_model_len": n})},
        available_bytes=available_bytes,
        help_wanted=False,
    )
    ranks = parallel_from(settings)
    size = serving.engine.reserved_bytes_one_request * ranks.tensor * ranks.pipeline
    most = serving.engine.max_concurrency or 0.0
    return MatrixRow(n, tuple(size * batch if batch <= most else None for batch in batches), most)


def layouts(
    loaded: LoadedModel, engine: str | None, gpu: str | None, count: int, settings: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> Layouts:  # fmt: skip
    """Every split of `count` GPUs into tensor, pipeline and data ranks, and decode context ranks where latents or
    few KV heads would be copied; only the kinds of ranks that the engine has."""
    if gpu is None:
        raise InputError("--gpu: found nothing beside --layouts, expected the device to serve on")
    name = engine or DEFAULT_ENGINE
    kept = {key: value for key, value in settings.items() if key not in PARALLEL_FLAGS}
    if asked.get("ctx"):
        kept = {**native_settings(name, {"max_model_len": parse_tokens(asked["ctx"])}), **kept}
    own = canonical_engine(name.partition("@")[0])
    rows = [
        _layout(loaded, name, gpu, (tensor, pipeline, count // tensor // pipeline, context), kept)
        for tensor in ([1] if own in LAYER_SPLIT else _divisors(count))
        for pipeline in _divisors(count // tensor)
        for context in ((1,) if tensor == 1 or own not in TOKEN_SPLIT else (1, tensor))
    ]
    known = [row for row in rows if row is not None]
    known.sort(key=lambda row: (-(row.max_concurrency or 0), row.pipeline, row.tensor, row.decode_context))
    return Layouts(1, loaded.spec.id, name, find(gpu).name, count, tuple(known))


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _layout(
    loaded: LoadedModel, engine: str, gpu: str, ranks: tuple[int, int, int, int], settings: Mapping[str, Any]
) -> Layout | None:
    """One layout's row; None for decode context ranks that the engine or the model doesn't take."""
    tensor, pipeline, data, context = ranks
    parallel = Parallelism(tensor, pipeline, data, decode_context=context)
    try:
        serving = serve(loaded, engine, find(gpu), settings, parallel=parallel, help_wanted=False)
    except KvplanError as error:
        return None if ranks[3] > 1 else Layout(*ranks, None, None, None, None, False, str(error))
    answer, budget = serving.engine, serving.budget
    weights = None
    if budget is not None:
        weights = max(term.nominal for stage in budget.stages for term in stage.terms if term.name == "weights")
    copies = ranks[2]
    starts = answer.refused is None
    says = "starts" if starts or answer.refused is None else answer.refused.text
    return Layout(
        *ranks, weights, answer.reserved_bytes_one_request,
        None if answer.capacity_tokens is None else answer.capacity_tokens * copies,
        None if answer.max_concurrency is None else answer.max_concurrency * copies, starts, says,
    )  # fmt: skip
