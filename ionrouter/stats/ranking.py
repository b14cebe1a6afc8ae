"""Rows in the order of a figure, the first so many of them, without holding them all. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ionrouter.stats.book import StatsBook
from ionrouter.stats.query import COUNTS, METRICS, Place, Question, Row, percentile_name, places, row_at

_NO_VALUES = ("outcomes",)  # several figures in one


@dataclass(frozen=True, slots=True)
class Order:
    """By what: the name of a column, or a metric and one of its figures: ("ttft_ms", "p99")."""

    path: tuple[str, ...]
    is_descending: bool = False


def sortable(question: Question) -> frozenset[tuple[str, ...]]:
    """Every path that rows of this question may be ordered by."""
    columns = [*question.group_by, *COUNTS, *(["start"] if question.resolution else [])]
    parts = ["n", *(percentile_name(percentile) for percentile in question.percentiles)]
    figures = [(metric, part) for metric in METRICS for part in parts]
    return frozenset([*((column,) for column in columns if column not in _NO_VALUES), *figures])


def ranked(book: StatsBook, question: Question, order: Order, limit: int) -> Iterator[Row | None]:
    """The first `limit` rows; what has no value comes last, ties as they come. Steps as in `query.steps`.

    Rows that are one of many of a group are worked out twice, to be put in order and to be told, and
    forgotten in between: a month by the hour is hundreds of thousands.
    """
    best = _Best(limit, order.is_descending)
    for place in places(book, question):
        if place is None:
            yield None
            continue
        for row in row_at(place, question):
            if row is not None:
                best.add(_value(row, order.path), row if place.number is None else place)
            yield None
    for found in best.found():
        if isinstance(found, Place):
            yield from row_at(found, question)
        else:
            yield found


def _value(row: Row, path: tuple[str, ...]) -> Any:
    value: Any = row
    for name in path:
        value = value[name]
    return value


@dataclass(slots=True)
class _Best:
    """The first so many of what has been added, in order."""

    limit: int
    is_descending: bool
    _valued: list[tuple[Any, int, Row | Place]] = field(default_factory=list)  # rising
    _unvalued: list[Row | Place] = field(default_factory=list)
    _num_added: int = 0

    def add(self, value: Any, what: Row | Place) -> None:
        self._num_added += 1
        if value is None:
            if len(self._unvalued) < self.limit:
                self._unvalued.append(what)
            return
        # Falling order is the rising one backwards, so its ties are numbered backwards, too.
        tie = -self._num_added if self.is_descending else self._num_added
        insort(self._valued, (value, tie, what))
        if len(self._valued) > self.limit:
            self._valued.pop(0 if self.is_descending else -1)

    def found(self) -> list[Row | Place]:
        valued = [what for _, _, what in self._valued]
        if self.is_descending:
            valued.reverse()
        return [*valued, *self._unvalued][: self.limit]
