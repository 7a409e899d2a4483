"""The state shapes of recurrent layers, from the fields each family gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import show
from kvplan.spec.importers.fields import STATE_DTYPE, WIDTH, Fields
from kvplan.spec.layers import (
    GatedDelta,
    Kda,
    Lightning,
    Mamba1,
    Mamba2,
    Mlstm,
    Recurrent,
    RgLru,
    Rwkv,
    StateDtype,
)

CONVOLUTIONS = ("linear_attn_config", "linear_conv_kernel_dim", "short_conv_kernel_size")
_DTYPES: dict[str, StateDtype] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}


def state_dtype(fields: Fields) -> StateDtype | None:
    """The recurrent state's own dtype where the file names one."""
    name = fields.present(STATE_DTYPE)
    if name is None:
        return None
    text = (fields.text(name) or "").removeprefix("torch.")
    if text == "auto":
        return None
    if text not in _DTYPES:
        raise fields.bad(name, show(text), "float32, bfloat16, float16 or auto")
    return _DTYPES[text]


def linear(fields: Fields) -> Recurrent:
    """The recurrent mixer of the family. Raises UnsupportedArchitectureError where the family has none."""
    kind = fields.family.linear
    if kind is None:
        raise fields.unsupported("its layer list names recurrent layers, whose state this family doesn't define")
    if fields.family.linear_without_conv and not fields.present(CONVOLUTIONS):
        kind = fields.family.linear_without_conv
    return _BUILD[kind](fields, state_dtype(fields))


def _hidden(fields: Fields) -> int:
    return fields.need("the hidden width", *WIDTH)


def _kernel(fields: Fields) -> int:
    return fields.need("the convolution", "mamba_d_conv", "conv_kernel", "conv_kernel_size", "d_conv", low=2)


def _state_size(fields: Fields) -> int:
    return fields.need("the state size", "mamba_d_state", "ssm_state_size", "state_size", "d_state")


def _expanded(fields: Fields) -> int:
    expand = fields.need("the expansion", "mamba_expand", "expand")
    return expand * _hidden(fields)


def _mamba1(fields: Fields, dtype: StateDtype | None) -> Mamba1:
    """d_inner is the file's own inner width where the family has one (falcon-mamba's `expand` is a leftover)."""
    own = fields.whole("intermediate_size") if fields.family.layers == "linear" else None
    inner = own or _expanded(fields)
    return Mamba1(inner, _state_size(fields), _kernel(fields), dtype)


def _plamo(fields: Fields, dtype: StateDtype | None) -> Mamba1:
    """PLaMo 2: heads of a fixed width, and a convolution over the inner width alone."""
    heads = fields.need("the state heads", "mamba_num_heads")
    width = fields.need("the head width", "hidden_size_per_head")
    return Mamba1(heads * width, _state_size(fields), _kernel(fields), dtype)


def _mamba2(fields: Fields, dtype: StateDtype | None) -> Mamba2:
    inner = fields.whole("mamba_d_ssm")
    heads = fields.whole("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    width = None
    for name in ("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim" if fields.get("num_heads") else ""):
        if fields.get(name) not in (None, "auto"):
            width = fields.whole(name)
            break
    if heads is None and width is None:
        heads = fields.need("the number of state heads", "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    total = inner or (heads * width if heads and width else _expanded(fields))
    known = heads or width or 1
    if total % known or (heads and width and heads * width != total):
        raise fields.unsupported(f"the inner width {total} isn't its {heads or '?'} heads of {width or '?'} each")
    groups = fields.need("the state groups", "n_groups", "mamba_n_groups", "mamba_ngroups")
    return Mamba2(heads or total // known, width or total // known, _state_size(fields), groups, _kernel(fields), dtype)


def _gated_delta(fields: Fields, dtype: StateDtype | None) -> GatedDelta:
    return GatedDelta(
        key_heads=fields.need("the key heads", "linear_num_key_heads"),
        key_dim=fields.need("the key width", "linear_key_head_dim"),
        value_heads=fields.need("the value heads", "linear_num_value_heads"),
        value_dim=fields.need("the value width", "linear_value_head_dim"),
        conv_kernel=fields.need("the convolution", "linear_conv_kernel_dim", low=2),
        state_dtype=dtype,
    )


def _kda(fields: Fields, dtype: StateDtype | None) -> Kda:
    """Kimi nests the shape in `linear_attn_config`; Ling falls back on the attention heads of its file."""
    inner = fields.block("linear_attn_config")
    if inner is not None:
        return Kda(
            inner.need("the heads", "num_heads"),
            inner.need("the head width", "head_dim"),
            inner.need("the convolution", "short_conv_kernel_size", low=2),
            dtype,
        )
    return Kda(
        fields.need("the heads", "linear_num_heads", "num_attention_heads"),
        fields.need("the head width", "linear_head_dim", "head_dim"),
        fields.need("the convolution", "linear_conv_kernel_dim", "short_conv_kernel_size", low=2),
        dtype,
    )


def _lightning(fields: Fields, dtype: StateDtype | None) -> Lightning:
    heads = fields.need("the query heads", "num_attention_heads")
    width = fields.whole("head_dim")
    hidden = _hidden(fields) if width is None else 0
    if hidden % heads:
        raise fields.unsupported(f"head_dim is missing and {hidden} / {heads} heads isn't whole")
    return Lightning(heads, width or hidden // heads, dtype)


def _rg_lru(fields: Fields, dtype: StateDtype | None) -> RgLru:
    width = fields.whole("lru_width") or _hidden(fields)
    return RgLru(width, fields.need("the convolution", "conv1d_width", low=2), dtype)


def _rwkv4(fields: Fields, dtype: StateDtype | None) -> Rwkv:
    width = fields.whole("attention_hidden_size") or _hidden(fields)
    return Rwkv(_hidden(fields), 1, width, matrix_state=False, state_dtype=dtype)


def _rwkv(fields: Fields, dtype: StateDtype | None) -> Rwkv:
    width = fields.need("the head width", "head_size", "head_dim")
    total = fields.whole("attention_hidden_size") or _hidden(fields)
    if total % width:
        raise fields.unsupported(f"{total} isn't a whole number of heads of {width}")
    return Rwkv(_hidden(fields), total // width, width, state_dtype=dtype)


def _mlstm(fields: Fields, dtype: StateDtype | None) -> Mlstm:
    heads, hidden = fields.need("the heads", "num_heads"), _hidden(fields)
    widths = []
    for name, default in (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0)):
        factor: Any = fields.get(name)
        factor = default if factor is None else factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 64:
            raise fields.bad(name, factor, "a number above 0")
        width = hidden * factor / heads
        if width != int(width) or width < 1:
            raise fields.unsupported(f"{name} {factor} x {hidden} / {heads} heads isn't whole")
        widths.append(int(width))
    return Mlstm(heads, widths[0], widths[1], dtype)


_BUILD: dict[str, Callable[[Fields, StateDtype | None], Recurrent]] = {
    "mamba1": _mamba1,
    "plamo": _plamo,
    "mamba2": _mamba2,
    "gated_delta": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
    "rg_lru": _rg_lru,
    "rwkv4": _rwkv4,
    "rwkv": _rwkv,
    "mlstm": _mlstm,
}
