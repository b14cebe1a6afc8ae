"""A comparison as a picture: one SVG, three panels, a bar for every strategy. Draws, computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from ionrouter.simulation.report import Comparison, Figures

WIDTH, ROW, LABEL, PANEL, HEAD = 900, 26, 120, 250, 64  # pixels
COLOURS = {"expected-cost": "#1f6feb"}
OTHER = "#9aa4b2"

PANELS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("cost of a request, times the clairvoyant's", lambda row: row.regret + 1, "{:.2f}"),
    ("whole answer, p95, seconds", lambda row: row.whole_p95_s, "{:.1f}"),
    ("wasted attempts, per 100 requests", lambda row: 100 * row.wasted, "{:.1f}"),
)


def svg(comparison: Comparison) -> str:
    """Draw it."""
    height = HEAD + ROW * len(comparison.rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(
            12, 22, f"{comparison.scenario}: {comparison.seeds} seeds", 'font-size="15" font-weight="bold"'
        ),
    ]
    for place, row in enumerate(comparison.rows):
        parts.append(_text(LABEL - 8, _y(place) + 15, row.strategy, 'text-anchor="end"'))
    for number, (title, value, form) in enumerate(PANELS):
        parts += _panel(LABEL + number * (PANEL + 10), title, comparison.rows, value, form)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    x: int, title: str, rows: Sequence[Figures], value: Callable[[Figures], float], form: str
) -> list[str]:
    """Bars from 0, as long as their values."""
    most = max((value(row) for row in rows), default=0.0) or 1.0
    parts = [_text(x, HEAD - 12, title, 'fill="#57606a"')]
    for place, row in enumerate(rows):
        width = (PANEL - 60) * value(row) / most
        colour = COLOURS.get(row.strategy, OTHER)
        parts.append(f'<rect x="{x}" y="{_y(place) + 3}" width="{width:.1f}" height="16" fill="{colour}"/>')
        parts.append(_text(x + width + 5, _y(place) + 15, form.format(value(row)), ""))
    return parts


def _y(place: int) -> int:
    return HEAD + ROW * place


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" {more}>{escape(text)}</text>'
