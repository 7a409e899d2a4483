"""Weights of the MLPs: dense, routed experts, shared experts, routers, and which layer has which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.spec.parameters.fields import Fields, UnknownSizeError, linear


@dataclass(frozen=True)
class FeedForward:
    """Weights of one layer's MLP by part. `idle` are the expert weights one token doesn't touch."""

    dense: int = 0
    experts: int = 0
    shared: int = 0
    router: int = 0
    idle: int = 0

    def __add__(self, other: FeedForward) -> FeedForward:
        return FeedForward(
            self.dense + other.dense,
            self.experts + other.experts,
            self.shared + other.shared,
            self.router + other.router,
            self.idle + other.idle,
        )


EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "ffn_config.moe_num_experts")
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts",
    "ffn_config.moe_top_k",
)  # fmt: skip
EXPERT_WIDTH = (
    "moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size", "ffn_config.ffn_hidden_size",
)  # fmt: skip
DENSE_WIDTH = (
    "intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "ffn_dim",
    "decoder_ffn_dim", "d_ff", "n_inner",
)  # fmt: skip
LATENT_WIDTH = ("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size")


def mlp(f: Fields, inputs: int, width: int, bias: bool = False) -> int:
    """One MLP: up and down, and a gate where the family has gated MLPs."""
    ups = 1 if f.rules.mlp == "plain" and not gated(f) else 2
    return ups * linear(inputs, width, bias) + linear(width, inputs, bias)


def gated(f: Fields) -> bool:
    """T5 and OpenELM say in the config whether the MLP is gated."""
    projection = f.get("feed_forward_proj")
    return f.flag("ffn_with_glu") is True or (isinstance(projection, str) and projection.startswith("gated"))


def mlp_bias(f: Fields) -> bool:
    """Whether the dense MLP's projections carry biases."""
    if f.flag("no_bias") is True:
        return False
    named = f.flag("mlp_bias", "use_mlp_bias", "use_bias", "bias")
    return f.rules.mlp_bias if named is None else named


