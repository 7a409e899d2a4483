"""Pictures: drawn without a display, equal for equal runs, whole or absent, and refused in one sentence."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]
PLOTS = {
    "explain": ("explain", "llama-3.1-70b", "--ctx", "128k", "--fp8", "--what-if", "cla=2", "--offload", "cpu:1GiB"),
    "compare": ("compare", "llama-3.1-8b", "gemma-3-27b", "mamba-2.8b", "deepseek-v3.2", "--ctx", "8k,128k"),
    "map": ("techniques", "map", "deepseek-v3.2", "--ctx", "128k"),
}
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="draws with matplotlib (the plot extra)"
)


@needs_matplotlib
@pytest.mark.parametrize("name", PLOTS)
def test_equal_runs_give_equal_pictures(kvplan_cli: Cli, tmp_path: Path, name: str) -> None:
    for suffix, start in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        for path in (first, second):
            assert kvplan_cli(*PLOTS[name], "--plot", path).code == 0
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


@needs_matplotlib
@pytest.mark.parametrize("name", PLOTS)
def test_numbers_and_labels_do_not_overlap(
    kvplan_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Texts of the figure, as drawn: no two share more than a sliver, and none leaves the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    drawn: list[Figure] = []
    plain = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (drawn.append(self), plain(self, *args, **kwargs))
    )
    assert kvplan_cli(*PLOTS[name], "--plot", tmp_path / "a.png").code == 0
    (figure,) = drawn
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip()
    ]
    page = figure.bbox
    for number, (text, box) in enumerate(boxes):
        assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1, text
        for other, beside in boxes[number + 1 :]:
            wide = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            high = min(box.y1, beside.y1) - max(box.y0, beside.y0)
            assert wide <= 1 or high <= 2, (text, other)


@pytest.mark.parametrize("name", PLOTS)
def test_without_matplotlib_one_sentence_names_the_extra(
    kvplan_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = kvplan_cli(*PLOTS[name], "--plot", tmp_path / "a.png")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "kvplan: --plot: found no matplotlib, expected it installed: pip install 'kvplan-llm[plot]'\n"
    assert list(tmp_path.iterdir()) == []


def test_without_plot_matplotlib_is_not_imported(kvplan_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for args in PLOTS.values():
        assert kvplan_cli(*args).code == 0
