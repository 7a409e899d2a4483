"""The scenario file: everything one simulation needs, as one YAML document with a published schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kvplan.errors import InputError, did_you_mean, show
from kvplan.units import parse_bytes, parse_seconds


def _read(parse: Callable[[str, str], Any], text: str, example: str) -> Any:
    # The field's place is pydantic's to name, so the parser's own sentence is dropped.
    try:
        return parse(text, "")
    except InputError:
        raise ValueError(f"expected {example}") from None


def _seconds(value: Any) -> Any:
    return _read(parse_seconds, value, "a duration such as 30ms, 2s or 1.5min") if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    return _read(parse_bytes, value, "a size such as 80GB or 9.5GiB") if isinstance(value, str) else value


def _rate(value: Any) -> Any:
    return _read(parse_bytes, value.removesuffix("/s"), "a rate such as 25GB/s") if isinstance(value, str) else value


def _not_tiny(value: float) -> float:
    if value < 1e-9:
        raise ValueError("expected a number of at least 1e-9")
    return value


# Bounds keep products of the figures within what a float holds; no real system comes near them.
MOST = 1e12
Amount = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False), AfterValidator(_not_tiny)]
Spread = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
Seconds = Annotated[
    float, BeforeValidator(_seconds, json_schema_input_type=float | str), Field(gt=0, le=MOST, allow_inf_nan=False)
]
SecondsOrZero = Annotated[
    float, BeforeValidator(_seconds, json_schema_input_type=float | str), Field(ge=0, le=MOST, allow_inf_nan=False)
]
Bytes = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(gt=0)]
Bandwidth = Annotated[int, BeforeValidator(_rate, json_schema_input_type=int | str), Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(gt=0, le=1)]


class Part(BaseModel):
    """A part of a scenario: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Law(Part):
    """A distribution of lengths or times. `constant: 256`, or a `kind` with its parameters; values are cut to
    [`least`, `most`]. `cv` is the standard deviation over the mean. `points` are [value, share not above it] rows."""

    kind: Literal["constant", "uniform", "exponential", "lognormal", "gamma", "empirical"] = "constant"
    value: Amount | None = None
    low: Amount | None = None
    high: Amount | None = None
    mean: Positive | None = None
    cv: Spread | None = None
    points: tuple[tuple[Amount, Amount], ...] | None = None
    least: Amount = 0
    most: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return {"kind": "constant", "value": value}
        if isinstance(value, str):
            return {"kind": "constant", "value": _seconds(value)}
        return value

    @model_validator(mode="after")
    def _complete(self) -> Law:
        needed = {
            "constant": ("value",), "uniform": ("low", "high"), "exponential": ("mean",),
            "lognormal": ("mean", "cv"), "gamma": ("mean", "cv"), "empirical": ("points",),
        }[self.kind]  # fmt: skip
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"a {self.kind} law needs {' and '.join(needed)}")
        if self.points is not None:
            shares = [share for _, share in self.points]
            if not shares or shares != sorted(shares) or shares[0] < 0 or abs(shares[-1] - 1) > 1e-9:
                raise ValueError("points need shares that rise to 1")
        return self


class Arrivals(Part):
    """When requests (or sessions) arrive. `closed` keeps `users` busy, each thinking after an answer."""

    kind: Literal["poisson", "constant", "gamma", "on_off", "at_once", "closed"] = "poisson"
    rate: Positive | None = None
    cv: Spread | None = None
    rate_off: Amount = 0.0
    mean_on: Seconds | None = None
    mean_off: Seconds | None = None
    users: Count | None = None
    think: Law | None = None

    @model_validator(mode="after")
    def _complete(self) -> Arrivals:
        needed = {
            "poisson": ("rate",), "constant": ("rate",), "gamma": ("rate", "cv"), "at_once": (), "closed": ("users",),
            "on_off": ("rate", "mean_on", "mean_off"),
        }[self.kind]  # fmt: skip
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"{self.kind} arrivals need {' and '.join(needed)}")
        if self.mean_on is not None and self.rate is not None and self.rate * self.mean_on < 1e-3:
            raise ValueError("on_off arrivals need phases in which something arrives, rate x mean_on of 0.001 or more")
        return self


class SharedPrefix(Part):
    """The first `tokens` of every prompt are one of `groups` texts, each as likely."""

    tokens: Count
    groups: Count = 1


class Sessions(Part):
    """Conversations: the next prompt is the whole conversation so far and `prompt` new tokens, after `idle` seconds."""

    turns: Law
    idle: Law


