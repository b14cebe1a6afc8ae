"""What each key has spent, day by day, and what its running requests may still spend.

Reservations are what keeps twelve requests at once from passing a limit that one of them fills. One thread
only, so that "is there room" and "take it" are one step. USD; times are wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.errors import RequestError
from ionrouter.store.database import Link
from ionrouter.store.keys import ApiKey
from ionrouter.store.periods import LimitReset, day_of, days_of

NO_KEY = ""  # whoever called while keys were off
KEPT_DAYS = 62  # one by one: the longest period and another
_LOAD = """
    SELECT key_hash, CASE WHEN day < ? THEN ? ELSE day END AS kept_day, sum(cost), max(last_used_at)
    FROM key_usage GROUP BY key_hash, kept_day
"""
_LATEST = "SELECT max(day) FROM key_usage"
AHEAD_S = 60.0  # what is later than now by more was noted while a clock was ahead
DIGITS = 12  # of a dollar, as callers are told it
ROUNDING = 1e-9  # of a limit; the sum of ten million floats may miss it by less


@dataclass(slots=True)
class Spending:
    """One key's."""

    days: dict[int, float] = field(default_factory=dict)  # UTC day -> USD
    reserved: dict[str, float] = field(default_factory=dict)  # request -> USD
    last_used_at: float | None = None

    def since(self, reset: LimitReset | None, now: float) -> float:
        """Add up the period that `now` is in."""
        period = days_of(reset, now)
        return sum(cost for day, cost in self.days.items() if day in period)


@dataclass(slots=True)
class SpendingBook:
    """All keys'. Filled from the database once, kept by settling every request."""

    clock: Callable[[], float] = time.time
    _keys: dict[str, Spending] = field(default_factory=dict)  # key hash -> spending
    _total: float = 0.0  # of all of them: there may be millions of days
    _settled: dict[tuple[str, int], float] | None = None  # by key and day, since others' sums were asked for

    @classmethod
    def load(cls, link: Link, today: int | None = None) -> SpendingBook:
        """Read what the database knows: one row a key and day, what is before KEPT_DAYS as one day's.

        Those count from the latest day that anything was spent on: should the clock be ahead just now, this
        month's days would be among what is long over.
        """
        book, oldest = cls(), 0
        if today is not None:
            ((latest,),) = link.rows(_LATEST)
            oldest = min(today, today if latest is None else latest) - KEPT_DAYS
        book.take_over(link.rows(_LOAD, (oldest, oldest - 1)))
        return book

    def take_over(self, rows: Iterable[Sequence[Any]]) -> None:
        """Replace the sums of keys and days by those of the database, which other servers write too."""
        for key, day, cost, last_used_at in rows:
            spending = self.of(key)
            cost += self._settled.get((key, day), 0.0) if self._settled else 0.0
            self._total += cost - spending.days.get(day, 0.0)
            spending.days[day] = cost
            self._note_use(spending, last_used_at)

    def note_settled(self, *, is_on: bool) -> None:
        """Keep what is settled from now on for `take_over`, whose sums were read before; or end that."""
        self._settled = {} if is_on else None

    def of(self, key: str | None) -> Spending:
        spending = self._keys.get(key or NO_KEY)
        if spending is None:
            spending = self._keys[key or NO_KEY] = Spending()
        return spending

    def total(self) -> float:
        return self._total

    def remaining(self, key: ApiKey, now: float) -> float | None:
        """USD left in this period, running requests aside, never below 0; None without a limit."""
        if key.limit is None:
            return None
        return max(0.0, key.limit - self.of(key.hash).since(key.limit_reset, now))

    def reserve(self, key: ApiKey, request_id: str, amount: float, now: float) -> None:
        """Set aside what a request may cost at worst; raises RequestError 402 where a limit leaves no room.

        What costs nothing is let through a used-up limit.
        """
        self._require_room(key, amount, now)
        self.of(key.hash).reserved[request_id] = amount

    def reserve_more(self, key: ApiKey, request_id: str, amount: float, now: float) -> None:
        """Set aside so much beside what a running request has; raises likewise."""
        self._require_room(key, amount, now)
        reserved = self.of(key.hash).reserved
        reserved[request_id] = reserved.get(request_id, 0.0) + amount

    def _require_room(self, key: ApiKey, amount: float, now: float) -> None:
        spending = self.of(key.hash)
        if key.limit is not None and amount > 0:
            spent, held = spending.since(key.limit_reset, now), sum(spending.reserved.values())
            if not has_room(key.limit, amount, spent, held):
                raise over_limit(key, amount, spent, held)

    def settle(self, key: str | None, request_id: str, cost: float, started_at: float) -> None:
        """Give a request's reservation back and book what it did cost, under the day in which it began."""
        spending = self.of(key)
        spending.reserved.pop(request_id, None)
        day = day_of(started_at)
        if self._settled is not None:
            name = key or NO_KEY, day
            self._settled[name] = self._settled.get(name, 0.0) + cost
        spending.days[day] = spending.days.get(day, 0.0) + cost
        self._total += cost
        self._note_use(spending, started_at)

    def _note_use(self, spending: Spending, moment: float) -> None:
        """Keep the latest moment that has come; one that has not is better than none."""
        known, latest = spending.last_used_at, self.clock() + AHEAD_S
        if known is None or known < moment <= latest or (known > latest and moment < known):
            spending.last_used_at = moment

    def snapshot(self) -> Mapping[str, Mapping[int, float]]:
        """Copy the sums, for comparing."""
        return {key: dict(spending.days) for key, spending in self._keys.items()}


def has_room(limit: float, amount: float, spent: float, held: float) -> bool:
    """Ask whether so many USD more fit under a limit, or just fill it, but for the noise of sums."""
    return spent + held + amount <= limit * (1 + ROUNDING)


def over_limit(key: ApiKey, amount: float, spent: float, held: float) -> RequestError:
    """Say the limit, what is left of it, and what would help."""
    assert key.limit is not None
    left = max(0.0, round(key.limit - spent - held, DIGITS))
    period = f" {key.limit_reset}" if key.limit_reset else ""
    running = f", with {usd(held)} held for running requests" if held else ""
    return RequestError(
        f"this key's{period} limit is {usd(key.limit)} and {usd(left)} is left{running}; "
        f"this request may cost up to {usd(amount)}: lower max_tokens or raise the limit",
        status=402,
        error_type="payment_required",
        metadata={
            "limit": key.limit,
            "limit_remaining": left,
            "limit_reset": key.limit_reset,
            "reserved": round(held, DIGITS),
            "required": round(amount, DIGITS),
        },
    )


def usd(amount: float) -> str:
    """Write dollars without noise: $0.0005, $5."""
    text = f"{amount:.8f}".rstrip("0").rstrip(".")
    return f"${text}"
