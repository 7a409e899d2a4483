"""Hybrid recurrent layers: a fixed state a sequence instead of entries that grow."""

from __future__ import annotations

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.rewrite import has_kind, owned_attention, refuse_shared, relayer
from kvplan.errors import InputError
from kvplan.record import record
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec, branches

TECHNIQUE = Technique(
    number=5,
    name="hybrid",
    title="Hybrid: recurrent state in most layers",
    term="layers",
    stored="attention layers only grow; each recurrent layer adds a fixed state",
    read="the state once a step, whatever the context",
    computed="constant a token in recurrent layers",
    needs_training=True,
    kinds=("mamba1", "mamba2", "gated_delta", "kda", "lightning", "rg_lru", "short_conv", "rwkv", "mlstm"),
    untouched="the attention layers that remain; KV dtype flags leave the state alone",
    metadata="state (often fp32); engines pad pages to it and keep snapshots for prefix reuse",
    quality="trained into the checkpoint; recall over long contexts rests on the attention layers kept",
    kernel="recurrent kernels; prefix reuse only where a state was saved",
    headline="Qwen3-Next 3 GiB against 12 at 131,072; Jamba 4 against Mixtral 32 at 262,144 (GiB, 16-bit, KV only)",
    source="arXiv 2403.19887 (Jamba); Qwen3-Next config; vLLM 0.33 mamba_utils.py",
    what_if="attention-every=4",
)


@record
class CoupledPage:
    """An attention block grown until one page holds a recurrent state: `block_tokens` tokens, `page_bytes` bytes.

    `padding` is page_bytes / state bytes - 1, the share by which the state's page is padded.
    """

    block_tokens: int
    page_bytes: int
    padding: float


def couple_pages(state_bytes: int, attention_token_bytes: int, align: int) -> CoupledPage:
    """vLLM's page coupling: the fewest tokens, a multiple of `align`, whose attention page holds the state.

    Source: vllm-project/vllm docs/design/hybrid_kv_cache_manager.md case 4. Bytes are those of one layer.
    """
    block = _ceil(_ceil(state_bytes, attention_token_bytes), align) * align
    page = block * attention_token_bytes
    return CoupledPage(block, page, page / state_bytes - 1)


def with_attention_every(spec: ModelSpec, period: int) -> ModelSpec:
    """Every `period`-th attention layer stays, the others become recurrent.

    They take the shape of the model's own recurrent layer where it has one, else linear attention over the same heads
    (a state of query heads x head_dim x head_dim).
    """
    refuse_shared(spec, "attention-every")
    places = owned_attention(spec)
    if len(places) < 2:
        raise InputError(f"attention-every: found {len(places)} attention layers in {spec.id}, expected two or more")
    if not 2 <= period <= len(places):
        raise InputError(
            f"attention-every: found {period}, expected 2 to the {len(places)} attention layers of the model; "
            f"nearest: {min(max(period, 2), len(places))}"
        )
    own = next((name for name in spec.counts if isinstance(spec.blocks[name], kinds.RECURRENT)), None)
    names = spec.sequence()
    blocks: dict[str, kinds.Layer] = {}
    for index, (number, name) in enumerate(places):
        if index % period == period - 1:
            continue
        if own is None:
            names[number] = f"{name}.linear"
            blocks[names[number]] = _linear(spec.blocks[name])
        else:
            names[number] = own
    return relayer(spec, names, blocks)


def has_recurrent(spec: ModelSpec) -> bool:
    """Whether any layer carries recurrent state."""
    return any(has_kind(spec.blocks[name], kinds.RECURRENT) for name in spec.counts)


def _linear(block: kinds.Layer) -> kinds.Lightning:
    for layer in branches(block):
        match layer:
            case kinds.FullAttention() | kinds.SlidingWindow() | kinds.ChunkedAttention() | kinds.CompressedSparse():
                return kinds.Lightning(layer.query_heads, layer.head_dim)
            case kinds.LatentAttention():
                return kinds.Lightning(layer.query_heads, layer.v_head_dim or layer.nope_head_dim or 128)
    raise AssertionError("an attention layer has an attention mixer")


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
