"""Weights of the recurrent mixers: state-space, delta-rule, linear attention, convolution."""

from __future__ import annotations

from kvplan.spec.layers import GatedDelta, Kda, Lightning, Mamba1, Mamba2, Mlstm, Recurrent, RgLru, Rwkv, ShortConv
from kvplan.spec.parameters.fields import Fields, UnknownSizeError, linear


def recurrent(f: Fields, layer: Recurrent) -> int:
    """Weights of one recurrent mixer. Raises UnknownSizeError for one whose shapes the config doesn't fix."""
    match layer:
        case Mamba1():
            return _mamba1(f, layer)
        case Mamba2():
            return _mamba2(f, layer)
        case GatedDelta():
            return _gated_delta(f, layer)
        case Kda():
            return _kda(f, layer)
        case Lightning():
            return _lightning(f, layer)
        case RgLru():
            return _rg_lru(f, layer)
        case ShortConv():
            return _short_conv(f, layer)
        case Mlstm():
            return _mlstm(f, layer)
        case Rwkv():
            return _rwkv(f, layer)
    raise UnknownSizeError(layer.kind)


def _conv_bias(f: Fields) -> bool:
    flag = f.flag("mamba_conv_bias", "use_conv_bias")
    return True if flag is None else flag


def _mamba1(f: Fields, layer: Mamba1) -> int:
    inner, state, h = layer.inner, layer.state, f.hidden
    found = f.get("time_step_rank", "mamba_dt_rank")
    rank = -(-h // 16) if found in (None, "auto") else f.need("time_step_rank", "mamba_dt_rank")
    bias = bool(f.flag("mamba_proj_bias", "use_bias"))
    count = inner * state + inner + inner * layer.conv_kernel + (inner if _conv_bias(f) else 0)
    count += linear(h, 2 * inner, bias) + linear(inner, rank + 2 * state) + linear(rank, inner, True)
    count += linear(inner, h, bias)
    return count + (rank + 2 * state if f.rules.ssm_norms == "inner" else 0)


def _mamba2(f: Fields, layer: Mamba2) -> int:
    inner = layer.heads * layer.head_dim
    channels = inner + 2 * layer.groups * layer.state
    bias = bool(f.flag("mamba_proj_bias", "use_bias", "add_bias_linear"))
    count = 3 * layer.heads + channels * layer.conv_kernel + (channels if _conv_bias(f) else 0)
    count += linear(f.hidden, inner + channels + layer.heads, bias) + linear(inner, f.hidden, bias)
    gated = f.flag("mamba_rms_norm")
    return count + (inner if gated or (gated is None and f.rules.ssm_norms == "gated") else 0)


def _gated_delta(f: Fields, layer: GatedDelta) -> int:
    key = layer.key_heads * layer.key_dim
    value = layer.value_heads * layer.value_dim
    count = (2 * key + value) * layer.conv_kernel + 2 * layer.value_heads + layer.value_dim
    return count + linear(f.hidden, 2 * key + 2 * value + 2 * layer.value_heads) + linear(value, f.hidden)


def _kda(f: Fields, layer: Kda) -> int:
    """Forget gate and output gate are low-rank (rank head_dim) unless the config says full rank."""
    width, h = layer.heads * layer.head_dim, f.hidden
    low_rank = linear(h, layer.head_dim) + linear(layer.head_dim, width)
    bailing = f.get("model_type") == "bailing_hybrid"
    forget = linear(h, width) if bailing else low_rank
    full_rank_gate = bailing or f.flag("linear_attn_config.use_full_rank_gate", "use_full_rank_gate") is True
    gate = linear(h, width) if full_rank_gate else low_rank
    count = 3 * linear(h, width) + 3 * width * layer.conv_kernel + layer.heads + width + forget + gate
    return count + linear(h, layer.heads) + layer.head_dim + linear(width, h)


def _lightning(f: Fields, layer: Lightning) -> int:
    """MiniMax-01: fused query, key, value, an output gate of the same width, a norm over it."""
    width = layer.heads * layer.head_dim
    return linear(f.hidden, 3 * width) + linear(f.hidden, width) + linear(width, f.hidden) + width


def _rg_lru(f: Fields, layer: RgLru) -> int:
    """Two input branches, an output, a convolution and two block-diagonal gates, all with biases."""
    width, h = layer.width, f.hidden
    heads = f.need("num_attention_heads")
    block = width // heads
    count = 2 * linear(h, width, True) + linear(width, h, True) + width * (layer.conv_kernel + 1)
    return count + width + 2 * heads * linear(block, block, True)


def _short_conv(f: Fields, layer: ShortConv) -> int:
    """LFM2: three streams in, one out, a depthwise convolution."""
    bias = bool(f.flag("conv_bias"))
    count = layer.channels * (layer.conv_kernel + (1 if bias else 0))
    return count + linear(f.hidden, 3 * layer.channels, bias) + linear(layer.channels, f.hidden, bias)


def _mlstm(f: Fields, layer: Mlstm) -> int:
    query = layer.heads * layer.key_dim
    value = layer.heads * layer.value_dim
    bias = bool(f.flag("use_bias"))
    count = 2 * linear(f.hidden, query, bias) + 2 * linear(f.hidden, value, bias)
    return count + 2 * linear(f.hidden, layer.heads, True) + value + linear(value, f.hidden, bias)


def _rwkv(f: Fields, layer: Rwkv) -> int:
    """RWKV-5: mixes, decay and bonus, five projections and the norm over heads."""
    width, h = layer.heads * layer.head_dim, f.hidden
    return 4 * h + 2 * width + 4 * linear(h, width) + linear(width, h) + 2 * width
