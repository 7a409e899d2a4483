"""The answer of `kvplan plan`. The fields are the keys of the JSON document (schema_version 1)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from kvplan.record import record


@record
class Times:
    """Seconds at the asked quantile; None where no percentile can be quoted, since the queue has no end."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None


@record
class Simulated:
    """Figures of `kvplan simulate` for `scenario`, unchanged."""

    stability: str
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    e2e_s: dict[str, float]
    queue_s: dict[str, float]
    goodput: float
    requests_per_s: float
    output_tokens_per_s: float
    mean_use: float
    preemptions: int
    binding: str
    scenario: dict[str, Any]


@record
class Loss:
    """What is left when one machine fails: replicas, the share of the demand they carry, and whether limits hold.

    `times` are the estimate's at the demand without headroom; `basis` says whether a simulation confirmed them.
    """

    replicas_lost: int
    replicas_left: int
    carries: float
    meets: bool
    times: Times
    basis: Literal["simulated", "estimated"]


@record
class Option:
    """One configuration. `capacity` is what it carries within all limits: requests a second, or users of a closed loop.

    `headroom` is capacity over demand, less one. `basis` says where `times` come from. `misses` are limits that aren't
    met, with the factor. `starts_at_worst`: one request fits with every memory term at its most. Costs of a million
    tokens are at the planned demand.
    """

    rank: int
    name: str
    model: str
    engine: str
    gpu: str
    replicas: int
    gpus: int
    machines: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    decode_context_parallel: int
    expert_parallel: bool
    kv_cache_dtype: str
    block_size: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    cost_per_hour: float
    cost_per_million_output_tokens: float
    cost_per_million_tokens: float
    starts_at_worst: bool
    kv_capacity_tokens: int
    concurrent_requests: float
    capacity: float
    headroom: float
    load: float
    binds: str
    meets: bool
    misses: dict[str, float]
    basis: Literal["simulated", "estimated"]
    times: Times
    estimated: Times
    loss: Loss
    command: str
    simulated: Simulated | None
    why_not: str


@record
class Point:
    """One point of the front: no other configuration costs less and answers sooner."""

    name: str
    gpu: str
    replicas: int
    gpus: int
    cost_per_hour: float
    ttft_s: float
    tpot_s: float
    basis: Literal["simulated", "estimated"]


@record
class Lost:
    """Why shapes fell out, how many, and one of them."""

    reason: str
    shapes: int
    example: str


@record
class Asked:
    """The demand in figures, of all replicas together. `planned` includes the headroom."""

    models: tuple[str, ...]
    requests_per_s: float | None
    users: int | None
    think_s: float
    prompt_tokens: float
    computed_tokens: float
    output_tokens: float
    longest_tokens: int
    arrival_cv2: float
    headroom: float
    redundancy: str
    limits: dict[str, float]
    quantile: str


@record
class Plan:
    """The whole answer. `options` meet every limit, best first; without any, `nearest` shows what comes closest.

    `candidates` counts shapes times replica counts, `simulations` the runs. `unproven` shapes might yet be cheaper than
    the first option: their bounds don't rule them out and the budget of runs was used up.
    """

    schema_version: int
    command: Literal["plan"]
    verdict: str
    asked: Asked
    currency: str
    options: tuple[Option, ...]
    nearest: tuple[Option, ...]
    front: tuple[Point, ...]
    lost: tuple[Lost, ...]
    candidates: int
    shapes: int
    simulations: int
    unproven: int
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.options else 1

    def to_dict(self) -> dict[str, Any]:
        """The plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `Plan.to_dict` returns."""
    from kvplan.answers.schema import document_schema

    return document_schema(Plan, "kvplan plan")
