"""Quantization: payload bits, scales counted apart, residuals kept in 16 bits. The formats are data (formats.yaml)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from kvplan.cache.formats import Format, TokenGroups
from kvplan.cache.techniques.base import Technique
from kvplan.record import record

TECHNIQUE = Technique(
    number=8,
    name="quantization",
    title="Quantization of the cache",
    term="bits",
    stored="bits / 16 plus scales",
    read="the same bytes",
    computed="unchanged, plus dequantization",
    needs_training=False,
    kinds=(
        "full_attention",
        "sliding_window",
        "chunked_attention",
        "latent_attention",
        "compressed_sparse",
        "cross_attention",
    ),
    untouched="recurrent and convolution state, Quest's page summaries, layers skipped by request",
    metadata="scales per group or token and head: 2 bits are 3 at group 32; KIVI keeps a 16-bit tail of 128 tokens",
    quality="8 bits mostly harmless, 4 and below need an evaluation on the task",
    kernel="an attention kernel that reads the format; fp8 decode slope on H100 is 54 % of 16 bits, not 50 %",
    headline="KIVI 2.6x is peak memory with weights: 42 GB of 16-bit cache by 13.5 GB; the cache alone 5.33x at most",
    source="arXiv 2402.02750 (KIVI); vLLM 0.33 kv_cache_interface.py; vLLM post 2026-04-22 (fp8 slope)",
    option="--kv-cache-dtype fp8",
)


def effective_bits(bits: int, metadata_bits: int, group: int) -> Fraction:
    """Bits a value with its metadata: bits + metadata_bits / group."""
    return bits + Fraction(metadata_bits, group)


def outlier_bits(bits: int, outlier_share: Fraction, outlier_entry_bits: int = 32) -> Fraction:
    """Bits a value when a share of outliers is kept sparse: value and index of `outlier_entry_bits` (KVQuant)."""
    return bits + outlier_share * outlier_entry_bits


@record
class Residual:
    """How a token-grouped dtype splits n tokens: those grouped and those left in 16 bits, for K and for V."""

    keys_grouped: int
    keys_full: int
    values_grouped: int
    values_full: int


def residual(groups: TokenGroups, n: int) -> Residual:
    """KIVI's rule: keys keep n mod R tokens in 16 bits, values the last min(n, R).

    A window no longer than R quantizes no value at all.
    """
    keys, values = n % groups.residual, min(n, groups.residual)
    return Residual(n - keys, keys, n - values, values)


def slot_bytes(dtype: Format, width: int) -> int:
    """Bytes of K and V of one token and KV head of `width` values each, scales included, residual left out."""
    if dtype.attention is not None:
        return dtype.attention.size(1, width, width)
    assert dtype.tokens is not None
    return -(-int(2 * width * dtype.effective_bits(width)) // 8)


def skip_capacity_ratio(dtype: Format, layers: int, skipped: int, width: int) -> Fraction:
    """How many times more tokens fit than in 16 bits when `skipped` of `layers` equal layers stay in 16 bits."""
    full = 4 * width
    return Fraction(layers * full, (layers - skipped) * slot_bytes(dtype, width) + skipped * full)


def cache_for_peak_ratio(weight_bytes: int, ratio: float, kept: Fraction) -> int:
    """Bytes of 16-bit cache beside `weight_bytes` at which peak memory shrinks `ratio` times.

    (weights + x) / (weights + kept x) = ratio; `kept` is the quantized share of the cache, at most 1 / ratio.
    """
    return round(weight_bytes * (ratio - 1) / (1 - ratio * float(kept)))


@record
class SignedCodes:
    """Symmetric signed codes of one group: value = code x scale. Payload and scale bits are counted apart."""

    codes: tuple[int, ...]
    scale: float
    payload_bits: int
    scale_bits: int


def quantize_signed(values: Sequence[float], bits: int, scale_bits: int = 16) -> SignedCodes:
    """Round `values` to signed `bits`-bit codes, the largest magnitude at 2^(bits-1) - 1."""
    top = 2 ** (bits - 1) - 1
    scale = max(abs(value) for value in values) / top
    codes = tuple(round(value / scale) if scale else 0 for value in values)
    return SignedCodes(codes, scale, len(values) * bits, scale_bits)
