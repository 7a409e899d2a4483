"""Bars and curves as SVG text that any browser draws without help. Colours are the style sheet's series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from kvplan.report.document.blocks import Picture
from kvplan.units import gib, tokens

WIDTH = 860
SERIES = 8
_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 80, 20, 14, 44, 320


def _svg(height: float, says: str, parts: Sequence[str]) -> Picture:
    body = "".join(parts)
    label = escape(says, quote=True)
    return Picture(f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">{body}</svg>', says)


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:g}" class="fill {kind}"/>'


def stacked(title: str, parts: Sequence[tuple[str, int]], total: int) -> Picture:
    """One bar of `total` bytes, in parts; what they leave is pale. The key stands below it."""
    whole = max(total, sum(size for _, size in parts)) or 1
    drawn, at = [_rect(0, 0, WIDTH, 36, "spare")], 0.0
    for place, (_, size) in enumerate(parts):
        width = WIDTH * size / whole
        drawn.append(_rect(at, 0, width - 1, 36, f"s{place % SERIES}"))
        at += width
    for place, (name, size) in enumerate(parts):
        x, y = (place % 3) * WIDTH / 3, 56 + 20 * (place // 3)
        drawn += [_rect(x, y - 10, 11, 11, f"s{place % SERIES}"), _text(x + 17, y, f"{name}: {gib(size)}")]
    says = f"{title}, {gib(total)}: {', '.join(f'{name} {gib(size)}' for name, size in parts)}"
    return _svg(56 + 20 * ((len(parts) - 1) // 3) + 6, says, drawn)


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, logarithmic: bool = False) -> Picture:
    """One line of words and a bar for each of `rows`: name, value, the value in words."""
    positive = [value for _, value, _ in rows if value > 0] or [1.0]
    high = max(positive)
    low = math.log(min(positive)) - 0.15 * (math.log(high / min(positive)) or 1)
    drawn = []
    for place, (name, value, words) in enumerate(rows):
        share = value / high
        if logarithmic:
            share = (math.log(value) - low) / (math.log(high) - low) if value > 0 else 0.0
        y = place * 44
        drawn += [
            _text(0, y + 14, name if len(name) < 90 else f"{name[:89]}\u2026"), _text(WIDTH, y + 14, words, "end"),
            _rect(0, y + 20, WIDTH, 14, "spare"), _rect(0, y + 20, WIDTH * share, 14, "s0"),
        ]  # fmt: skip
    scale = ", logarithmic" if logarithmic else ""
    says = f"{title}{scale}: {'; '.join(f'{name} {words}' for name, _, words in rows)}"
    return _svg(max(1, len(rows)) * 44, says, drawn)


def curves(title: str, lines: Sequence[tuple[str, Sequence[int], Sequence[int]]]) -> Picture | None:
    """Bytes against tokens, both logarithmic; None without two points to join."""
    lines = [line for line in lines if len(line[1]) > 1][:SERIES]
    xs = [math.log2(x) for _, line, _ in lines for x in line]
    ys = [math.log2(y) for _, _, line in lines for y in line if y > 0]
    if not lines or not ys or max(xs) == min(xs):
        return None
    x0, x1, y0, y1 = min(xs), max(xs), math.floor(min(ys)), math.ceil(max(ys) + 0.01)

    def x(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log2(value) - x0) / (x1 - x0)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (y1 - math.log2(max(value, 1))) / (y1 - y0)

    drawn = []
    for power in range(y0, y1 + 1, max(1, -(-(y1 - y0) // 6))):
        drawn.append(f'<path class="axis" d="M{_LEFT} {y(2.0**power):.1f}H{WIDTH - _RIGHT}"/>')
        drawn.append(_text(_LEFT - 8, y(2.0**power) + 4, gib(int(2.0**power)), "end", "soft"))
    for power in range(math.ceil(x0), math.floor(x1) + 1, max(1, -(-int(x1 - x0) // 8))):
        drawn.append(f'<path class="axis" d="M{x(2.0**power):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        drawn.append(_text(x(2.0**power), _HEIGHT - _BOTTOM + 18, tokens(2**power), "middle", "soft"))
    drawn.append(_text(WIDTH / 2, _HEIGHT - 6, "tokens, both scales logarithmic", "middle", "soft"))
    for place, (name, contexts, values) in enumerate(lines):
        points = "L".join(f"{x(n):.1f} {y(size):.1f}" for n, size in zip(contexts, values, strict=True))
        drawn.append(f'<path class="stroke s{place}" d="M{points}"/>')
        row = _HEIGHT + 16 + 20 * (place // 2)
        drawn += [
            _rect(place % 2 * WIDTH / 2, row - 10, 11, 11, f"s{place}"),
            _text(place % 2 * WIDTH / 2 + 17, row, name),
        ]
    ends = "; ".join(f"{name} {gib(values[0])} to {gib(values[-1])}" for name, _, values in lines)
    return _svg(_HEIGHT + 20 * -(-len(lines) // 2) + 8, f"{title}, by tokens: {ends}", drawn)
