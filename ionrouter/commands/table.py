"""Tables that fit where they are printed: figures whole, names folded, the least needed columns left out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

LEAST_TEXT = 12  # a name's line: rather than fold it more, a column of figures goes
GAP = 2  # between two columns
Kind = Literal["figure", "word", "text", "bars"]
_GROWING: tuple[Kind, ...] = ("text", "bars", "figure", "word")  # who gets room first beyond the least


@dataclass(frozen=True, slots=True)
class Column:
    """A figure and a word are never cut, a text folds, bars lose the oldest.

    `rank`: how early the column goes where there is no room, the highest first; with 0 it stays.
    """

    heading: str
    kind: Kind = "figure"
    rank: int = 0


class _Fitted:
    """A column with its cells; `width` grows from the least that can be read."""

    def __init__(self, column: Column, cells: Sequence[str]) -> None:
        self.column, self.cells = column, cells
        longest = max(map(cell_len, cells), default=0)
        own = {"text": min(longest, LEAST_TEXT), "bars": 0}.get(column.kind, longest)
        self.width = max(own, *(cell_len(word) for word in column.heading.split()))
        self.most = max(longest, cell_len(column.heading))  # nothing folded, the heading on one line

    @property
    def heading(self) -> Text:
        return Text("\n".join(textwrap.wrap(self.column.heading, self.width)))

    @property
    def texts(self) -> list[Text]:
        """The cells as they are: a name's brackets are no markup. The latest bars are the right ones."""
        is_cut = self.column.kind == "bars"
        return [Text(cell[-self.width :] if is_cut else cell) for cell in self.cells]


def fitting(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    title: str = "",
    caption: str = "",
) -> Table:
    """Lay out rows, a cell for each column, for a console of `width`."""
    by_column = list(zip(*rows, strict=True)) or [()] * len(columns)
    shown = [_Fitted(column, cells) for column, cells in zip(columns, by_column, strict=True)]
    _drop(shown, width)
    _grow(shown, width - _needed(shown))
    # No lines between columns: they would cost a narrow terminal two columns of figures.
    table = Table(
        title=Text(title, "table.title") if title else None,
        title_justify="left",
        caption=Text(caption, "table.caption") if caption else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
    )
    for fitted in shown:
        kind = fitted.column.kind
        table.add_column(
            fitted.heading,
            justify="right" if kind == "figure" else "left",
            no_wrap=kind != "text",
            overflow="fold",
            width=fitted.width,
        )
    for row in zip(*(fitted.texts for fitted in shown), strict=True):
        table.add_row(*row)
    return table


def _needed(shown: Sequence[_Fitted]) -> int:
    return sum(fitted.width for fitted in shown) + GAP * (len(shown) - 1)


def _drop(shown: list[_Fitted], width: int) -> None:
    while _needed(shown) > width:
        least_needed = max(shown, key=lambda fitted: fitted.column.rank)
        if least_needed.column.rank == 0:
            return
        shown.remove(least_needed)


def _grow(shown: Sequence[_Fitted], spare: int) -> None:
    """What is left goes to texts, then to bars, then to headings; among each to the narrowest."""
    for kind in _GROWING:
        growing = [fitted for fitted in shown if fitted.column.kind == kind]
        while spare > 0 and (growing := [fitted for fitted in growing if fitted.width < fitted.most]):
            min(growing, key=lambda fitted: fitted.width).width += 1
            spare -= 1
