"""Documents made from the code are current: a new command or option that is missing from docs/cli.md fails here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
assert _spec is not None and _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("path", list(generate.documents()), ids=lambda path: path.name)
def test_document_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == generate.documents()[path], "run python docs/generate.py"


def test_the_reference_names_every_command() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    for command in ("kvplan estimate", "kvplan models list", "kvplan models lint", "kvplan gpus show"):
        assert f"\n## {command}\n" in text
    assert "--kv-cache-dtype" in text
