"""Which techniques go together: each combination composes by the written order or is refused with the reason."""

from __future__ import annotations

from kvplan.cache.precision import Precision
from kvplan.cache.techniques.recurrent import has_recurrent
from kvplan.cache.techniques.rewrite import SELF_ATTENTION, has_kind
from kvplan.cache.techniques.runtime import DEFAULT_BLOCK, Techniques
from kvplan.cache.techniques.what_if import what_ifs
from kvplan.errors import InputError
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import tokens

SPARSE = "reads its entries through an indexer trained with the model"


def check(spec: ModelSpec, precision: Precision, techniques: Techniques, n: int, generated: int = 0) -> None:
    """Raises InputError with the reason, and what would work, for a combination that has no meaning."""
    if not 0 <= generated < n:
        raise InputError(f"generated: found {generated}, expected 0 to {n - 1}, the tokens stored less the prompt")
    if techniques.evict is not None:
        _check_eviction(spec, techniques)
    if techniques.sparse_read is not None:
        _check_quest(spec, techniques)
    _check_paging(spec, techniques, n)
    if precision.key.tokens is not None:
        _check_token_groups(precision, techniques)


def _attention(spec: ModelSpec) -> list[kinds.SingleLayer]:
    """The self-attention mixers that own a cache."""
    return [mixer for name in spec.counts for mixer in branches(spec.blocks[name]) if isinstance(mixer, SELF_ATTENTION)]


def _check_eviction(spec: ModelSpec, techniques: Techniques) -> None:
    rule = techniques.evict
    assert rule is not None
    mixers = _attention(spec)
    name = rule.method
    if not mixers:
        found = ", ".join(sorted({spec.blocks[block].kind for block in spec.counts}))
        raise InputError(
            f"--evict: {name} drops tokens of attention layers, {spec.id} has {found} layers alone, whose state "
            "holds no single tokens; expected no eviction, its cache does not grow"
        )
    if any(isinstance(mixer, kinds.CompressedSparse) or _indexed(mixer) for mixer in mixers):
        raise InputError(
            f"--evict: {spec.id} {SPARSE}, which addresses every entry, so {name} would leave it dangling; expected "
            "--kv-cache-dtype to shrink its cache or --offload to move it"
        )
    latent = any(isinstance(mixer, kinds.LatentAttention) for mixer in mixers)
    if latent and (name == "adakv" or rule.per_query_head):
        what = "adakv gives each KV head a budget" if name == "adakv" else "per-query-head copies K and V heads"
        raise InputError(
            f"--evict: {what}, an MLA latent serves all heads at once; expected one set of tokens a layer, such as "
            "tova:1024 or snapkv:2048"
        )
    if rule.by_layer and any(has_kind(spec.blocks[block], (kinds.SharedCache,)) for block in spec.counts):
        raise InputError(
            f"--evict: {name} gives each layer a budget, {spec.id} has layers that read another layer's cache; "
            "expected one budget for all, such as snapkv:2048"
        )
    if techniques.share_prefix is not None:
        raise InputError(
            f"--evict: {name} drops tokens of the prompt, so its blocks are no longer the prefix that --share-prefix "
            "reuses; expected one of the two"
        )


def _indexed(mixer: kinds.SingleLayer) -> bool:
    return getattr(mixer, "indexer", None) is not None


def _check_quest(spec: ModelSpec, techniques: Techniques) -> None:
    quest = techniques.sparse_read
    assert quest is not None
    mixers = _attention(spec)
    if any(_indexed(mixer) or isinstance(mixer, kinds.CompressedSparse) for mixer in mixers):
        raise InputError(f"--sparse-read: {spec.id} {SPARSE} already; expected no second selection on top")
    full = [mixer for mixer in mixers if isinstance(mixer, kinds.FullAttention)]
    if not full and any(isinstance(mixer, kinds.LatentAttention) for mixer in mixers):
        raise InputError(
            "--sparse-read: quest bounds scores by each head's minimum and maximum keys, an MLA latent has no keys of "
            "its own; expected a trained indexer, shown by --what-if dsa=2048"
        )
    if not full:
        raise InputError(
            f"--sparse-read: quest selects pages of full-attention layers, {spec.id} has none; expected no sparse "
            "reads, windows and states are read whole"
        )
    block = techniques.block
    if block is not None and block % quest.page:
        raise InputError(
            f"--sparse-read: found page={quest.page} beside blocks of {block}, expected a page that divides the block; "
            f"nearest: {block}"
        )


