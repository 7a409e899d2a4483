"""`kvplan gpus`: the accelerators kvplan knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvplan.cli.common import JSON_OPTION, complete_gpu, print_json

app = typer.Typer(help="Accelerators: memory, bandwidth, links, with sources.", no_args_is_help=True)


@app.command("list")
def list_gpus(as_json: JSON_OPTION = False) -> None:
    """List every known accelerator."""
    from kvplan.hardware.accelerators import all_accelerators

    devices = all_accelerators()
    if as_json:
        print_json([{**asdict(device), "memory_bytes": device.memory_bytes} for device in devices])
        return
    from kvplan.report.gpus import print_gpus

    print_gpus(devices)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name, slug or alias such as h100.", autocompletion=complete_gpu)],
    as_json: JSON_OPTION = False,
) -> None:
    """Show one accelerator with the sources of its figures."""
    from kvplan.hardware.accelerators import find

    device = find(name, "name")
    if as_json:
        print_json({**asdict(device), "memory_bytes": device.memory_bytes})
        return
    from kvplan.report.gpus import print_gpu

    print_gpu(device)
