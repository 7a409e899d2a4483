"""`kvplan techniques`: the twelve, their miniatures, and the map of one model."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli import technique_options as options
from kvplan.cli.common import JSON_OPTION, MODEL_ARGUMENT, MODEL_DIR_OPTION, PLOT_OPTION, print_json

app = typer.Typer(help="The twelve techniques: what each changes, miniatures to run, a map for one model.")


@app.callback(invoke_without_command=True)
def _list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_all()


@app.command("list")
def list_all(as_json: JSON_OPTION = False) -> None:
    """List the twelve: which term of the formula each changes, what it saves, and when it can be applied."""
    from kvplan.answers.techniques import list_techniques

    answer = list_techniques()
    if as_json:
        from dataclasses import asdict

        print_json(asdict(answer))
        return
    from kvplan.report.techniques import print_list

    print_list(answer)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A technique by name, number or method, such as mla, 4 or snapkv.")],
    as_json: JSON_OPTION = False,
) -> None:
    """Show one technique: effects, price, published figure with its source, and the engines that have it."""
    from kvplan.answers.techniques import list_techniques

    answer = list_techniques(name)
    if as_json:
        from dataclasses import asdict

        print_json(asdict(answer))
        return
    from kvplan.report.techniques import print_technique

    print_technique(answer.techniques[0])


@app.command()
def demo(
    name: Annotated[str | None, typer.Argument(help="A technique. Default: all twelve.")] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Run a technique at a size that fits in the head, on the code that plans real models."""
    from kvplan.answers.techniques import run_miniatures

    answer = run_miniatures(name)
    if as_json:
        from dataclasses import asdict

        print_json(asdict(answer))
        return
    from kvplan.report.techniques import print_miniatures

    print_miniatures(answer)


@app.command("map")
def draw_map(
    model: MODEL_ARGUMENT,
    ctx: options.CTX = None,
    model_dir: MODEL_DIR_OPTION = None,
    plot: PLOT_OPTION = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Place all twelve for one model by memory saved and reads saved, each on its own."""
    from kvplan.answers.techniques import map_techniques

    answer = map_techniques(model, ctx=ctx, model_dir=model_dir)
    if plot is not None:
        from kvplan.report.techniques_plot import plot_map

        plot_map(answer, plot)
    if as_json:
        from dataclasses import asdict

        print_json(asdict(answer))
        return
    from kvplan.report.techniques import print_map

    print_map(answer)
