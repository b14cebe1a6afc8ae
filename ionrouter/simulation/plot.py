"""A comparison as a picture: one SVG, three panels, a bar for every strategy. Draws, computes nothing.

Pictures bring their own background, and turn dark where whoever looks at them prefers that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from ionrouter.simulation.report import Comparison, Figures

WIDTH, ROW, LABEL, PANEL, HEAD = 900, 26, 120, 250, 64  # pixels

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "ours": "#1f6feb",
    "other": "#8c959f",
}
DARK: Mapping[str, str] = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "ours": "#58a6ff",
    "other": "#6e7681",
}

PANELS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("cost of a request, times the clairvoyant's", lambda row: row.regret + 1, "{:.2f}"),
    ("whole answer, p95, seconds", lambda row: row.whole_p95_s, "{:.1f}"),
    ("wasted attempts, per 100 requests", lambda row: 100 * row.wasted, "{:.1f}"),
)


def svg(comparison: Comparison) -> str:
    """Draw it."""
    parts = []
    for place, row in enumerate(comparison.rows):
        parts.append(text(LABEL - 8, _y(place) + 15, row.strategy, 'text-anchor="end"'))
    for number, (title, value, form) in enumerate(PANELS):
        parts += _panel(LABEL + number * (PANEL + 10), title, comparison.rows, value, form)
    title = f"{comparison.scenario}: {comparison.seeds} seeds"
    return picture(title, HEAD + ROW * len(comparison.rows) + 12, parts)


def picture(title: str, height: int, parts: Iterable[str]) -> str:
    """Frame what was drawn: `ir-ink` and the like are the classes of its colours, by LIGHT's names."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<style>{_rules(LIGHT)} @media (prefers-color-scheme: dark) {{ {_rules(DARK)} }}</style>",
        f'<rect class="ir-paper" width="{WIDTH}" height="{height}" rx="6"/>',
        text(12, 22, title, 'font-size="15" font-weight="bold"'),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rules(colours: Mapping[str, str]) -> str:
    return " ".join(f".ir-{name} {{ fill: {colour}; }}" for name, colour in colours.items())


def text(x: float, y: float, words: str, more: str = "", colour: str = "ink") -> str:
    """Write words, their first letter at `x` unless `more` says otherwise."""
    return f'<text class="ir-{colour}" x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def _panel(
    x: int, title: str, rows: Sequence[Figures], value: Callable[[Figures], float], form: str
) -> list[str]:
    """Bars from 0, as long as their values."""
    most = max((value(row) for row in rows), default=0.0) or 1.0
    parts = [text(x, HEAD - 12, title, colour="faint")]
    for place, row in enumerate(rows):
        width = (PANEL - 60) * value(row) / most
        colour = "ours" if row.strategy == "expected-cost" else "other"
        y = _y(place)
        parts.append(f'<rect class="ir-{colour}" x="{x}" y="{y + 3}" width="{width:.1f}" height="16"/>')
        parts.append(text(x + width + 5, y + 15, form.format(value(row))))
    return parts


def _y(place: int) -> int:
    return HEAD + ROW * place
