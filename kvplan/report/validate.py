"""A validation for people: the verdict table, what the device is, the plot, and a progress bar while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvplan.errors import InputError
from kvplan.files import write_atomic
from kvplan.report.console import plain_table, stdout
from kvplan.units import both, tokens
from kvplan.validate.checks import Check, DeviceFacts, Figure, Result

_STYLES = {"pass": "green", "fail": "bold red", "info": "", "skipped": "dim"}
_WORDS = {"pass": "pass", "fail": "FAIL", "info": "-", "skipped": "skipped"}
_BYTES_A_SECOND = 1e9
_TERA = 1e12
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr while the run lasts; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, description=text, advance=1)


def print_result(result: Result) -> None:
    """Print the table of predicted and measured figures, then the verdict."""
    console = stdout()
    _device(console, result.device, result.versions)
    console.print()
    for section in dict.fromkeys(check.section for check in result.checks):
        _section(console, section, [row for row in result.checks if row.section == section])
    if result.notes:
        console.print(Text("Notes", style="bold"))
        for note in result.notes:
            console.print(f"- {note}")
        console.print()
    console.print(Text(result.verdict, style="bold" if result.exit_code == 0 else "bold red"))


def _device(console: Console, device: DeviceFacts, versions: dict[str, str]) -> None:
    console.print(Text(f"{device.name}: {both(device.total_bytes)}, {both(device.free_bytes)} free", style="bold"))
    facts = [
        None if device.compute_capability is None else f"sm_{''.join(map(str, device.compute_capability))}",
        None if device.multiprocessors is None else f"{device.multiprocessors} multiprocessors",
        None if device.l2_bytes is None else f"L2 {both(device.l2_bytes)}",
        None if device.driver is None else f"driver {device.driver}",
        None if device.power_limit_watts is None else f"{device.power_limit_watts:.0f} W",
        None if device.clock_mhz is None else f"{device.clock_mhz} MHz",
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    console.print(", ".join(fact for fact in facts if fact))


def _section(console: Console, title: str, rows: list[Check]) -> None:
    """One section's rows under their case, and why rows were skipped."""
    table = plain_table(title)
    for heading in ("predicted", "measured", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    case = ""
    for row in rows:
        if row.status == "skipped":
            continue
        if row.case != case:
            table.add_row(Text(row.case, style="bold"))
            case = row.case
        table.add_row(
            f"  {row.name}", _predicted(row), _figure(row.measured, row.unit), _error(row),
            Text(_WORDS[row.status], style=_STYLES[row.status]),
        )  # fmt: skip
    console.print(table if table.row_count else Text(title, style="bold"))
    for reason in dict.fromkeys(row.note for row in rows if row.status == "skipped"):
        names = [f"{row.case} {row.name}".strip() for row in rows if row.status == "skipped" and row.note == reason]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        console.print(Text(f"skipped: {names[0]}{more}: {reason}", style="dim"))
    for note in dict.fromkeys(row.note for row in rows if row.note and row.status != "skipped"):
        console.print(f"- {note}")
    console.print()


def _predicted(row: Check) -> str:
    """The prediction behind its tolerance: `= 16 B`, `<= 0.0001`, `+-15% 30.0 us`; bare where it isn't judged."""
    text = _figure(row.predicted, row.unit)
    if not row.judged:
        return text
    marks = {"equal": "=", "at most": "<=", "at least": ">=", "within": f"+-{row.tolerance:.1%}".replace(".0%", "%")}
    return f"{marks[row.rule]} {text}"


def _figure(value: Figure | None, unit: str) -> str:
    """A figure with its unit. Bytes are whole numbers, so that an error of one byte shows."""
    if value is None:
        return "-"
    if unit == "B/s":
        return f"{value / _BYTES_A_SECOND:,.1f} GB/s"
    if unit == "FLOP/s":
        return f"{value / _TERA:,.3f} TFLOP/s"
    if unit == "s":
        return f"{value * 1e6:,.1f} us"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.2g}" if unit == "max abs error" else f"{value:.3f}"
    text = f"{value:.0f}" if isinstance(value, float) else tokens(value)
    return f"{text} B" if unit == "B" else text


def _error(row: Check) -> str:
    error = row.error
    if error is None or not row.judged:
        return ""
    if row.rule == "within":
        return f"{error:+.1%}"
    return "" if row.rule in ("at most", "at least") else f"{error:+,}" if error else "0"


def draw_plot(result: Result, path: Path) -> None:
    """Draw bandwidth against length and the capacity fill. Raises InputError without matplotlib or for a bad name."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"--plot: found {str(path)!r}, expected a file that ends in {', '.join(PLOT_SUFFIXES)}")
    try:
        import matplotlib
    except ImportError:
        raise InputError("--plot: found no matplotlib, expected it installed: pip install 'kvplan-llm[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    figure = Canvas(figsize=(11, 4.5), layout="constrained")
    speed, fill = figure.subplots(1, 2)
    for series in result.series:
        if series.y_label == "blocks":
            fill.plot(series.x, series.y, marker=".", label=series.name)
        elif series.x_label == "tokens a request":
            rates = [rate / _BYTES_A_SECOND for rate in series.y]
            spread = [value / _BYTES_A_SECOND for value in series.spread] or None
            speed.errorbar(series.x, rates, yerr=spread, marker="o", capsize=3, label=series.name)
    if result.profile is not None:
        ceiling = result.profile.copy_bytes_per_second / _BYTES_A_SECOND
        speed.axhline(ceiling, linestyle="--", color="grey", label="copy ceiling")
    speed.set(xscale="log", xlabel="tokens a request", ylabel="GB/s", title=f"Decode reads, {result.device.name}")
    speed.set_ylim(bottom=0)
    fill.set(xlabel="requests admitted", ylabel="blocks held", title="Capacity fill until refusal")
    fill.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (speed, fill):
        if axis.has_data():
            axis.legend(fontsize=8)
    write_atomic(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150))
