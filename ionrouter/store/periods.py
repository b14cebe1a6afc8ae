"""UTC days and the stretches a limit counts over. Days are numbered from the epoch; knows no money."""

from __future__ import annotations

import datetime
from typing import Literal, get_args

LimitReset = Literal["daily", "weekly", "monthly"]
RESETS: tuple[str, ...] = get_args(LimitReset)
DAY_S = 86_400.0
MAX_DAY = 2**31 - 1  # more than any date, and a whole number in every database
EPOCH = datetime.date(1970, 1, 1)


def day_of(moment: float) -> int:
    """Number the UTC day of a wall-clock moment."""
    return int(moment // DAY_S)


def date_of(day: int) -> datetime.date:
    return EPOCH + datetime.timedelta(days=day)


def first_day(reset: LimitReset | None, now: float) -> int:
    """First day of the period that `now` is in; weeks start on Monday. None: there is but one period."""
    if reset is None:
        return 0
    day = day_of(now)
    date = date_of(day)
    return day - {"daily": 0, "weekly": date.weekday(), "monthly": date.day - 1}[reset]


def days_of(reset: LimitReset | None, now: float) -> range:
    """All days of the period that `now` is in, later ones too.

    Days beyond it hold what was spent while a clock was ahead: that is of a period which has not begun.
    """
    first = first_day(reset, now)
    if reset is None:
        return range(first, MAX_DAY)
    if reset == "monthly":
        date = date_of(first)
        following = (date.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)
        return range(first, (following - EPOCH).days)
    return range(first, first + (1 if reset == "daily" else 7))


def resets_at(reset: LimitReset | None, now: float) -> float | None:
    """When the next period begins."""
    return None if reset is None else days_of(reset, now).stop * DAY_S


def iso(moment: float) -> str:
    """Write a moment as clients read it: 2026-11-28T04:20:00.123Z."""
    stamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
