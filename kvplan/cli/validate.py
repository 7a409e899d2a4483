"""`kvplan validate`: on a device, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.common import MODEL_DIR_OPTION, complete_model, print_json
from kvplan.errors import InputError, KvplanError

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec


class Interrupted(KvplanError):
    """Ctrl-C in the middle of a run. Exit code 130, as shells have it."""

    exit_code = 130


def validate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A known model, a config.json, a folder with one, or a .gguf file. Default: a short set that covers "
            "GQA, windows, MLA and a hybrid.",
            autocompletion=complete_model,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:N.")] = "auto",
    engine: Annotated[
        str | None, typer.Option(help="Allocate this engine's pool too: vllm, vllm@0.32, sglang, llama.cpp, ...")
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="KV dtype: auto (16-bit), bf16, fp8, int8_per_token_head, fp8_ds_mla, ...")
    ] = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16,
    pool: Annotated[
        str | None, typer.Option(help="Bytes of each pool: 8GiB. Default: 4 GiB on a GPU, 16 MiB on a CPU.")
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="The same as a share of what is free (half of that on a CPU).")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="More models, longer requests, more repeats: minutes.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the random data. Default: a new one each time.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file; - prints it and nothing else.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw bandwidth against length and the capacity fill into this PNG or SVG.")
    ] = None,
    save_profile: Annotated[
        Path | None, typer.Option(help="Write what was measured as a device profile (YAML) for --profile.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Judge a result that --json wrote again, without a device.")
    ] = None,
    model_dir: MODEL_DIR_OPTION = None,
) -> int:
    """Allocate what was predicted on a real device, fill it, run attention over it and compare.

    Exit code 0: every check passes; 1: one fails; 2: it can't run. Needs torch (pip install 'kvplan-llm[gpu]'). The
    device is left as it was found: no setting is touched and all memory is given back.
    """
    from kvplan.report.validate import draw_plot, print_result, progress
    from kvplan.validate.checks import read_result

    if replay is not None:
        if model is not None:
            raise InputError("--replay: found it together with a model, expected one of them")
        result = read_result(replay)
    else:
        from kvplan.units import parse_bytes
        from kvplan.validate.session import Options, run, steps

        options = Options(
            model=_spec(model, model_dir),
            device=device,
            engine=engine,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            pool=None if pool is None else parse_bytes(pool, "--pool"),
            fraction=fraction,
            full=full,
            seed=seed,
        )
        try:
            with progress(steps(options)) as tick:
                result = run(options, tick)
        except KeyboardInterrupt:
            raise Interrupted("interrupted: the memory was given back and nothing was written") from None
    if plot is not None:
        draw_plot(result, plot)
    if save_profile is not None:
        from kvplan.hardware.profile import save_profile as save

        if result.profile is None:
            raise InputError("--save-profile: found no profile in this result, expected one of a whole run")
        save(save_profile, result.profile)
    if json_file is not None and str(json_file) == "-":
        print_json(result.to_dict())
    else:
        if json_file is not None:
            import json

            from kvplan.files import write_text_atomic

            write_text_atomic(json_file, json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n")
        print_result(result)
    return result.exit_code


def _spec(model: str | None, model_dir: Path | None) -> ModelSpec | None:
    if model is None:
        return None
    from kvplan.spec.resolve import resolve_model

    return resolve_model(model, model_dir=model_dir).spec