class TraceFile(Part):
    """A recorded trace; a relative path is looked up beside the scenario. `scale_rate: 2` doubles the rate."""

    path: str
    format: Literal["mooncake", "qwen", "azure", "csv"] | None = None
    time_unit: Literal["s", "ms", "us"] | None = None
    block_size: Count | None = None
    limit: Count | None = None
    scale_rate: Positive = 1.0


class Workload(Part):
    """What is asked: a `trace`, or `arrivals` with laws of `prompt` and `output` tokens. `service` is for
    fixed_service. `priorities` are weights of the classes 0, 1, ..., the lower served first. `branches` answers are
    written to each prompt, as requests of their own that share its full blocks."""

    trace: TraceFile | None = None
    arrivals: Arrivals | None = None
    requests: Count | None = None
    prompt: Law | None = None
    output: Law | None = None
    service: Law | None = None
    shared_prefix: SharedPrefix | None = None
    sessions: Sessions | None = None
    priorities: tuple[Positive, ...] = ()
    branches: Count = 1

    @model_validator(mode="after")
    def _complete(self) -> Workload:
        if (self.trace is None) == (self.arrivals is None):
            raise ValueError("a workload needs either a trace or arrivals")
        if self.arrivals is not None and self.service is None and (self.prompt is None or self.output is None):
            raise ValueError("arrivals need laws of prompt and output")
        if self.branches > 1 and (self.sessions is not None or self.arrivals is None or self.arrivals.kind == "closed"):
            raise ValueError("branches need open arrivals without sessions")
        return self


#: ways to split a model that have no step time, and what to write instead
NOT_TIMED = {
    "pipeline_parallel": "has no step time yet, expected tensor_parallel",
    "expert_parallel": "has no step time yet, expected tensor_parallel",
    "decode_context_parallel": "has no step time yet, expected tensor_parallel",
    "data_parallel": "is written as replicas, expected replicas beside hardware",
}


