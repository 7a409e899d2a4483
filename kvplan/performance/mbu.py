"""Memory bandwidth utilisation (MBU): what share of the peak a measured decode step reaches."""

from __future__ import annotations


def slope_bandwidth(token_bytes: int, slope_seconds: float) -> float:
    """Bytes a second at which attention reads, from the time one more context token adds to a decode step."""
    return token_bytes / slope_seconds


def mbu(token_bytes: int, slope_seconds: float, peak_bandwidth: float) -> float:
    """That bandwidth over the accelerator's peak, in bytes a second."""
    return slope_bandwidth(token_bytes, slope_seconds) / peak_bandwidth
