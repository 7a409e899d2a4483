"""The `kvplan` command: its subcommands, and how errors become one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

import kvplan
from kvplan.cli.commands import EXIT_CODES, Commands
from kvplan.cli.common import QUIET
from kvplan.cli.streams import drop_stdout, end_by_pipe, os_sentence, prepare_stdout
from kvplan.errors import MAX_SENTENCE, KvplanError, printable

app = typer.Typer(
    name="kvplan",
    help="Capacity planner for LLM serving: how many tokens and requests fit, to the byte.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kvplan {kvplan.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="The answer and warnings alone: no progress, no assumptions.")
    ] = False,
) -> None:
    if quiet:
        os.environ[QUIET] = "1"


def command() -> Any:
    """The command with all its subcommands, as click knows it."""
    group: Any = typer.main.get_command(app)
    group.commands = Commands()
    return group


def main() -> None:
    """Run the command line; errors are one sentence on stderr."""
    prepare_stdout()
    try:
        code = command()(standalone_mode=False, prog_name="kvplan")
        sys.stdout.flush()
    except KvplanError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except SystemExit as error:
        # Click and rich end the process in their own ways once the reader went away (`| head`).
        if isinstance(error.__context__, BrokenPipeError):
            end_by_pipe()
        raise
    except BrokenPipeError:
        end_by_pipe()
    except OSError as error:
        if error.filename is None:
            drop_stdout()
        _fail(os_sentence(error), 2)
    except Exception as error:
        # Click's own errors (typer may carry its own copy of click, so there is no one class to name).
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str, code: int) -> NoReturn:
    """End with a sentence on stderr; none where help was the answer."""
    if sentence and sys.stderr is not None:
        print(f"kvplan: {printable(' '.join(sentence.split()), MAX_SENTENCE)}", file=sys.stderr)
    sys.exit(code)