class Hardware(Part):
    """The device, how many ranks share a model, and the share of its memory that the engine may take (without one, the
    release's own). What is left for the cache is the memory budget of `kvplan estimate --engine`."""

    gpu: str
    tensor_parallel: Count = 1
    memory_utilization: Share | None = None

    @model_validator(mode="before")
    @classmethod
    def _timed(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for key, size in value.items():
            why = NOT_TIMED.get(str(key).removesuffix("_size"))
            if why is not None and size != 1:
                raise ValueError(f"{key} {why}")
        return {key: size for key, size in value.items() if str(key).removesuffix("_size") not in NOT_TIMED}


def _vllm_only(value: Any) -> Any:
    if value != "vllm":
        raise ValueError("expected vllm, whose pool is simulated (admission: sglang puts SGLang's rule on it)")
    return value


def _online(value: Any) -> Any:
    if value == "optimal":
        raise ValueError(
            "expected lru, fifo or lfu, since the offline optimum knows the future: kvplan replay --policy optimal"
        )
    return value


class EngineSettings(Part):
    """An engine under vLLM's own names. What is left out takes the release's default on the device. `num_blocks` or
    `kv_cache_memory` (bytes a rank) replace what the hardware leaves; `layout` contiguous reserves max_model_len for
    every request; `admission` sglang holds back expected output."""

    name: Annotated[Literal["vllm"], BeforeValidator(_vllm_only)] = "vllm"
    version: str | None = None
    max_model_len: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    block_size: Count | None = None
    num_blocks: Count | None = None
    kv_cache_memory: Bytes | None = None
    kv_cache_dtype: str = "auto"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool | None = None
    eviction_policy: Annotated[Literal["lru", "fifo", "lfu"], BeforeValidator(_online)] = "lru"
    touch_order: Literal["last_to_first", "first_to_last"] = "last_to_first"
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    admission: Literal["vllm", "sglang"] = "vllm"
    new_token_ratio: Share = 0.7
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_bandwidth: Bandwidth = 25 * 10**9
    layout: Literal["paged", "contiguous"] = "paged"
    queue_limit: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> EngineSettings:
        tokens, sequences = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and sequences is not None and tokens < sequences:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        return self


class StepTimes(Part):
    """How long a step takes. `calibrated` and `roofline` come from the model and the device; `constant_step` and
    `affine` (base + per_sequence x running, prefill free) and `fixed_service` are for checks against closed forms.
    `host` and `scale` replace the host's share of a step and multiply the whole; `profile` is a device profile that
    `kvplan validate` wrote, looked up beside the scenario."""

    kind: Literal["calibrated", "roofline", "constant_step", "affine", "fixed_service"] = "calibrated"
    base: SecondsOrZero | None = None
    per_sequence: SecondsOrZero = 0.0
    host: SecondsOrZero | None = None
    scale: Positive = 1.0
    profile: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> StepTimes:
        if self.kind in ("constant_step", "affine") and not self.base:
            raise ValueError(f"a {self.kind} needs base above zero")
        return self


class Slo(Part):
    """Limits that make a request good."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None


class Tier(Part):
    """A place beside the pool for kept blocks. `bandwidth` is one way to the device, shared fairly by what moves at a
    time. `write` through takes blocks when a request ends, on_eviction when the place above gives them up. `pinned`
    bounds the bytes under way at a time: where they are taken, the next request computes instead of loading."""

    name: Literal["cpu", "nvme", "remote"] = "cpu"
    capacity: Bytes
    bandwidth: Bandwidth
    latency: SecondsOrZero = 0.0
    write: Literal["through", "on_eviction"] = "through"
    pinned: Bytes | None = None


class Disaggregation(Part):
    """Prefill on `prefill` replicas, decode on `decode` others; the cache crosses a link in between."""

    prefill: Count
    decode: Count
    bandwidth: Bandwidth
    latency: SecondsOrZero = 0.0


class Failure(Part):
    """At `time` one replica is lost: what it served starts anew elsewhere, its cache is gone."""

    time: Seconds
    replica: int = Field(default=0, ge=0)


class Scenario(Part):
    """One simulation."""

    name: str = ""
    teaches: str = ""
    model: str | None = None
    hardware: Hardware | None = None
    engine: EngineSettings = EngineSettings()
    techniques: tuple[dict[str, Any], ...] = ()
    step_time: StepTimes = StepTimes()
    workload: Workload
    tiers: tuple[Tier, ...] = Field(default=(), max_length=4)
    replicas: Count = 1
    routing: Literal["round_robin", "least_loaded", "prefix_aware"] = "round_robin"
    disaggregation: Disaggregation | None = None
    failure: Failure | None = None
    slo: Slo = Slo()
    seed: int = Field(default=0, ge=0)
    duration: Seconds | None = None
    warmup_requests: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> Scenario:
        free = self.step_time.kind in ("constant_step", "affine", "fixed_service")
        if not free and (self.model is None or self.hardware is None):
            raise ValueError(f"step_time {self.step_time.kind} needs a model and hardware")
        if self.workload.trace is None and self.workload.requests is None and self.duration is None:
            raise ValueError("a synthetic workload needs requests or a duration")
        arrivals = self.workload.arrivals
        if arrivals is not None and arrivals.kind == "at_once" and self.workload.requests is None:
            raise ValueError("arrivals at_once need requests, how many there are")
        service = self.workload.service
        if self.step_time.kind == "fixed_service" and (service is None or service.value == 0):
            raise ValueError("step_time fixed_service needs a workload with a service law above zero")
        if free and self.step_time.kind != "fixed_service" and self.model is None and self.engine.num_blocks is None:
            raise ValueError("a scenario without a model needs engine.num_blocks")
        return self


def parse_scenario(data: Any, name: str) -> Scenario:
    """Check a parsed document. Raises InputError with one sentence naming the field."""
    if not isinstance(data, dict):
        raise InputError(f"{name}: found {show(data)}, expected a mapping such as model:, hardware:, workload:")
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "scenario"
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            hint = did_you_mean(key, _keys_at(first["loc"][:-1]))
            raise InputError(f"{name}: {place}: found an unknown key, expected one of the schema's{hint}") from None
        if first["type"] == "missing":
            raise InputError(f"{name}: {place}: found nothing, expected a value") from None
        found = "" if isinstance(first["input"], dict) else f"found {show(first['input'])}, "
        raise InputError(f"{name}: {place}: {found}{_expected(first['msg'])}") from None


def _expected(said: str) -> str:
    """pydantic's sentence in kvplan's words."""
    said = said.removeprefix("Value error, ").replace("Input should be ", "expected ", 1)
    for word in ("greater", "less"):
        said = said.replace(f"expected {word}", f"expected a number {word}", 1)
    return said[:1].lower() + said[1:]


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    model: Any = Scenario
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        parts = getattr(field.annotation, "__args__", (field.annotation,)) if field is not None else ()
        model = next((item for item in parts if hasattr(item, "model_fields")), Scenario)
    return list(model.model_fields)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file."""
    schema = Scenario.model_json_schema()
    law = schema["$defs"]["Law"]
    schema["$defs"]["Law"] = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}, law]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kvplan scenario"}
