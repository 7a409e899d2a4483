"""Accelerators for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kvplan.hardware.accelerators import Accelerator
from kvplan.report.console import plain_table, stdout
from kvplan.units import both, gib


def print_gpus(devices: Sequence[Accelerator]) -> None:
    """Print one line a device."""
    table = plain_table("slug", "name")
    table.columns[0].no_wrap = True
    for heading in ("memory", "GB/s", "bf16 TFLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for device in devices:
        compute = "-" if device.bf16_tflops is None else f"{device.bf16_tflops:g}"
        table.add_row(device.slug, device.name, gib(device.memory_bytes), f"{device.memory_bandwidth_gbs:g}", compute)
    stdout().print(table)


def print_gpu(device: Accelerator) -> None:
    """Print one device, figure by figure."""

    def known(value: float | None, unit: str) -> str:
        return "unknown" if value is None else f"{value:g} {unit}"

    rows = Table.grid(padding=(0, 2))
    rows.add_row("name", device.name)
    rows.add_row("slug", device.slug)
    rows.add_row("aliases", ", ".join(device.aliases) or "none")
    rows.add_row("memory", f"{both(device.memory_bytes)}, {device.memory_source}")
    rows.add_row("sold as", f"{device.memory_gb} GB {device.memory_type}")
    rows.add_row("memory bandwidth", known(device.memory_bandwidth_gbs, "GB/s"))
    rows.add_row(
        "dense bf16 / fp8 / fp4",
        " / ".join(known(rate, "TFLOPs") for rate in (device.bf16_tflops, device.fp8_tflops, device.fp4_tflops)),
    )
    rows.add_row("PCIe, one way", known(device.pcie_gbs, "GB/s"))
    rows.add_row("device link, both ways", known(device.device_link_gbs, "GB/s"))
    rows.add_row("CPU link, both ways", known(device.c2c_gbs, "GB/s"))
    rows.add_row("source", "; ".join(device.source))
    if device.note:
        rows.add_row("note", device.note)
    stdout().print(rows)
