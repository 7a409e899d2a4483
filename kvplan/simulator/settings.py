"""What an engine is told: limits, order of service, and what happens when the pool is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Order: TypeAlias = Literal["fcfs", "priority"]
Admission: TypeAlias = Literal["vllm", "sglang"]
Preemption: TypeAlias = Literal["recompute", "swap"]

#: each scheduling rule and where it is taken from
RULE_SOURCES = {
    "running requests first, one token each, then the waiting queue": "vllm/v1/core/sched/scheduler.py",
    "token budget and chunked prefill": "vllm/v1/core/sched/scheduler.py (max_num_batched_tokens)",
    "no admission in a step that preempted": "vllm/v1/core/sched/scheduler.py",
    "victim: the latest admitted, under priority the last in (priority, arrival)": "vllm/v1/core/sched/scheduler.py",
    "a preempted request recomputes prompt and output, from the head of the queue": "vllm/v1/core/sched/scheduler.py",
    "swap to the host and back inside the step": "vllm/core/scheduler.py of releases before V1",
    "admission against expected output": "sgl-project/sglang srt/managers/schedule_policy.py (new_token_ratio)",
    "hits of full blocks only, never the last token": "vllm/v1/core/kv_cache_manager.py",
}


@dataclass(frozen=True)
class Settings:
    """Limits of one engine.

    `emits` says that finishing a prefill yields the first token (it does in every engine; the closed-form checks count
    decode steps only). `new_token_ratio` is SGLang's share of the output still to come that admission reserves.
    `kept` maps prompt tokens to those an eviction rule keeps, `kept_grows` whether generated ones stay on top.
    `swap_ticks` moves one block to or from the host.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 1 << 40
    chunked_prefill: bool = True
    order: Order = "fcfs"
    admission: Admission = "vllm"
    new_token_ratio: float = 0.7
    preemption: Preemption = "recompute"
    swap_ticks: int = 0
    emits: bool = True
    prefix_caching: bool = False
    kept: Callable[[int], int] | None = None
    kept_grows: bool = False