def dense_width(f: Fields, layer: int) -> int:
    """Width of the dense MLP of one layer. Raises UnknownSizeError when the config leaves it out."""
    listed = _listed_width(f, layer)
    if listed is not None:
        return listed
    if f.get("block_auto_adjust_ff_dim") is not None:
        return _lfm2_width(f)
    if not has_experts(f) and f.find("shared_intermediate_size"):  # Granite 4 without experts keeps the shared MLP
        return f.need("shared_intermediate_size")
    width = f.at(layer, *DENSE_WIDTH)
    if width:
        return width // f.rules.mlp_divisor
    factor = f.find("expansion_ratio") or f.rules.mlp_factor
    proj = f.get("ffn_proj_factor")
    if factor is None and isinstance(proj, float) and 0 < proj < 100:  # xLSTM rounds up to its multiple
        multiple = f.find("ffn_round_up_to_multiple_of") or 64
        return -(-int(proj * f.hidden) // multiple) * multiple
    if factor is None:
        raise UnknownSizeError("intermediate_size")
    return factor * f.hidden


def _listed_width(f: Fields, layer: int) -> int | None:
    """Widths given as multiples of the hidden size, one a layer (OpenELM, Nemotron-NAS); None elsewhere."""
    multipliers = f.items("ffn_multipliers")
    if multipliers:
        divisor = f.find("ffn_dim_divisor") or 256
        return _made_divisible(_openelm_multiplier(f, multipliers, layer) * f.hidden, divisor)
    blocks = f.items("block_configs")
    if blocks is None:
        return None
    try:
        multiple = blocks[layer]["ffn"]["ffn_mult"]
        width = int(2 * float(multiple) * f.hidden / 3)
    except (IndexError, KeyError, TypeError, ValueError):
        raise UnknownSizeError("block_configs") from None
    return -(-width // 256) * 256


def _openelm_multiplier(f: Fields, multipliers: list[Any], layer: int) -> float:
    """One multiplier a layer, or the first and last of an even ramp rounded to two decimals."""
    layers = f.need("num_transformer_layers")
    if not all(isinstance(value, (int, float)) and 0 < value < 100 for value in multipliers):
        raise UnknownSizeError("ffn_multipliers")
    if len(multipliers) == layers:
        return float(multipliers[layer])
    if len(multipliers) != 2:
        raise UnknownSizeError("ffn_multipliers")
    first, last = float(multipliers[0]), float(multipliers[1])
    return round(first + (last - first) * layer / max(1, layers - 1), 2)


def _made_divisible(width: float, divisor: int) -> int:
    rounded = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * width else rounded


def _lfm2_width(f: Fields) -> int:
    width = f.need("block_ff_dim", "intermediate_size")
    if f.flag("block_auto_adjust_ff_dim") is not True:
        return width
    width = int(2 * width / 3)
    multiplier = f.get("block_ffn_dim_multiplier")
    if isinstance(multiplier, (int, float)) and not isinstance(multiplier, bool) and 0 < multiplier < 100:
        width = int(multiplier * width)
    multiple = f.need("block_multiple_of")
    return -(-width // multiple) * multiple


def has_experts(f: Fields) -> bool:
    """Whether the model routes to experts. Raises UnknownSizeError when it does and their number is missing."""
    value = f.get(*EXPERTS)
    if value is None and f.get(*EXPERT_WIDTH[:2], *TOP_K):
        raise UnknownSizeError(EXPERTS[0])
    return any(value) if isinstance(value, list) else bool(f.find(*EXPERTS))


def sparse_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers have routed experts, by the explicit list, else by the period or the leading dense layers."""
    if not has_experts(f):
        return [False] * layers
    kinds = f.items("mlp_layer_types")
    if kinds is not None:
        return [kind != "dense" for kind in kinds[:layers]] + [True] * (layers - len(kinds))
    flags = f.items("moe_layer_freq")
    if flags is not None:
        return [bool(flag) for flag in flags[:layers]] + [True] * (layers - len(flags))
    listed = f.items("moe_layers") or f.items("moe_layers_enum")
    if listed is not None:
        return [index in listed for index in range(layers)]
    return [_is_sparse(f, index) for index in range(layers)]


def _is_sparse(f: Fields, index: int) -> bool:
    period = f.find("expert_layer_period")
    if period:
        return index % period == (f.find("expert_layer_offset") or 0)
    only_dense = f.items("mlp_only_layers")
    if only_dense is not None and index in only_dense:
        return False
    leading = f.find("first_k_dense_replace", "num_dense_layers", "dense_mlp_idx")
    if index < (f.rules.first_dense if leading is None else leading):
        return False
    frequency = f.find("moe_layer_freq") or 1
    start = f.get("moe_layer_start_index")
    end = f.get("moe_layer_end_index")
    if (isinstance(start, int) and index < start) or (isinstance(end, int) and 0 <= end < index):
        return False
    step = f.find("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    return index % frequency == 0 and (index + 1) % step == 0


def dense_mlp(f: Fields, layer: int, widths: int = 1) -> FeedForward:
    """A layer's dense MLP, `widths` times as wide as the config's width."""
    return FeedForward(dense=mlp(f, f.hidden, widths * dense_width(f, layer), mlp_bias(f)))


def layer_mlp(f: Fields, layer: int, sparse: bool, reads_shared_cache: bool) -> FeedForward:
    """The MLP of one layer: dense or sparse, or both in the families that have both in a layer."""
    if f.rules.mlp == "none":
        return FeedForward()
    if f.rules.extra == "longcat_flash":  # experts beside every other of the dense MLPs
        return dense_mlp(f, 0) + (expert_mlp(f, 0) if layer % 2 == 0 else FeedForward())
    if f.rules.extra == "gemma4":
        wide = reads_shared_cache and f.flag("use_double_wide_mlp") is True
        dense = dense_mlp(f, layer, 2 if wide else 1)
        return dense + expert_mlp(f, layer) if f.flag("enable_moe_block") is True else dense
    return expert_mlp(f, layer) if sparse else dense_mlp(f, layer)


def expert_mlp(f: Fields, layer: int) -> FeedForward:
    """A layer's routed and shared experts, their router, and the projections into a narrower expert space."""
    h = f.hidden
    count = f.at(layer, *EXPERTS)
    top_k = f.at(layer, *TOP_K)
    if not count or not top_k:
        raise UnknownSizeError(EXPERTS[0])
    width = f.at(layer, *EXPERT_WIDTH) or f.need("intermediate_size")
    latent = f.find(*LATENT_WIDTH)
    inner = latent or h
    each = mlp(f, inner, width, f.rules.expert_bias)
    empty = f.find("zero_expert_num") or 0  # LongCat routes some tokens to experts without weights
    busy = top_k * count // (count + empty)
    router = linear(h, count + empty, f.rules.router_bias)
    through = 0
    if latent:
        norms = max(f.rules.latent_norms, int(f.flag("latent_moe_use_norm") is True))
        through = 2 * linear(h, latent) + norms * f.norm(latent)
    return FeedForward(
        experts=count * each,
        idle=max(0, count - busy) * each,
        router=router,
        shared=_shared(f, layer, width) + through,
    )


def _shared(f: Fields, layer: int, expert_width: int) -> int:
    width = f.at(layer, "shared_expert_intermediate_size", "share_expert_dim")
    number = f.at(layer, "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
    if width is None:
        number = f.rules.shared_experts if number is None else number
        each = f.find("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")
        width = number * (each or expert_width)
    own = f.find("shared_intermediate_size") if not number else None
    width = own or width
    if not width:
        return 0
    return mlp(f, f.hidden, width) + (f.hidden if f.rules.shared_gate else 0)
