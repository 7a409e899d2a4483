"""The data folders that ship with kvplan: beside the package in a source checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

from kvplan.errors import InputError, show


def data_dir(name: str) -> Path:
    """Return the folder of shipped data called `name`, such as `model_specs`.

    Raises InputError when the installation lacks it.
    """
    package = Path(__file__).resolve().parent
    for place in (package / "_data" / name, package.parent / name):
        if place.is_dir():
            return place
    raise InputError(
        f"{show(name)}: found no such data folder in {package}, expected a complete installation of kvplan"
    )
