"""`kvplan simulate`: a workload on a configuration, over time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kvplan.cli.common import JSON_OPTION, print_json
from kvplan.errors import InputError, show


def simulate(
    scenario: Annotated[
        str,
        typer.Argument(
            help="A scenario file (docs/schemas/scenario.schema.json), or a shipped one such as chat-one-h100."
        ),
    ],
    check: Annotated[bool, typer.Option("--check", help="Only check the file and what it names.")] = False,
    vary: Annotated[
        list[str] | None, typer.Option(help="Compare settings: kv-cache-dtype=bf16,fp8; repeat for combinations.")
    ] = None,
    find: Annotated[str | None, typer.Option(help="max-rate: the greatest rate that meets --slo.")] = None,
    slo: Annotated[str | None, typer.Option(help="Limits for --find: ttft_p99=2s,tpot_p99=50ms.")] = None,
    fit: Annotated[
        Path | None, typer.Option(help="A measured run (CSV): fit the scale of the step time, report the errors.")
    ] = None,
    fit_rows: Annotated[int, typer.Option(min=1, help="How many of its first requests to fit on.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, max=64, help="Runs with consecutive seeds, and their spread.")] = 1,
    scale_rate: Annotated[
        float | None, typer.Option(help="Multiply the rate of a trace or of synthetic arrivals.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take only the first requests.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Step times from a device profile that `kvplan validate` wrote.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw pool, queue and latencies into this PNG or SVG file.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="Write every event: JSON lines, or a Chrome trace into a name ending in .json.")
    ] = None,
    requests: Annotated[Path | None, typer.Option(help="Write one CSV row a request.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Simulate a workload on an engine: pool, reuse, preemption, and what users wait."""
    from kvplan.simulator import study

    path = study.find_scenario(scenario)
    document = study.load_document(path)
    common = study.scaled(document, scale_rate, limit)
    if profile is not None:
        common.append(("step_time.profile", str(profile.resolve())))
    modes = {"--check": check, "--fit": fit is not None, "--find": find is not None}
    runs_only = {"--vary": vary, "--seeds": seeds > 1, "--plot": plot, "--events": events, "--requests": requests}
    _one_of(modes, runs_only)
    if slo is not None and find is None:
        raise InputError("--slo: found it without --find, expected --find max-rate beside it")
    if check:
        study.check(study.changed(document, path, common), path)
        print_json({"scenario": str(path), "valid": True}) if as_json else print(f"{path}: valid")
    elif fit is not None:
        _fit(study.changed(document, path, common), path, fit, fit_rows, as_json)
    elif find is not None:
        _find(study, study.with_settings(document, common), path, find, slo, as_json)
    else:
        combinations = study.parse_vary(vary or [])
        changes = [[*common, *settings] for settings in combinations for _ in range(seeds)]
        if seeds > 1:
            for number, settings in enumerate(changes):
                settings.append(("seed", int(document.get("seed", 0)) + number % seeds))
        named = [dict(settings) for settings in combinations for _ in range(seeds)]
        _runs(study, document, path, changes, named, Files(plot, events, requests), seeds, as_json)


class Files(NamedTuple):
    """Where to write what a single run shows."""

    plot: Path | None
    events: Path | None
    requests: Path | None


def _one_of(modes: dict[str, bool], runs_only: dict[str, Any]) -> None:
    """Refuse what would be ignored: two modes at once, or options of plain runs beside a mode."""
    chosen = [name for name, given in modes.items() if given]
    extra = [*chosen[1:], *(name for name, given in runs_only.items() if given)]
    if chosen and extra:
        raise InputError(f"{extra[0]}: found it beside {chosen[0]}, expected one of them")


def _runs(
    study: Any, document: dict[str, Any], path: Path, changes: list[list[tuple[str, Any]]],
    named: list[dict[str, Any]], files: Files, seeds: int, as_json: bool,
) -> None:  # fmt: skip
    if len(changes) > 1 and any(files):
        name = next(name for name, given in zip(Files._fields, files, strict=True) if given)
        raise InputError(f"--{name}: found {len(changes)} runs to write, expected one (no --vary, no --seeds)")
    scenarios = [study.changed(document, path, settings) for settings in changes]
    if files.plot is not None:
        from kvplan.report.plotting import new_figure

        new_figure(files.plot, 1, 1)  # a name that can't be drawn into is refused before the run
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        outputs = _outputs(study, stack, files, scenarios[0].workload.requests, as_json)
        for scenario, settings in zip(scenarios, named, strict=True):
            runs.append({"settings": settings, **study.run(scenario, path, outputs)})
            if runs[-1]["partial"]:
                break
    if files.plot is not None and outputs.last is not None:
        from kvplan.report.simulate_plot import plot_run

        plot_run(outputs.last.metrics, files.plot)
    _show(study, runs, seeds, as_json)
    if runs[-1]["partial"]:
        raise typer.Exit(130)


def _outputs(study: Any, stack: ExitStack, files: Files, total: int | None, as_json: bool) -> Any:
    from kvplan.report.simulate import Progress

    outputs = study.Outputs(chrome=files.events is not None and files.events.suffix.lower() == ".json")
    for name in ("events", "requests"):
        path: Path | None = getattr(files, name)
        if path is None:
            continue
        try:
            setattr(outputs, name, stack.enter_context(path.open("w", encoding="utf-8")))
        except OSError as error:
            raise InputError(f"--{name}: can't write {path} ({error.strerror}), expected a writable place") from None
    progress = stack.enter_context(Progress(total))
    outputs.progress = progress.update if progress.shown and not as_json else None
    return outputs


def _fit(scenario: Any, path: Path, measured: Path, rows: int, as_json: bool) -> None:
    from kvplan.simulator.fit import fit_scale

    found = fit_scale(scenario, path, measured, rows)
    if as_json:
        print_json(found)
        return
    from kvplan.report.simulate import print_fit

    print_fit(found)


def _find(study: Any, document: dict[str, Any], path: Path, find: str, slo: str | None, as_json: bool) -> None:
    from kvplan.report.simulate import Progress, print_max_rate

    if find != "max-rate":
        raise InputError(f"--find: found {show(find)}, expected max-rate")
    if slo is None:
        raise InputError("--find: found no limits, expected --slo such as ttft_p99=2s,tpot_p99=50ms")
    with Progress(document["workload"].get("requests")) as progress:
        shown = progress.update if progress.shown and not as_json else None
        found = study.find_max_rate(document, path, study.parse_limits(slo), shown)
    print_json(found) if as_json else print_max_rate(found)
    if found["partial"]:
        raise typer.Exit(130)


def _show(study: Any, runs: list[dict[str, Any]], seeds: int, as_json: bool) -> None:
    if as_json:
        if len(runs) == 1:
            print_json({key: value for key, value in runs[0].items() if key != "settings"})
        else:
            extra = {"spread": study.spread(runs)} if seeds > 1 else {}
            print_json({"schema_version": 1, "command": "simulate", "runs": runs, **extra})
        return
    from kvplan.report.simulate import print_comparison, print_run

    if len(runs) == 1:
        print_run(runs[0])
    else:
        print_comparison(runs, study.spread(runs) if seeds > 1 else None)
