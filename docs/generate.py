"""Write the documents that are made from the code: references, techniques with pictures, engines, JSON Schemas.

`python docs/generate.py` rewrites them, `python docs/generate.py --check` exits 1 when one is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

CLI_HEAD = """\
# Command reference

Made from the code by `python docs/generate.py`; a test fails when it is out of date.

Token counts: `k`, `K` and `Ki` are 1,024, so `--ctx 128k` is 131,072; `128000` is itself. The resolved count is always
printed. vLLM's own parser reads `128k` as 128,000 and `128K` as 131,072: mind the difference when copying a value.
Byte sizes follow their spelling: GB is 10^9, GiB is 2^30.

`kvplan --quiet COMMAND`, or KVPLAN_QUIET in the environment, leaves out progress and assumptions; warnings stay.
NO_COLOR turns colours off, and a pipe has none. In a pipe lines are as long as they are; COLUMNS sets a width.

Exit codes: 0 answered and fits, 1 does not fit (or a lint found problems), 2 usage, bad input or unknown name,
3 architecture not supported. An error is one sentence on stderr; stdout carries the answer and nothing else.

Commands read the files they are given and write none but those named by `--output`, `--plot`, `--csv`, `--markdown` and
`--record`, and `kvplan models index`, which writes `index.json` into the directory it is given, and `kvplan check`,
which keeps its answers in the user's cache folder. The network is used only with `--hub`, which honours `HF_ENDPOINT`
and `HF_TOKEN`.
"""


def cli_reference() -> str:
    """The text of docs/cli.md: every command with its arguments and options."""
    from kvplan.cli.main import command as root

    sections = [CLI_HEAD]
    for path, command in _commands(root(), ("kvplan",)):
        sections.append(_section(path, command))
    return "\n".join(sections)


def _commands(command: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [(path, command)]
    return [found for name, child in children.items() for found in _commands(child, (*path, name))]


def _section(path: tuple[str, ...], command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
    usage = " ".join([*path, *(_usage(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"## {' '.join(path)}", "", f"    {usage}", "", " ".join((command.help or "").split()), ""]
    if arguments or options:
        lines += ["| argument or option | meaning | default |", "| --- | --- | --- |"]
    for param in (*arguments, *options):
        name = param.name.upper() if param.param_type_name == "argument" else ", ".join(param.opts)
        text = " ".join((getattr(param, "help", None) or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {text} | {_default(param)} |")
    return "\n".join(lines) + "\n"


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _default(param: Any) -> str:
    return "" if param.default in (None, False, (), []) or param.required else f"`{param.default}`"


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each kind of answer, by file name."""
    from kvplan import estimator, served
    from kvplan.answers import advise, compare, explain, techniques
    from kvplan.check import expectations, verdicts
    from kvplan.evidence import audit, difference
    from kvplan.planner import answer as plan_answer
    from kvplan.planner import fit, request
    from kvplan.planner.sweep import study
    from kvplan.simulator import scenario

    return {
        "advise": advise.json_schema(),
        "audit": audit.json_schema(),
        "audit-difference": difference.json_schema(),
        "check": expectations.json_schema(),
        "check-report": verdicts.json_schema(),
        "compare": compare.json_schema(),
        "estimate": estimator.json_schema(),
        "estimate-engine": served.json_schema(),
        "explain": explain.json_schema(),
        "plan": plan_answer.json_schema(),
        "plan-fit": fit.json_schema(),
        "plan-request": request.json_schema(),
        "scenario": scenario.json_schema(),
        "study": study.json_schema(),
        **techniques.json_schemas(),
    }


def documents() -> dict[Path, str]:
    """Every generated document with the text it should have."""
    import engines_page
    import files_page
    import techniques_page

    made = schemas()
    found = {
        DOCS / "schemas" / f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in made.items()
    }
    pages = {
        DOCS / "cli.md": cli_reference(),
        DOCS / "engines.md": engines_page.page(),
        DOCS / "files.md": files_page.page(made, {path.name for path in DOCS.glob("*.md")}),
        DOCS / "techniques.md": techniques_page.page(),
    }
    return {**pages, **techniques_page.pictures(), **found}


def main() -> int:
    """Write the documents, or with --check name those that differ."""
    stale = [path for path, text in documents().items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is out of date: run python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in documents().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
