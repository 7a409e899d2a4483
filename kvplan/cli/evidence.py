"""`kvplan evidence`: the record of how right kvplan is, and how to add to it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, complete_gpu, complete_model, print_json

app = typer.Typer(
    help="The record of how right kvplan is: list it, run it, add your own log to it.", no_args_is_help=True
)

DIR_OPTION = Annotated[Path | None, typer.Option("--dir", help="A folder of cases (else the shipped record).")]


@app.command("list")
def list_cases(folder: DIR_OPTION = None, as_json: JSON_OPTION = False) -> None:
    """List the cases of the record."""
    from kvplan.evidence.case import read_cases

    cases = read_cases(folder)
    if as_json:
        shown = [
            {"id": case.id, "engine": case.run.engine, "version": case.run.version, "model": case.model,
             "verdict": case.verdict, "source": case.source}
            for case in cases
        ]  # fmt: skip
        print_json({"schema_version": 1, "command": "evidence list", "cases": shown})
        return
    from kvplan.report.evidence import print_cases

    print_cases(cases)


@app.command("run")
def run_cases(
    folder: DIR_OPTION = None,
    only: Annotated[str | None, typer.Option(help="Only cases whose id holds this text.")] = None,
    as_json: JSON_OPTION = False,
) -> int:
    """Ask the engine models about every case again. Exits 1 when a case that was right became wrong."""
    from kvplan.evidence.case import read_cases, run_case

    outcomes = [run_case(case) for case in read_cases(folder) if only is None or only in case.id]
    if as_json:
        documents: list[dict[str, Any]] = [asdict(outcome) for outcome in outcomes]
        print_json({"schema_version": 1, "command": "evidence run", "outcomes": documents})
    else:
        from kvplan.report.evidence import print_outcomes

        print_outcomes(outcomes)
    return int(any(not outcome.held for outcome in outcomes))


@app.command("add")
def add(
    log: Annotated[str, typer.Argument(help="A start-up log (- for stdin).")],
    name: Annotated[str, typer.Option("--id", help="The case's name: small letters, digits, dots and dashes.")],
    folder: Annotated[Path, typer.Option("--dir", help="The folder of cases to write to.")] = Path("kvplan-evidence"),
    model: Annotated[
        str | None, typer.Option(help="The model, where the log names no known one.", autocompletion=complete_model)
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="The GPU.", autocompletion=complete_gpu)] = None,
    engine: Annotated[str | None, typer.Option(help="The engine and release, such as vllm@0.11.0.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting the log lacks: NAME=VALUE.")] = None,
    run: Annotated[int | None, typer.Option("--run", help="Which start in the log, from 1 (else the last).")] = None,
    model_dir: MODEL_DIR_OPTION = None,
) -> None:
    """Make a case of a log: figures and settings only; no host, path, address, user or token of it is kept.

    Writes one file, ID.json, into the folder.
    """
    from kvplan.cli.audit import given_options, read_runs, set_options
    from kvplan.evidence.case import add_case, case_document

    given = given_options(model, gpu, engine, set_options(settings or [], None), model_dir)
    path = folder / f"{name}.json"
    document = case_document(name, read_runs(log), given, run)
    add_case(path, document)
    typer.echo(f"{path}: {document['engine']} {document['version'] or ''}, {document['verdict']}")
