"""What may be asked of the generations, and how the answer looks. No SQL, no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ionrouter.store.periods import date_of

DATE, COUNT = "date", "request_count"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """`field` and `operator` are names of the tables in report_terms; `value` a list where one is taken."""

    field: str
    operator: str
    value: Any
    includes_unset: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What to add up. Names are checked by whoever asks; times are wall clock, `end` is not included."""

    metrics: Sequence[str]
    start: float
    end: float
    dimensions: Sequence[str] = ()
    filters: Sequence[Filter] = ()
    granularity: str | None = None
    order_by: str | None = None
    is_descending: bool = False
    limit: int = 1000
    group_limit: int | None = None

    @property
    def groups(self) -> list[str]:
        """Name of every column that rows are told apart by."""
        return [DATE, *self.dimensions] if self.granularity else [*self.dimensions]


@dataclass(frozen=True, slots=True)
class Report:
    rows: Sequence[Row]
    is_truncated: bool


def last_days(today: int, num_days: int = 30) -> Mapping[str, int]:
    """The completed UTC days that activity is told of: date -> day number."""
    return {date_of(day).isoformat(): day for day in range(today - num_days, today)}
