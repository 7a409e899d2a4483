"""`kvplan models`: the registry, and specs made from a checkpoint's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.common import JSON_OPTION, MODEL_DIR_OPTION, complete_model, print_json
from kvplan.errors import InputError, did_you_mean, show

app = typer.Typer(help="Known models, and specs imported from a checkpoint's own files.", no_args_is_help=True)


@app.command("list")
def list_models(
    trait: Annotated[
        list[str] | None,
        typer.Option(help="Only models with this trait: mla, window, recurrent, moe, ... (repeat for more)."),
    ] = None,
    model_dir: MODEL_DIR_OPTION = None,
    as_json: JSON_OPTION = False,
) -> None:
    """List the known models with their traits."""
    from kvplan.spec.resolve import registry
    from kvplan.spec.traits import traits

    known = registry(model_dir)
    specs = [known.get(model_id) for model_id in known.ids()]
    wanted = {name.lower() for name in trait or []}
    every = {name for spec in specs for name in traits(spec)}
    for name in wanted - every:
        raise InputError(
            f"--trait: found {show(name)}, expected one of {', '.join(sorted(every))}{did_you_mean(name, every)}"
        )
    chosen = [(spec, traits(spec)) for spec in specs if wanted <= set(traits(spec))]
    if as_json:
        print_json(
            [{"id": spec.id, "hf_ids": spec.hf_ids, "aliases": spec.aliases, "traits": found} for spec, found in chosen]
        )
        return
    from kvplan.report.models import print_models

    print_models(chosen)


@app.command("show")
def show_model(
    model: Annotated[
        str, typer.Argument(help="A name, a config.json, a folder or a .gguf file.", autocompletion=complete_model)
    ],
    model_dir: MODEL_DIR_OPTION = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Show a model's spec as YAML."""
    from kvplan.spec.resolve import resolve_model
    from kvplan.spec.spec_file import format_spec, to_plain

    spec = resolve_model(model, model_dir=model_dir).spec
    if as_json:
        print_json(to_plain(spec))
    else:
        print(format_spec(spec), end="")


@app.command("import")
def import_model(
    source: Annotated[str, typer.Argument(help="A config.json, a folder with one, a .gguf file, or with --hub an id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the spec into this file; - is stdout.")
    ] = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Fetch it from the Hugging Face hub (HF_ENDPOINT, HF_TOKEN).")
    ] = False,
    assume: Annotated[
        str | None, typer.Option(help="dense: take an unknown architecture as full attention on every layer.")
    ] = None,
) -> None:
    """Make a spec from a checkpoint's own files and print it as YAML."""
    from kvplan.files import write_text_atomic
    from kvplan.spec.resolve import resolve_model
    from kvplan.spec.spec_file import format_spec

    if assume not in (None, "dense"):
        raise InputError(f"--assume: found {show(assume)}, expected dense")
    text = format_spec(resolve_model(source, hub=hub, assume_dense=assume == "dense").spec)
    if output is None or str(output) == "-":
        print(text, end="")
    else:
        write_text_atomic(output, text)


@app.command()
def lint(
    files: Annotated[list[Path] | None, typer.Argument(help="Spec files. Default: every shipped one.")] = None,
    configs: Annotated[
        Path | None, typer.Option(help="A folder of config files, owner--name.json, that the specs are held against.")
    ] = None,
    as_json: JSON_OPTION = False,
) -> int:
    """Check spec files, and hold each spec against its config.json. Exit code 1 when something differs."""
    from kvplan.spec.lint import lint_specs

    result = lint_specs(files or [], configs)
    if as_json:
        print_json({"specs": result.specs, "compared": result.compared, "problems": result.problems})
    else:
        for problem in result.problems:
            print(problem)
        print(
            f"{result.specs} specs read, {result.compared} held against a config.json, {len(result.problems)} problems"
        )
    return 1 if result.problems else 0


@app.command()
def index(directory: Annotated[Path, typer.Argument(help="A directory of model spec files.")]) -> None:
    """Write the index of a directory of specs, which look-ups read instead of the files."""
    from kvplan.spec.registry import write_index

    print(f"{write_index(directory)} models")
