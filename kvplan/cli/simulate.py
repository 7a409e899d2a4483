"""`kvplan simulate`: a workload on a configuration, over time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.cli.common import JSON_OPTION, print_json
from kvplan.errors import InputError, show


def simulate(
    scenario: Annotated[Path, typer.Argument(help="A scenario file; see docs/schemas/scenario.schema.json.")],
    check: Annotated[bool, typer.Option("--check", help="Only check the file.")] = False,
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
    plot: Annotated[Path | None, typer.Option(help="Draw pool, queue and latencies into this PNG or SVG file.")] = None,
    events: Annotated[Path | None, typer.Option(help="Write every event as JSON lines.")] = None,
    requests: Annotated[Path | None, typer.Option(help="Write one CSV row a request.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Simulate a workload on an engine: pool, reuse, preemption, and what users wait."""
    from kvplan.simulator import study

    document = study.load_document(scenario)
    common = study.scaled(document, scale_rate, limit)
    if check:
        study.changed(document, scenario, common)
        print_json({"scenario": str(scenario), "valid": True}) if as_json else print(f"{scenario}: valid")
        return
    if fit is not None:
        _fit(study.changed(document, scenario, []), scenario, fit, fit_rows, as_json)
        return
    if find is not None:
        _find(study, document, scenario, find, slo, as_json)
        return
    if slo is not None:
        raise InputError("--slo: found it without --find, expected --find max-rate beside it")
    combinations = study.parse_vary(vary or [])
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        outputs = _outputs(study, stack, events, requests, as_json)
        for settings in combinations:
            for seed in range(seeds):
                changes = [*common, *settings]
                if seeds > 1:
                    changes.append(("seed", int(document.get("seed", 0)) + seed))
                result = study.run(study.changed(document, scenario, changes), scenario, outputs)
                runs.append({"settings": dict(settings), **result})
                if result["partial"]:
                    break
            if runs and runs[-1]["partial"]:
                break
    if plot is not None and outputs.last is not None:
        from kvplan.report.simulate_plot import plot_run

        plot_run(outputs.last.metrics, plot)
    _show(study, runs, seeds, as_json)
    if runs[-1]["partial"]:
        raise typer.Exit(130)


def _outputs(study: Any, stack: ExitStack, events: Path | None, requests: Path | None, as_json: bool) -> Any:
    from kvplan.report.simulate import Progress

    outputs = study.Outputs()
    for path, name in ((events, "events"), (requests, "requests")):
        if path is None:
            continue
        try:
            setattr(outputs, name, stack.enter_context(path.open("w", encoding="utf-8")))
        except OSError as error:
            raise InputError(f"--{name}: can't write {path} ({error.strerror}), expected a writable place") from None
    progress = stack.enter_context(Progress())
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
    if find != "max-rate":
        raise InputError(f"--find: found {show(find)}, expected max-rate")
    if slo is None:
        raise InputError("--find: found no limits, expected --slo such as ttft_p99=2s,tpot_p99=50ms")
    found = study.find_max_rate(document, path, study.parse_limits(slo))
    if as_json:
        print_json(found)
        return
    from kvplan.report.simulate import print_max_rate

    print_max_rate(found)


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
