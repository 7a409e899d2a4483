"""vLLM's rules as data: what one release does, read from rules.yaml beside this file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, show
from kvplan.record import record

_VERSION = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){0,3})(?:[.+-]?(?:post|rc|dev|a|b)[0-9a-z.+]*)*")

Release = tuple[int, ...]


@cache
def load_data(name: str) -> dict[str, Any]:
    """The parsed data file of that name in this folder."""
    import yaml

    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


def parse_release(text: str) -> Release:
    """`0.32`, `v0.20.1` or `0.20.2rc1.dev249` as three integers. Raises InputError."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"--engine: found vllm@{show(text)[1:-1]}, expected a release such as vllm@{default_version()}"
        )
    numbers = tuple(int(number) for number in match.group(1).split("."))
    return (*numbers, 0, 0)[:3]


def default_version() -> str:
    """The release meant by `--engine vllm`."""
    return str(load_data("rules.yaml")["default"])


def known_releases() -> list[str]:
    """The releases whose rules are told apart, oldest first."""
    return [str(release) for release in load_data("rules.yaml")["releases"]]


@record
class Rules:
    """The rules of one release. `values` has one value a rule name; the tables don't depend on the release."""

    version: str
    values: Mapping[str, Any]
    tables: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def _nearest(release: Release) -> str:
    """The last known release not after `release`, else the first one known."""
    known = known_releases()
    not_after = [text for text in known if parse_release(text) <= release]
    return not_after[-1] if not_after else known[0]


@cache
def rules_for(version: str | None) -> Rules:
    """The rules of a release; those of the nearest known one, with a warning, where it isn't known.

    `latest`, `default` and None mean the default release. Raises InputError for what is no version.
    """
    data = load_data("rules.yaml")
    asked = default_version() if version is None or version.lower() in ("latest", "default", "") else version
    release = parse_release(asked)
    chosen, warnings = _nearest(release), []
    if parse_release(chosen) != release:
        warnings.append(f"vLLM {asked} is not a release kvplan knows; the nearest known one, {chosen}, is used")
    if release > parse_release(data["read_until"]):
        warnings.append(f"vLLM {chosen} is planned with the rules read in {data['read_until']}")
    at = parse_release(chosen)
    values = {}
    for name, steps in data["rules"].items():
        valid = [step["value"] for step in steps if parse_release(str(step.get("since", "0.0"))) <= at]
        values[name] = valid[-1]
    tables = {key: table for key, table in data.items() if key not in ("rules", "releases", "default", "read_until")}
    return Rules(chosen, values, tables, tuple(warnings))
