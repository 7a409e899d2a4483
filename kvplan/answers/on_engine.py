"""Where a deployment stands by the engine's own plan: what `kvplan estimate --engine` answers for the same setting."""

from __future__ import annotations

from dataclasses import replace

from kvplan.answers.composed import CacheOptions
from kvplan.answers.standing import Deployment, Standing
from kvplan.cache.techniques.offload import Offload
from kvplan.engines.native import native_settings
from kvplan.engines.support import supports
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.serving import EngineSection, serve
from kvplan.spec.resolve import LoadedModel

# LMDeploy's own numbers of the schemes that kvplan names by their layout.
_LMDEPLOY = {"int8_per_token_head": "8", "int4_per_token_head": "4", "lmdeploy_turboquant": "42"}
_STEP = 16  # tokens of the smallest block
_PLAIN = ("auto", "bf16", "fp16")


@record
class OnEngine:
    """A deployment under an engine. Where `predicted` the engine's memory budget gives the pool, else `deployment`."""

    loaded: LoadedModel
    engine: str
    deployment: Deployment
    predicted: bool

    def standing(
        self, options: CacheOptions, tier: Offload | None = None, *, gpus: int = 1, decode_context: int = 1
    ) -> Standing:
        """Where it stands under `options` on `gpus` devices. Raises InputError for what the engine would not take.

        Runtime techniques that an engine's plan knows nothing of add what the formula says they add.
        """
        at = replace(self.deployment, gpus=gpus)
        section = self._ask(at, options, decode_context)
        pool = max(0, min(section.available_bytes))
        at = replace(at, pool_bytes=pool, decode_context=decode_context)
        options = replace(options, skip_layers=_skipped(section) or options.skip_layers)
        plain = at.standing(replace(options, techniques=()))
        placed = plain if self.filling else self._placed(at, plain, section)
        if self.predicted and placed.longest_context_tokens > at.context:
            longest = self._startable(at, options, placed.longest_context_tokens)
            placed = replace(placed, longest_context_tokens=longest)
        if options.techniques:
            placed = _shifted(placed, plain, at.standing(options))
        return at.waiting(placed, tier)

    def _startable(self, at: Deployment, options: CacheOptions, longest: int) -> int:
        """The context, at most `longest`, that the engine starts with for the batch: blocks hold less than bytes do."""
        while longest > at.context:
            section = self._ask(replace(at, context=longest), options, at.decode_context)
            if section.refused is None and int(section.max_concurrency or 0) >= at.batch:
                return longest
            held = section.estimated_max_model_len or 0
            if section.refused is None:
                held = int((section.max_concurrency or 0) * longest)
            longest = min(longest - _STEP, held // at.batch)
        return at.context

    @property
    def filling(self) -> bool:
        """Whether the pool is what the weights leave, since the engine has no budget of its own."""
        return not self.predicted and self.deployment.pool_bytes is None

    def _ask(self, at: Deployment, options: CacheOptions, decode_context: int) -> EngineSection:
        dtype = options.kv_cache_dtype
        if self.engine == "lmdeploy":
            dtype = "auto" if dtype in _PLAIN else _LMDEPLOY.get(dtype, dtype)
        asked = {
            "max_model_len": at.context,
            "tensor_parallel_size": at.gpus if at.gpus > 1 else None,
            "decode_context_parallel_size": decode_context if decode_context > 1 else None,
            "kv_cache_dtype": dtype,
            "kv_cache_dtype_skip_layers": ",".join(map(str, options.skip_layers)) or None,
        }
        given = () if self.predicted else (at.pool,)
        settings = native_settings(self.engine, asked)
        return serve(self.loaded, self.engine, at.device, settings, available_bytes=given, help_wanted=False).engine

    def _placed(self, at: Deployment, plain: Standing, section: EngineSection) -> Standing:
        pool, share = plain.pool_bytes_per_gpu, max(1, section.reserved_bytes_one_request)
        tokens, sequences = pool * at.context // share, pool // share
        if supports(self.engine, "paging"):
            sequences = int(section.max_concurrency or 0)
            if self.predicted:
                tokens = section.capacity_tokens or section.estimated_max_model_len or 0
        longest = plain.longest_context_tokens
        if sequences >= at.batch:
            longest = max(longest, at.context)
        else:
            refused = section.estimated_max_model_len if at.batch == 1 and section.refused is not None else None
            longest = min(longest, at.context - 1, longest if refused is None else refused)
        return replace(
            plain,
            bytes_per_sequence_per_gpu=share,
            sequences=sequences,
            pool_tokens=tokens,
            pool_tokens_in_blocks=None if self.predicted or at.decode_context > 1 else plain.pool_tokens_in_blocks,
            longest_context_tokens=longest,
        )


def on_engine(loaded: LoadedModel, engine: str, deployment: Deployment, base: CacheOptions) -> OnEngine:
    """The deployment under `engine`, its pool predicted by the engine's budget where none was given.

    An engine without a memory budget fills what the weights leave. Raises InputError for what the engine refuses.
    """
    found = OnEngine(loaded, engine, deployment, deployment.pool_bytes is None)
    try:
        found.standing(base, gpus=deployment.gpus)
    except InputError as error:
        filling = replace(found, predicted=False)
        if not found.predicted or not _takes(filling, base):
            raise error
        return filling
    return found


def _takes(at: OnEngine, base: CacheOptions) -> bool:
    try:
        at.standing(base, gpus=at.deployment.gpus)
    except InputError:
        return False
    return True


def _skipped(section: EngineSection) -> tuple[str | int, ...]:
    """The layers that the engine leaves in 16 bits, its own rule included."""
    found = section.settings.get("kv_cache_dtype_skip_layers") or ()
    return tuple(int(name) if str(name).isdecimal() else str(name) for name in found)


def _shifted(placed: Standing, before: Standing, after: Standing) -> Standing:
    """`placed` with what changes from `before` to `after`, both by the formula."""

    def moved(field: str) -> int:
        return max(0, int(getattr(placed, field) + getattr(after, field) - getattr(before, field)))

    return replace(
        after,
        bytes_per_sequence_per_gpu=moved("bytes_per_sequence_per_gpu"),
        sequences=moved("sequences"),
        pool_tokens=moved("pool_tokens"),
        pool_tokens_in_blocks=None,
        longest_context_tokens=moved("longest_context_tokens"),
    )
