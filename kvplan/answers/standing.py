"""Where a deployment stands: what its pool holds, how long a step reads, how many idle sessions wait.

Times are rooflines: bytes over nominal bandwidth, or FLOPs over the dense 16-bit rate where those take longer. Real
kernels reach a part of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.answers.composed import CacheOptions, RankCache
from kvplan.cache.size import CachePlan
from kvplan.cache.techniques.compose import Composition, compose_plan
from kvplan.cache.techniques.flops import attention_flops
from kvplan.cache.techniques.offload import Offload, transfer_seconds
from kvplan.cache.techniques.paging import capacity
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.units import MAX_TOKENS

if TYPE_CHECKING:
    from kvplan.hardware.accelerators import Accelerator

MAX_SEQUENCES = 10**9


@record
class Standing:
    """What one configuration gives. Bytes with `_per_gpu` are one GPU's, as the engine sets them aside if it was asked.

    `pool_tokens` are the tokens that the engine logs; else the pool's bytes over those of a token (of a sequence of the
    context, where tokens differ in size or a prefix is shared). `pool_tokens_in_blocks` are the whole blocks of the
    latter, null where tokens differ in size. `read_seconds` is the roofline of one decode step's cache reads for the
    batch, `compute_bound` says that FLOPs set it. `idle_sessions` are sequences that wait in the pool and on the tier;
    `resume_seconds` is one session's way back from the tier.
    """

    gpus: int
    pool_bytes_per_gpu: int
    bytes_per_sequence: int
    bytes_per_sequence_per_gpu: int
    sequences: int
    pool_tokens: int
    pool_tokens_in_blocks: int | None
    longest_context_tokens: int
    read_bytes_per_step_per_gpu: int
    read_seconds: float
    compute_bound: bool
    idle_sessions: int
    resume_seconds: float | None


@record
class Deployment:
    """A model on `gpus` equal devices; `pool_bytes` is one GPU's pool where it is known, else what weights leave.

    Each of `decode_context` ranks holds its part of every sequence's tokens.
    """

    spec: ModelSpec
    device: Accelerator
    gpus: int
    context: int
    batch: int
    block: int
    usable_bytes: int
    weight_bytes: int | None
    pool_bytes: int | None
    decode_context: int = 1

    @property
    def pool(self) -> int:
        """Bytes of one GPU's pool, none below 0."""
        if self.pool_bytes is not None:
            return self.pool_bytes
        return max(0, self.usable_bytes - -(-(self.weight_bytes or 0) // self.gpus))

    @property
    def weight_seconds(self) -> float | None:
        """The roofline of reading one GPU's weights once: what a decode step of a dense model adds."""
        return None if self.weight_bytes is None else self.weight_bytes / self.gpus / self.device.memory_bandwidth

    def standing(self, options: CacheOptions, tier: Offload | None = None) -> Standing:
        """Where it stands under `options`, idle sessions on `tier`. Raises InputError for what can't be combined."""
        composition = replace(options, batch=self.batch).on(self.spec).at(self.context)
        held = RankCache(composition, self.gpus)
        pool, share = self.pool * self.decode_context, held.sequence_bytes(self.context)
        sequences = held.most_sequences(pool, MAX_SEQUENCES)
        plan = compose_plan(
            composition.spec, composition.precision, composition.techniques, self.context, ranks=self.gpus
        )
        token = _token_bytes(plan, self.context)
        shared = composition.techniques.share_prefix is not None
        read, seconds, compute_bound = self._read(composition, plan)
        found = Standing(
            gpus=self.gpus,
            pool_bytes_per_gpu=self.pool,
            bytes_per_sequence=composition.sequence_bytes,
            bytes_per_sequence_per_gpu=-(-share // self.decode_context),
            sequences=sequences,
            pool_tokens=_tokens(held, pool),
            pool_tokens_in_blocks=None if token is None or shared else capacity(pool, token, self.block).tokens,
            longest_context_tokens=held.longest_context(pool // self.batch, self.spec.max_context or MAX_TOKENS),
            read_bytes_per_step_per_gpu=read,
            read_seconds=seconds,
            compute_bound=compute_bound,
            idle_sessions=sequences,
            resume_seconds=None,
        )
        return self.waiting(found, tier)

    def waiting(self, standing: Standing, tier: Offload | None) -> Standing:
        """`standing` with the idle sessions that its pool and `tier` hold."""
        if tier is None:
            return replace(standing, idle_sessions=standing.sequences, resume_seconds=None)
        share = standing.bytes_per_sequence_per_gpu
        more = tier.capacity_bytes // max(1, share * self.gpus)
        seconds = transfer_seconds(share, tier.bandwidth)
        return replace(standing, idle_sessions=standing.sequences + more, resume_seconds=seconds)

    def _read(self, composition: Composition, plan: CachePlan) -> tuple[int, float, bool]:
        read = -(-self.batch * int(plan.read_bytes(self.context)) // self.decode_context)
        loading = read / self.device.memory_bandwidth
        flops = self.batch * int(attention_flops(composition.plan, self.context)) / self.gpus
        computing = flops / self.device.bf16_flops if self.device.bf16_flops else 0.0
        return read, max(loading, computing), computing > loading


def _tokens(held: RankCache, pool: int) -> int:
    """Tokens that `pool` bytes hold when the first sequence costs its whole cache and each further one its own part."""
    n, first = held.composition.n, max(1, held.batch_bytes(1))
    if pool < first:
        return pool * n // first
    return n + (pool - first) * n // max(1, held.batch_bytes(2) - first)


def _token_bytes(plan: CachePlan, n: int) -> int | None:
    """Bytes of one token where each of n tokens adds the same, else None."""
    marginal = plan.marginal_bytes(n)
    same = marginal.denominator == 1 and marginal > 0 and marginal * n == plan.needed_bytes(n)
    return int(marginal) if same else None
