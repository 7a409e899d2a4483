"""kvplan: how many tokens and requests fit, and how fast their KV cache is read."""

__version__ = "0.1.0"
