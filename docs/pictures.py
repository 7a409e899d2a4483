"""The README's terminal pictures: real output, exported by rich as SVG. `python docs/pictures.py` writes them."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

DOCS = Path(__file__).resolve().parent
COMMANDS = {
    "terminal-estimate": "kvplan estimate llama-3.1-8b --ctx 32k --gpu h100 --engine vllm | head -14",
    "terminal-explain": "kvplan explain deepseek-v3.2 --ctx 128k | head -14",
    "terminal-audit": "kvplan audit docs/examples/vllm-qwen3-8b.log --gpu h100 | head -20",
}


def runner() -> Any:
    """The module that runs a shown command."""
    import console

    return console


def picture(name: str, line: str) -> str:
    """One command and what it prints, as an SVG that loads nothing from anywhere."""
    _, output = runner().run(line)
    screen = Console(record=True, width=82, file=io.StringIO(), force_terminal=True, highlight=False)
    screen.print(f"[bold green]$[/] [bold]{line.partition(' | ')[0]}[/]")
    screen.print(output.rstrip("\n"), markup=False)
    svg = screen.export_svg(title="kvplan", theme=DIMMED_MONOKAI, unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "DejaVu Sans Mono").rstrip() + "\n"


def pictures() -> dict[Path, str]:
    """Every picture by its file."""
    return {DOCS / "pictures" / f"{name}.svg": picture(name, line) for name, line in COMMANDS.items()}


def main() -> int:
    """Write them, or with --check name those that differ."""
    stale = [path for path, svg in pictures().items() if not path.is_file() or path.read_text("utf-8") != svg]
    for path in stale:
        if "--check" not in sys.argv[1:]:
            path.write_text(pictures()[path], "utf-8")
        print(f"{path.name} was out of date", file=sys.stderr)
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.path[:0] = [str(DOCS), str(DOCS.parent)]
    sys.exit(main())
