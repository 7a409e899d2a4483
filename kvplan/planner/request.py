"""What `kvplan plan` is asked: the plan file, with a published schema. Flags build the same document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvplan.planner.prices import Offer
from kvplan.simulator.scenario import Count, Part, Seconds, Workload
from kvplan.units import parse_tokens


def _tokens(value: Any) -> Any:
    return parse_tokens(value, "a length") if isinstance(value, str) else value


def _list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) or value is None else [value]


Tokens = Annotated[int, BeforeValidator(_tokens, json_schema_input_type=int | str), Field(ge=1, le=10**12)]
Sizes = Annotated[
    tuple[Count, ...], BeforeValidator(_list, json_schema_input_type=tuple[Count, ...] | Count), Field(min_length=1)
]
Names = Annotated[
    tuple[str, ...], BeforeValidator(_list, json_schema_input_type=tuple[str, ...] | str), Field(min_length=1)
]

#: What a plan may be forbidden, and what that rules out.
FORBIDDEN = {
    "4-bit": "weights and caches of 4 bits and fewer",
    "8-bit-kv": "caches of fewer than 16 bits",
    "quantized-weights": "checkpoints whose weights have fewer than 16 bits",
    "eviction": "caches that drop tokens (the search has none)",
    "sparse-read": "decode steps that read a part of the cache (the search has none)",
    "prefix-caching": "blocks shared between requests",
    "pipeline-parallel": "models split by layers",
    "expert-parallel": "whole experts on ranks",
    "decode-context-parallel": "tokens of one request on several ranks",
    "multi-node": "replicas larger than one machine",
    "unsimulated": "configurations that the simulator can't run",
}
Forbidden = Literal[
    "4-bit", "8-bit-kv", "quantized-weights", "eviction", "sparse-read", "prefix-caching", "pipeline-parallel",
    "expert-parallel", "decode-context-parallel", "multi-node", "unsimulated",
]  # fmt: skip


class Limits(Part):
    """Limits on latency, each for the `quantile` of all requests."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None
    quantile: Literal["p50", "p90", "p99"] = "p99"

    @property
    def share(self) -> float:
        """The quantile as a share."""
        return int(self.quantile[1:]) / 100

    def given(self) -> dict[str, float]:
        """The limits there are, by name."""
        pairs = (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
        return {name: limit for name, limit in pairs if limit is not None}


class Space(Part):
    """What is searched. `replicas` None: as many as the demand asks, within max_gpus. `max_num_batched_tokens` and
    `max_num_seqs` None: the engine's own defaults."""

    tensor_parallel: Sizes = (1, 2, 4, 8)
    pipeline_parallel: Sizes = (1,)
    data_parallel: Sizes = (1,)
    decode_context_parallel: Sizes = (1,)
    expert_parallel: bool = False
    kv_cache_dtypes: Names = ("auto", "fp8")
    block_sizes: Sizes | None = None
    max_num_batched_tokens: Sizes | None = (2048, 8192)
    max_num_seqs: Sizes | None = (256,)
    replicas: Sizes | None = None


class PlanRequest(Part):
    """A plan file: what is asked, within which limits, from what.

    `max_model_len` None takes the longest request of the workload. `headroom` 0.2 plans for 1.2 times the demand;
    `redundancy` n-1 for the demand after one machine is lost. `finalists` are simulated, in `simulations` runs at most.
    """

    models: Names
    workload: Workload
    slo: Limits = Limits()
    engines: Names = ("vllm",)
    gpus: Names | None = None
    prices: dict[str, Offer] | None = None
    search: Space = Space()
    forbid: Annotated[
        tuple[Forbidden, ...], BeforeValidator(_list, json_schema_input_type=tuple[Forbidden, ...] | Forbidden)
    ] = ()
    max_gpus: Annotated[int, Field(ge=1, le=4096)] = 64
    max_cost_per_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_model_len: Tokens | None = None
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    headroom: Annotated[float, Field(ge=0, le=10)] = 0.2
    redundancy: Literal["none", "n-1"] = "none"
    step_time: Literal["calibrated", "roofline"] = "calibrated"
    routing: Literal["round_robin", "least_loaded", "prefix_aware"] = "least_loaded"
    finalists: Annotated[int, Field(ge=0, le=20)] = 3
    simulations: Annotated[int, Field(ge=0, le=500)] = 30
    requests: Annotated[int, Field(ge=20, le=200_000)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("prices"), dict):
            prices = {
                key: {"per_gpu_hour": price} if isinstance(price, (int, float)) else price
                for key, price in value["prices"].items()
            }
            value = {**value, "prices": prices}
        return value

    @model_validator(mode="after")
    def _complete(self) -> PlanRequest:
        if self.workload.service is not None:
            raise ValueError("a plan's workload needs prompt and output lengths, not service times")
        if self.workload.arrivals is not None and self.workload.arrivals.kind == "at_once":
            raise ValueError("a plan needs arrivals at a rate, or users of a closed loop")
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a plan file."""
    schema = PlanRequest.model_json_schema()
    law, offer = schema["$defs"]["Law"], schema["$defs"]["Offer"]
    schema["$defs"]["Law"] = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, law]}
    schema["$defs"]["Offer"] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, offer]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kvplan plan request"}
