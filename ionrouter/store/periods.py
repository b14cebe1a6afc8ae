"""UTC days and the stretches a limit counts over. Days are numbered from the epoch; knows no money."""

from __future__ import annotations

import datetime
from typing import Literal, get_args

LimitReset = Literal["daily", "weekly", "monthly"]
RESETS: tuple[str, ...] = get_args(LimitReset)
DAY_S = 86_400.0
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


def resets_at(reset: LimitReset | None, now: float) -> float | None:
    """When the next period begins."""
    if reset is None:
        return None
    first = date_of(first_day(reset, now))
    if reset == "monthly":
        following = (first.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)
    else:
        following = first + datetime.timedelta(days=1 if reset == "daily" else 7)
    return (following - EPOCH).days * DAY_S


def iso(moment: float) -> str:
    """Write a moment as clients read it: 2026-11-28T04:20:00.123Z."""
    stamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
