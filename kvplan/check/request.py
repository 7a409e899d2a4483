"""What is to be checked, and what the command line gives to every expectation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Given:
    """What the command line gives to every expectation. `variables` are `--set VAR=value`."""

    gpu: str | None = None
    model: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    model_dir: Path | None = None
    hub: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Request:
    """What is to be checked. `baseline` replaces the one that a file names; with `update` it is written instead."""

    files: tuple[Path, ...] = ()
    manifests: tuple[Path, ...] = ()
    given: Given = field(default_factory=Given)
    baseline: Path | None = None
    update: bool = False
