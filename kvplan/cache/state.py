"""State that does not grow with the context: recurrent matrices, convolution columns, token shifts, compressor tails.

Shapes: techniques as implemented in vLLM 0.33 model_executor/layers/mamba/mamba_utils.py and SGLang 0.5.23
configs/mamba_utils.py (kernel - 1 convolution columns); DeepSeek V4's compressor in vLLM 0.33
models/deepseek_v4/compressor.py.
"""

from __future__ import annotations

from typing import Literal

from kvplan.record import record
from kvplan.spec import layers as kinds

FP32_BYTES = 4


@record
class StatePart:
    """Values of one state tensor of one layer and sequence.

    `precision` says which dtype it takes: `conv` the model's, `recurrent` the state dtype (fp32 unless the
    checkpoint or the user names another), `fixed` always fp32.
    """

    name: str
    values: int
    formula: str
    precision: Literal["conv", "recurrent", "fixed"]


def _conv(columns: int, channels: int, formula: str) -> StatePart:
    return StatePart("conv", columns * channels, f"{columns} columns x {formula}", "conv")


def _recurrent(values: int, formula: str) -> StatePart:
    return StatePart("recurrent", values, formula, "recurrent")


def recurrent_state(layer: kinds.Recurrent) -> tuple[StatePart, ...]:
    """The state tensors of one recurrent layer."""
    match layer:
        case kinds.Mamba1():
            return (
                _conv(layer.conv_kernel - 1, layer.inner, f"{layer.inner} inner"),
                _recurrent(layer.inner * layer.state, f"{layer.inner} inner x {layer.state} state"),
            )
        case kinds.Mamba2():
            inner = layer.heads * layer.head_dim
            channels = inner + 2 * layer.groups * layer.state
            return (
                _conv(
                    layer.conv_kernel - 1,
                    channels,
                    f"({inner} inner + 2 x {layer.groups} groups x {layer.state} state)",
                ),
                _recurrent(inner * layer.state, f"{layer.heads} heads x {layer.head_dim} x {layer.state} state"),
            )
        case kinds.GatedDelta():
            keys, values = layer.key_heads * layer.key_dim, layer.value_heads * layer.value_dim
            return (
                _conv(layer.conv_kernel - 1, 2 * keys + values, f"(2 x {keys} key + {values} value)"),
                _recurrent(values * layer.key_dim, f"{layer.value_heads} heads x {layer.value_dim} x {layer.key_dim}"),
            )
        case kinds.Kda():
            width = layer.heads * layer.head_dim
            return (
                _conv(layer.conv_kernel - 1, 3 * width, f"3 streams x {width}"),
                _recurrent(width * layer.head_dim, f"{layer.heads} heads x {layer.head_dim} x {layer.head_dim}"),
            )
        case kinds.Lightning():
            formula = f"{layer.heads} heads x {layer.head_dim} x {layer.head_dim}"
            return (_recurrent(layer.heads * layer.head_dim**2, formula),)
        case kinds.RgLru():
            return (
                _conv(layer.conv_kernel - 1, layer.width, f"{layer.width} width"),
                _recurrent(layer.width, f"{layer.width} width"),
            )
        case kinds.ShortConv():
            return (_conv(layer.conv_kernel - 1, layer.channels, f"{layer.channels} channels"),)
        case kinds.Rwkv():
            shifts = StatePart(
                "token shift", layer.shift_rows * layer.hidden, f"{layer.shift_rows} rows x {layer.hidden}", "conv"
            )
            if layer.matrix_state:
                formula = f"{layer.heads} heads x {layer.head_dim} x {layer.head_dim}"
                return (shifts, _recurrent(layer.heads * layer.head_dim**2, formula))
            width = layer.heads * layer.head_dim
            return (shifts, _recurrent(3 * width, f"3 vectors x {width}"))
        case kinds.Mlstm():
            values = layer.heads * (layer.key_dim * layer.value_dim + layer.key_dim + 1)
            formula = f"{layer.heads} heads x ({layer.key_dim} x {layer.value_dim} + {layer.key_dim} + 1)"
            return (_recurrent(values, formula),)


def compressor_state(layer: kinds.CompressedSparse) -> tuple[StatePart, ...]:
    """The fp32 rows a DeepSeek V4 compressor keeps until they make an entry: keys and scores of each open block.

    `ratio` rows of 2 x head_dim, twice as many and twice as wide where blocks overlap; ratio 1 pools nothing.
    """
    if layer.ratio is None or layer.ratio == 1 or not layer.owns_compressed:
        return ()
    blocks = 2 if layer.overlap else 1
    widths = [("compressor", layer.head_dim)]
    if layer.indexer is not None and layer.indexer.owns_keys:
        widths.append(("index compressor", layer.indexer.key_dim))
    return tuple(
        StatePart(
            name,
            blocks * layer.ratio * 2 * blocks * width,
            f"{blocks * layer.ratio} rows x {2 * blocks} x {width}",
            "fixed",
        )
        for name, width in widths
    )
