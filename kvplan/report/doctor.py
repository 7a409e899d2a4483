"""The state of an installation for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from kvplan.report.console import plain_table, stdout
from kvplan.units import both, counted
from kvplan.validate.installation import DISTRIBUTION, Installation, Package


def print_installation(found: Installation) -> None:
    """Print the verdict, the extras, then GPU, data and settings."""
    console = stdout()
    verdict = "ready" if found.healthy else "damaged"
    console.print(Text(f"kvplan {found.version} is {verdict} (Python {found.python}, {found.platform}).", style="bold"))
    console.print()
    if found.extras:
        table = plain_table("extra", "state", "enables", "packages")
        for extra in found.extras:
            state = "installed" if extra.installed else "missing"
            table.add_row(extra.name, state, extra.enables, ", ".join(map(_package, extra.packages)))
        console.print(table)
        missing = [extra.name for extra in found.extras if not extra.installed]
        if missing:
            console.print(f"Add one: pip install '{DISTRIBUTION}[{missing[0]}]'")
    else:
        console.print(f"The package {DISTRIBUTION} is not installed here, so its extras are unknown.")
    console.print()
    console.print(_facts(found))


def _package(package: Package) -> str:
    if package.installed is None:
        return f"{package.name} missing"
    short = "" if package.enough else f" (needs {package.required})"
    return f"{package.name} {package.installed}{short}"


def _facts(found: Installation) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_row("GPU", _gpu(found))
    rows.add_row("driver", found.gpu.driver or "unknown")
    data = f"{counted(found.registry.models, 'model')}, {counted(found.registry.accelerators, 'accelerator')}"
    rows.add_row("data", f"{data}, index current" if found.registry.current else str(found.registry.problem))
    for setting in found.settings:
        rows.add_row(setting.name, f"{setting.value or 'not set'} ({setting.meaning})")
    return rows


def _gpu(found: Installation) -> str:
    if found.gpu.unknown:
        return f"unknown: {found.gpu.unknown}"
    names = [
        each.name if each.memory_bytes is None else f"{each.name}, {both(each.memory_bytes)}"
        for each in found.gpu.devices
    ]
    return "; ".join(names) or "none"
