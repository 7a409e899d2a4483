"""Which device holds which layer: llama.cpp splits by layer, and KV follows its layer's weights.

Source: ggml-org/llama.cpp src/llama-model.cpp, load_tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

HOST = -1


def layer_devices(layers: int, devices: int, gpu_layers: int | None, shares: Sequence[float] = ()) -> list[int]:
    """The device of each layer, HOST (-1) for those that stay in host memory.

    The last `gpu_layers` layers go to devices (None: all), one place more counting the output layer; `shares` weigh the
    devices, equal where there are none.
    """
    wanted = layers + 1 if gpu_layers is None or gpu_layers < 0 else gpu_layers
    active, first = min(wanted, layers + 1), max(layers - wanted, 0)
    weights = [Fraction(str(share)) for share in shares[:devices]] or [Fraction(1)] * devices
    weights += [Fraction(0)] * (devices - len(weights))
    total = sum(weights)
    edges = [edge / total for edge in accumulate(weights)]
    return [
        HOST if index < first else min(bisect_right(edges, Fraction(index - first, active)), devices - 1)
        for index in range(layers)
    ]
