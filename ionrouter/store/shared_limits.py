"""Limits of keys that several servers spend from: what is reserved is a row that all of them see.

The key's row is locked while one server asks whether there is room and takes it, so that is one step for all.
A reservation ends with its request, in the transaction that books its cost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from ionrouter.errors import ConfigError, RequestError
from ionrouter.process import Threads
from ionrouter.store.database import Database, Link, StoreFault
from ionrouter.store.generation import SELECT_RUNNING, Generation, from_row, hold_more, insert_new
from ionrouter.store.keys import ApiKey
from ionrouter.store.periods import days_of
from ionrouter.store.spending import has_room, over_limit

_log = structlog.get_logger(__name__)

Result = TypeVar("Result")
NUM_THREADS = 4
MAX_WAIT_S = 5.0  # for a database that hangs; what it does all the same is of a request that has ended
LOCK_KEY = "SELECT spend_limit, limit_reset FROM api_key WHERE hash = ? FOR UPDATE"
SUMS = """
    SELECT (SELECT coalesce(sum(cost), 0) FROM key_usage WHERE key_hash = ? AND day >= ? AND day < ?),
        (SELECT coalesce(sum(reserved), 0) FROM generation WHERE key_hash = ? AND state = 'started')
"""
NOW = "SELECT extract(epoch FROM now())"
SPENT = "SELECT coalesce(sum(cost), 0) FROM key_usage"
USAGE = "SELECT key_hash, day, cost, last_used_at FROM key_usage WHERE day >= ?"


class SharedLimits:
    """Each question is a short transaction in a thread of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = Threads(NUM_THREADS, "store-limits")
        self._local = threading.local()
        self._links: list[Link] = []

    async def reserve(self, key: ApiKey, begun: Generation, now: float) -> None:
        """Write down a request with what it may cost at worst, if its key has room for it.

        Raises RequestError 402 where there is no room, 503 where the database does not say.
        """
        try:
            await self._run(lambda link: _reserve(link, key, begun, now))
        except StoreFault as error:
            _log.warning("reservation_failed", request=begun.id, error=str(error))
            raise cannot_book() from error

    async def reserve_more(self, key: ApiKey, request_id: str, amount: float, now: float) -> None:
        """Write down so many USD beside what a running request has, if there is room; raises likewise."""
        try:
            await self._run(lambda link: _reserve_more(link, key, request_id, amount, now))
        except StoreFault as error:
            _log.warning("reservation_failed", request=request_id, error=str(error))
            raise cannot_book() from error

    async def usage_since(self, day: int, key_hashes: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        """Rows of (key, day, USD, last use) from that day on, of these keys; raises StoreFault."""
        marks = ", ".join("?" * len(key_hashes))
        sql, values = f"{USAGE} AND key_hash IN ({marks})", (day, *key_hashes)
        return await self._run(lambda link: link.rows(sql, values)) if key_hashes else ()

    async def spent(self) -> float:
        """USD of all keys, whoever booked it; raises StoreFault."""
        ((total,),) = await self._run(lambda link: link.rows(SPENT))
        return float(total)

    async def running_before(self, moment: float) -> Sequence[Generation]:
        """Requests that nobody ended and that began before; raises StoreFault."""
        sql = f"{SELECT_RUNNING} AND started_at < ?"
        return [from_row(row) for row in await self._run(lambda link: link.rows(sql, (moment,)))]

    async def now(self) -> float:
        """What the database's clock says, in seconds since the epoch; raises StoreFault."""
        ((now,),) = await self._run(lambda link: link.rows(NOW))
        return float(now)

    def close(self) -> None:
        """Wait a while for what runs, then close; a connection that is in use is left alone."""
        if self._threads.close():
            for link in self._links:
                link.close()

    async def _run(self, ask: Callable[[Link], Result]) -> Result:
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, ask)
        except TimeoutError:
            raise StoreFault(f"the database did not answer for {MAX_WAIT_S:.0f} s") from None

    def _ask(self, ask: Callable[[Link], Result]) -> Result:
        link = getattr(self._local, "link", None)
        try:
            if link is not None and not link.is_broken:
                try:
                    return ask(link)
                except StoreFault:
                    if not link.is_broken:
                        raise  # else it went away while nobody asked: once more, anew
            return ask(self._opened(link))
        except ConfigError as error:
            raise StoreFault(str(error)) from error

    def _opened(self, old: Link | None) -> Link:
        if old is not None:
            self._links.remove(old)
            self._local.link = None
        link = self._database.open(is_hurried=True)
        self._local.link = link
        self._links.append(link)
        return link


def _reserve(link: Link, key: ApiKey, begun: Generation, now: float) -> None:
    with link.transaction():
        _require_room(link, key, begun.reserved, now)
        link.rows(*insert_new(begun))


def _reserve_more(link: Link, key: ApiKey, request_id: str, amount: float, now: float) -> None:
    with link.transaction():
        _require_room(link, key, amount, now)
        link.rows(*hold_more(request_id, amount))


def _require_room(link: Link, key: ApiKey, amount: float, now: float) -> None:
    """Lock the key's row until the transaction ends; raises RequestError 402."""
    for limit, reset in link.rows(LOCK_KEY, (key.hash,)):
        key = replace(key, limit=limit, limit_reset=reset)  # as it is now, whoever changed it
    period = days_of(key.limit_reset, now)
    ((spent, held),) = link.rows(SUMS, (key.hash, period.start, period.stop, key.hash))
    if key.limit is not None and not has_room(key.limit, amount, spent, held):
        raise over_limit(key, amount, spent, held)


def cannot_book() -> RequestError:
    """What a key with a limit is told while its spending cannot be written down."""
    return RequestError(
        "this key has a limit, and what it spends cannot be written down now; try again",
        status=503,
        error_type="provider_overloaded",
        headers={"Retry-After": "1"},
    )
