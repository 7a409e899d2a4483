"""`kvplan doctor`: what this installation can do, and what is missing for the rest."""

from __future__ import annotations

import typer

from kvplan.cli.common import JSON_OPTION, print_json


def doctor(as_json: JSON_OPTION = False) -> None:
    """What is installed here and what each missing extra would enable; GPU, driver and the state of the data.

    Opens no connection and starts no process. Exits 2 where the shipped data is damaged; a missing extra or GPU is no
    fault.
    """
    from kvplan.validate.installation import inspect_installation

    found = inspect_installation()
    if as_json:
        from dataclasses import asdict

        print_json({**asdict(found), "healthy": found.healthy})
    else:
        from kvplan.report.doctor import print_installation

        print_installation(found)
    if not found.healthy:
        raise typer.Exit(2)