def _check_paging(spec: ModelSpec, techniques: Techniques, n: int) -> None:
    if techniques.share_prefix is not None and techniques.share_prefix > n:
        raise InputError(
            f"--share-prefix: found {tokens(techniques.share_prefix)} tokens, expected at most the {tokens(n)} of the "
            "context"
        )
    block = techniques.block
    if block is None:
        return
    ratios = {
        ratio
        for mixer in _attention(spec)
        for ratio in (getattr(mixer, "ratio", None), _pool(mixer))
        if ratio is not None
    }
    for ratio in sorted(ratios, reverse=True):
        if block % ratio:
            field = "--block-size" if techniques.block_size is not None else "--share-prefix"
            raise InputError(
                f"{field}: found blocks of {block} tokens, expected a multiple of the {ratio} tokens that make one "
                f"compressed entry of {spec.id}; nearest: --block-size {-(-block // ratio) * ratio}"
            )


def _pool(mixer: kinds.SingleLayer) -> int | None:
    indexer = getattr(mixer, "indexer", None)
    return None if indexer is None else int(indexer.pool) * (getattr(mixer, "ratio", None) or 1)


def _check_token_groups(precision: Precision, techniques: Techniques) -> None:
    name = precision.key.name
    works = "expected a dtype of one size a token, such as fp8, int4_per_token_head or turboquant_4bit_nc"
    if techniques.block is not None:
        field = "--block-size" if techniques.block_size is not None else "--share-prefix"
        raise InputError(f"{field}: {name} keeps a 16-bit tail outside its groups, so blocks have no one size; {works}")
    if techniques.sparse_read is not None:
        raise InputError(f"--sparse-read: {name} groups keys along tokens, so single pages can't be loaded; {works}")


def warnings(spec: ModelSpec, precision: Precision, techniques: Techniques, n: int) -> tuple[str, ...]:
    """What must be known before this composition ships, one sentence each."""
    found = [mark.removeprefix("what-if ") for mark in what_ifs(spec)]
    if _below_sixteen_bits(precision):
        found.append(
            f"{precision.name} needs an accuracy check on your own task, and an attention kernel of the engine and GPU "
            "that reads it"
        )
    rule = techniques.evict
    if rule is not None:
        found.append(
            f"{rule.method} loses the dropped tokens for good, needs a patched engine, and ends prefix reuse: an "
            "evicted prompt is no prefix another request can share"
        )
        if rule.masked:
            found.append(f"{rule.method} with masked hides keys from attention and frees no bytes")
        if techniques.block is not None and not rule.scattered:
            found.append("whole blocks alone free memory: kept tokens are taken to be compacted into full blocks")
        if precision.key.tokens is not None:
            found.append(f"{precision.name} groups keys along tokens: dropping one means quantizing its group anew")
    if techniques.sparse_read is not None:
        found.append("quest reads less and stores more: it frees no memory, and recall depends on its budget")
        if techniques.sparse_read.read_tokens(n) == n:
            found.append(f"{tokens(n)} tokens are within the quest budget: it reads more than dense")
        if rule is not None:
            found.append(f"no engine read so far has {rule.method} and quest together: arithmetic only")
        if techniques.offload is not None:
            found.append("selected pages that live off the device cross the link in each step")
    return tuple(found + _sharing_words(spec, techniques))


def _sharing_words(spec: ModelSpec, techniques: Techniques) -> list[str]:
    if techniques.share_prefix is None:
        return []
    found = []
    if techniques.block_size is None:
        found.append(f"a shared prefix needs pages: blocks of {DEFAULT_BLOCK} tokens are assumed")
    if techniques.batch == 1:
        found.append("one sequence has nobody to share a prefix with: it saves nothing; give --batch")
    elif has_recurrent(spec):
        found.append("recurrent state is not shared: one snapshot at the prefix's end is counted besides")
    return found


def _below_sixteen_bits(precision: Precision) -> bool:
    return any(fmt.tokens is not None or fmt.effective_bits() < 16 for fmt in (precision.key, precision.value))
