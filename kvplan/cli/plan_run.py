"""What `kvplan plan` does once its options are read: ask, show progress, print, write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.cli.common import print_json
from kvplan.cli.progress import Bar
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.planner.answer import Plan
    from kvplan.planner.flags import Flags


class Output(NamedTuple):
    """What is printed and written."""

    as_json: bool
    plot: Path | None
    record: Path | None
    scenarios: Path | None


def run(what: str | None, flags: Flags, prices: Path | None, model_dir: Path | None, output: Output) -> int:
    """Plan, print, and return the exit code."""
    from kvplan.planner.flags import request_of
    from kvplan.planner.plan import plan
    from kvplan.planner.prices import load_prices

    folder, base, models, name = _source(what)
    request = request_of(flags, models, base, name)
    if prices is not None and request.prices is not None:
        raise InputError("--prices: found it beside the plan's own prices, expected one of them")
    with Bar(sys.stderr.isatty() and not output.as_json) as bar:
        table = load_prices(prices) if request.prices is None else None
        update = bar.update if bar.shown else None
        answer = plan(request, folder=folder, prices=table, model_dir=model_dir, progress=update)
    _write(answer, output)
    if output.as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.plan import print_plan

        print_plan(answer)
    return answer.exit_code


def _source(what: str | None) -> tuple[Path, dict[str, Any] | None, str | None, str]:
    """The folder, document, models and name of what was named: a plan file or models."""
    if what is None or not what.lower().endswith((".yaml", ".yml")):
        return Path(), None, what, "plan"
    from kvplan.files import read_yaml
    from kvplan.planner.documents import read_document
    from kvplan.planner.request import PlanRequest

    path = Path(what)
    document = read_yaml(path)
    if isinstance(document, dict) and "workload" in document:
        read_document(path, PlanRequest)  # says line and column of what is wrong
    if not isinstance(document, dict):
        raise InputError(f"{path}: found no mapping, expected keys such as models, workload and slo")
    return path.parent, document, None, str(path)


def _write(answer: Plan, output: Output) -> None:
    if output.plot is not None:
        from kvplan.report.plan_plot import plot_front

        plot_front(answer, output.plot)
    if output.record is not None:
        from kvplan.report.plan_record import write_record

        write_record(answer, output.record)
    if output.scenarios is not None:
        _scenarios(answer, output.scenarios)


def _scenarios(answer: Plan, folder: Path) -> None:
    import yaml

    from kvplan.files import write_text_atomic

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--scenarios: can't make {folder} ({error.strerror}), expected a writable place") from None
    for option in answer.options:
        if option.simulated is not None:
            text = yaml.safe_dump(option.simulated.scenario, sort_keys=False)
            write_text_atomic(folder / f"option-{option.rank}.yaml", text)
