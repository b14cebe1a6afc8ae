"""Tables fit the console: every figure whole, names folded, what is left out the least needed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ionrouter.commands.table import Column, fitting

NAME = "anthropic/claude-sonnet-4.5-latest"
COLUMNS = (
    Column("model", "text"),
    Column("requests"),
    Column("state", "word", rank=1),
    Column("first token p50", rank=2),
    Column("requests by hour", "bars", rank=3),
)
ROWS = [[NAME, "123456", "enabled", "1234 ms", "▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄"], ["b", "7", "off", "-", ""]]


def lines(
    width: int, columns: tuple[Column, ...] = COLUMNS, rows: list[list[str]] = ROWS, title: str = ""
) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(fitting(columns, rows, width, title=title))
    found = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, found)) <= width
    return found


def test_a_wide_console_shows_all_on_one_line_each() -> None:
    assert lines(120) == [
        "model                               requests  state    first token p50  requests by hour",
        "─" * 92,
        f"{NAME}    123456  enabled          1234 ms  ▁▂▃▄▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄",
        "b                                          7  off                    -",
    ]


def test_bars_lose_the_oldest_and_headings_fold_before_names_do() -> None:
    found = lines(80)
    assert found[:3] == [
        "                                                         first",
        "                                                         token",
        "model                               requests  state        p50  requests by hour",
    ]
    assert found[4] == f"{NAME}    123456  enabled  1234 ms  ▅▆▇█▁▂▃▄▅▆▇█▁▂▃▄"


@pytest.mark.parametrize(
    ("width", "figures", "gone"),
    [
        (60, ["123456", "enabled", "1234 ms", "▇█▁▂▃▄"], ""),
        (45, ["123456", "enabled", "1234 ms"], "▄"),
        (32, ["123456", "enabled"], "ms"),
        (22, ["123456"], "enabled"),
    ],
)
def test_the_least_needed_goes_and_the_rest_is_whole(width: int, figures: list[str], gone: str) -> None:
    text = "\n".join(lines(width))
    assert all(figure in text for figure in figures)
    assert not gone or gone not in text
    assert "…" not in text
    names = [line.split("  ")[0].strip() for line in lines(width) if not line.startswith(" ")]
    assert NAME in "".join(names), "a name is folded, not cut"


def test_names_with_brackets_are_no_markup() -> None:
    (*_, row) = lines(40, (Column("name", "text"), Column("spent")), [["[red]x[/nothing]", "$5"]], "a [b]")
    assert row.startswith("[red]x[/nothing]")


def test_no_rows_leave_the_headings() -> None:
    assert lines(80, rows=[])[0].split("  ") == [column.heading for column in COLUMNS]
