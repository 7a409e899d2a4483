"""`kvplan check`: capacity as a test in CI."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.common import HUB_OPTION, JSON_OPTION, MODEL_DIR_OPTION, complete_gpu, complete_model, print_json
from kvplan.errors import InputError, UnsupportedArchitectureError, did_you_mean, show

if TYPE_CHECKING:
    from kvplan.check.request import Request
    from kvplan.check.verdicts import Report

FORMATS = ("text", "json", "junit", "sarif", "github", "markdown")


def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of expectations; see docs/schemas/check.schema.json.")
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option("--manifest", help="A deployment file: every engine that it starts must start (repeat)."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only show what was read from each --manifest.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="The GPU, in place of what a manifest names; an expectation's own hardware wins.",
            autocompletion=complete_gpu,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, where a launch command hides it.", autocompletion=complete_model)
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--set", help="A variable of the launch commands: NAME=value (repeat).")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Figures that must not get worse by more than 2 %, or as an expectation says.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the baseline instead of comparing with it.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", help="text, json, junit, sarif, github or markdown, on stdout.")
    ] = "text",
    output: Annotated[
        list[str] | None, typer.Option("--output", help="Write a format to a file as well: junit=check.xml (repeat).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A warning fails the check too.")] = False,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use the answer of an unchanged check.")] = True,
    model_dir: MODEL_DIR_OPTION = None,
    hub: HUB_OPTION = False,
    as_json: JSON_OPTION = False,
) -> int:
    """Hold expectations about capacity against the models and launch commands of a repository.

    Figures: fits, max_concurrency, capacity_tokens, max_model_len, kv_gib_per_gpu, kv_bytes_per_token, kv_gib,
    weights_gib, and with a scenario ttft_p99, tpot_p99 and the like, goodput, output_tokens_per_s. Exit codes: 0 all
    hold, 1 one fails, 2 a file is wrong or can't be evaluated, 3 architecture not supported. Nothing is executed; the
    network is used only with --hub.
    """
    form = _known("json" if as_json else format_, "--format")
    wanted = [_output(word) for word in output or []]
    values = _variables(variables or [])
    if listed:
        return _list(manifest or [], files or [], values, form)
    request = _request(files, manifest, gpu, model, values, baseline, update_baseline, model_dir, hub, strict)
    report = _report(request, cache and not hub and not update_baseline)
    from kvplan.report.check import render

    for name, path in wanted:
        from kvplan.files import write_text_atomic

        write_text_atomic(path, render(report, name))
    sys.stdout.write(render(report, form))
    sys.stdout.flush()
    if report.errors:
        first = report.errors[0]
        more = f" (and {len(report.errors) - 1} more)" if len(report.errors) > 1 else ""
        kind = UnsupportedArchitectureError if report.exit_code == 3 else InputError
        place = f"{first.file}: line {first.line}: "
        said = first.text if first.text.startswith(f"{first.file}:") else f"{place}{first.text}"
        raise kind(f"{said}{more}")
    return report.exit_code


def _request(
    files: list[Path] | None, manifest: list[Path] | None, gpu: str | None, model: str | None,
    values: dict[str, str], baseline: Path | None, update: bool, model_dir: Path | None, hub: bool, strict: bool,
) -> Request:  # fmt: skip
    from kvplan.check.request import Given, Request
    from kvplan.hardware.accelerators import find

    if not files and not manifest:
        raise InputError("FILE: found nothing to check, expected a file of expectations, or --manifest FILE")
    if gpu is not None:
        find(gpu)
    given = Given(gpu, model, values, model_dir, hub, strict)
    return Request(tuple(files or ()), tuple(manifest or ()), given, baseline, update)


def _report(request: Request, cached: bool) -> Report:
    from kvplan.check import cache as kept
    from kvplan.check.verdicts import report_from

    key = ""
    if cached:
        key = kept.key_of(asdict(request), request.given.model_dir)
        document = kept.load(kept.default_folder(), key)
        if document is not None:
            return report_from(document)
    from kvplan.check.inputs import Inputs
    from kvplan.check.run import run_check

    inputs = Inputs()
    report = run_check(request, inputs)
    if cached:
        kept.save(kept.default_folder(), key, inputs, report.to_dict())
    return report


def _known(name: str, field: str) -> str:
    if name not in FORMATS:
        raise InputError(
            f"{field}: found {show(name)}, expected one of {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}"
        )
    return name


def _output(word: str) -> tuple[str, Path]:
    name, equals, path = word.partition("=")
    if not equals or not path:
        raise InputError(f"--output: found {show(word)}, expected FORMAT=FILE such as junit=check.xml")
    return _known(name, "--output"), Path(path)


def _variables(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise InputError(f"--set: found {show(word)}, expected NAME=value such as MAX_LEN=32768")
        found[name] = value
    return found


def _list(manifests: list[Path], files: list[Path], values: dict[str, str], form: str) -> int:
    from kvplan.check.manifests import read_manifest

    if files or not manifests:
        raise InputError("--list: found no --manifest alone beside it, expected --manifest FILE and no other file")
    if form not in ("text", "json"):
        raise InputError(f"--list: found --format {form} beside it, expected text or json")
    readings = [read_manifest(path, variables=values) for path in manifests]
    if form == "json":
        documents: list[dict[str, Any]] = [reading.to_dict() for reading in readings]
        print_json(documents[0] if len(documents) == 1 else documents)
        return 0
    from kvplan.report.check import manifest_text

    sys.stdout.write("\n".join(manifest_text(reading) for reading in readings))
    sys.stdout.flush()
    return 0
