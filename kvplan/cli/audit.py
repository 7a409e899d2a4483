"""`kvplan audit`: what an engine's start-up log, or a running server, says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, complete_gpu, complete_model, print_json
from kvplan.errors import InputError, show

if TYPE_CHECKING:
    from kvplan.evidence.ask import Given
    from kvplan.evidence.runs import LogRun


def audit(
    logs: Annotated[
        list[str] | None,
        typer.Argument(help="A start-up log (- for stdin, .gz as it is); two to explain a difference."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="Ask a running server instead, such as http://host:8000.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model, where the log doesn't name a known one.", autocompletion=complete_model),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="The GPU, where the log doesn't name it.", autocompletion=complete_gpu)
    ] = None,
    engine: Annotated[str | None, typer.Option(help="The engine and release, such as vllm@0.11.0.")] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option("--tensor-parallel-size", "-tp", help="Tensor-parallel ranks, where the log has none.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting the log lacks: max_num_batched_tokens=8192 (repeat).")
    ] = None,
    run: Annotated[int | None, typer.Option("--run", help="Which start in the log, from 1 (else the last).")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="An earlier `kvplan estimate --engine ... --json` to hold the log against.")
    ] = None,
    fail_on: Annotated[
        str, typer.Option(help="error, warning or note: exit 1 for a finding at or above this.")
    ] = "warning",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for each answer of --server.")] = 3.0,
    model_dir: MODEL_DIR_OPTION = None,
    as_json: JSON_OPTION = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every figure with its line, and the arithmetic.")
    ] = False,
) -> int:
    """Explain a start-up log: where the memory went, what the figures mean, what to change.

    Reads logs of vLLM, SGLang, TensorRT-LLM, llama.cpp, Ollama, LMDeploy and TGI. Exit codes: 0 no finding at or above
    --fail-on, 1 findings, 2 unreadable. The network is used only with --server.
    """
    from kvplan.evidence.audit import audit as explain_run
    from kvplan.evidence.findings import SEVERITIES

    if fail_on not in SEVERITIES:
        raise InputError(f"--fail-on: found {show(fail_on)}, expected one of {', '.join(SEVERITIES)}")
    own = set_options(settings or [], tensor_parallel_size)
    given = given_options(model, gpu, engine, own, model_dir)
    level: Any = fail_on
    if server is not None:
        if logs:
            raise InputError("--server: found it beside a log, expected one of both")
        from kvplan.evidence.server import ask_server

        runs: tuple[LogRun, ...] = ask_server(server, timeout)
    elif logs and len(logs) == 2:
        return _difference(logs, given, run, plan, as_json)
    elif logs and len(logs) == 1:
        runs = read_runs(logs[0])
    else:
        raise InputError(f"LOG: found {len(logs or [])} logs, expected one, two to compare, - for stdin, or --server")
    answer = explain_run(runs, given, run, plan)
    if as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.audit import print_audit

        print_audit(answer, explain=explain)
    return answer.exit_code(level)


def _difference(logs: list[str], given: Given, run: int | None, plan: Path | None, as_json: bool) -> int:
    from kvplan.evidence.difference import difference

    if run is not None or plan is not None:
        raise InputError("--run, --plan: found them with two logs, expected one log")
    if logs == ["-", "-"]:
        raise InputError("LOG: found - twice, expected stdin once")
    answer = difference(read_runs(logs[0]), read_runs(logs[1]), given)
    if as_json:
        print_json(answer.to_dict())
    else:
        from kvplan.report.audit import print_difference

        print_difference(answer)
    return 0


def given_options(
    model: str | None, gpu: str | None, engine: str | None, settings: dict[str, Any], model_dir: Path | None
) -> Given:
    """What the user gave beside the log. Raises InputError for an unknown model or GPU."""
    from kvplan.evidence.ask import Given
    from kvplan.hardware.accelerators import find
    from kvplan.spec.resolve import resolve_model

    loaded = None if model is None else resolve_model(model, model_dir=model_dir)
    return Given(loaded, None if gpu is None else find(gpu), None, engine, settings)


def set_options(words: list[str], tensor: int | None) -> dict[str, Any]:
    """The settings of --set NAME=VALUE and -tp. Raises InputError for one without a value."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set: found {show(word)}, expected NAME=VALUE such as max_num_seqs=64")
        found[name.strip().lstrip("-").replace("-", "_")] = _typed(value.strip())
    if tensor is not None:
        found["tensor_parallel_size"] = tensor
    return found


def _typed(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() and len(text) < 19 else text


def read_runs(name: str) -> tuple[LogRun, ...]:
    """The starts in the log `name` (- is stdin). Raises InputError where it can't be read or tells of none."""
    from kvplan.evidence.reader import read_log

    if name == "-":
        runs = read_log(sys.stdin.buffer)
    else:
        try:
            with Path(name).open("rb", buffering=0) as stream:
                runs = read_log(stream)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{name}: can't be read ({reason}), expected a readable log") from None
    if not runs:
        raise InputError(f"{name}: found no start of an engine, expected the start-up log of an engine kvplan reads")
    return runs
