"""What the documentation promises about itself: pictures, dependencies, navigation, typed marker, schema versions."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

import kvplan

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import pictures  # type: ignore[import-not-found]  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.parametrize("name", pictures.COMMANDS)
def test_a_terminal_picture_shows_what_is_printed_now(name: str) -> None:
    shown = ElementTree.fromstring((DOCS / "pictures" / f"{name}.svg").read_text("utf-8"))
    texts = "".join("".join(node.itertext()) for node in shown.iter("{http://www.w3.org/2000/svg}text"))
    _, output = pictures.runner().run(pictures.COMMANDS[name])
    assert re.sub(r"\s", "", output) in re.sub(r"\s", "", texts), "run python docs/pictures.py"


def test_pictures_load_nothing() -> None:
    for path in (DOCS / "pictures").glob("*.svg"):
        assert not re.search(r"(?:href|src|url)\s*[=(]\s*[\"']?http", path.read_text("utf-8")), path.name


def test_each_direct_dependency_is_listed_with_its_licence() -> None:
    rows = dict(
        re.findall(r"^\| ([\w-]+) \| [\w.+]+ \| ([^|]+) \|", (DOCS / "dependencies.md").read_text("utf-8"), re.M)
    )
    for requirement in PROJECT["dependencies"]:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        assert rows[name[0]] not in ("", "see its files ")


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"(\w+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.MULTILINE))
    assert navigation == {path.name for path in DOCS.glob("*.md")}


def test_an_index_is_told_the_distribution_name() -> None:
    for path in (ROOT / "README.md", DOCS / "index.md"):
        assert "pip install kvplan-llm" in path.read_text("utf-8")
    assert PROJECT["name"] == "kvplan-llm"


def test_the_typed_marker_ships() -> None:
    assert (Path(kvplan.__file__).parent / "py.typed").is_file()


def test_each_answer_has_a_schema_version() -> None:
    inputs = {"scenario", "check", "plan-request", "study"}
    for path in (DOCS / "schemas").glob("*.schema.json"):
        name = path.name.removesuffix(".schema.json")
        if name not in inputs:
            assert "schema_version" in json.loads(path.read_text("utf-8"))["properties"], path.name


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is not installed")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "techniques" / "index.html").is_file()


def test_the_architecture_names_every_room() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    rooms = {path.name for path in (ROOT / "kvplan").iterdir() if (path / "__init__.py").is_file()}
    files = {path.name for path in (ROOT / "kvplan").glob("*.py")} - {"__init__.py", "__main__.py"}
    named = set(re.findall(r"`(?:kvplan/)?(\w+\.py)`", text))
    assert rooms <= set(re.findall(r"`kvplan/(\w+)/", text))
    assert files <= named
    for path in re.findall(r"`(kvplan/[\w/]+(?:\.py|/))`", text):
        assert (ROOT / path).exists(), path
