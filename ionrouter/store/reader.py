"""Reads that may scan, in a thread of their own, so that the event loop never waits for the database.

SQLAlchemy is imported by the first of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog

from ionrouter.errors import ConfigError, RequestError
from ionrouter.process import Threads
from ionrouter.store.database import Database

_log = structlog.get_logger(__name__)

Result = TypeVar("Result")
Read = Callable[[Any], Result]  # of a sqlalchemy.Connection
NUM_THREADS = 2  # a long report does not hold up a look-up
MAX_QUERY_S = 30.0


class Reader:
    """Runs functions of an SQLAlchemy connection; connections are opened at first use and cannot write."""

    def __init__(
        self,
        database: Database,
        *,
        max_query_s: float = MAX_QUERY_S,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`settled` waits until what was put before is committed, so that a reader finds it."""
        self._database, self._max_query_s, self._settled = database, max_query_s, settled
        self._threads = Threads(NUM_THREADS, "store-reader")
        self._local = threading.local()
        self._opened: list[Any] = []  # the driver's connections

    async def run(self, read: Read[Result]) -> Result:
        """Run `read` in a reader's thread; raises RequestError 408 when it takes too long, 503 on a fault."""
        if self._settled is not None:
            await self._settled()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)

    async def one(self, sql: str, values: Sequence[Any]) -> Sequence[Any] | None:
        """The first row of a statement of ours, with `?` for values."""
        return await self.run(lambda connection: self._one(connection, sql, values))

    def _one(self, connection: Any, sql: str, values: Sequence[Any]) -> Sequence[Any] | None:
        marked = sql.replace("?", "%s") if self._database.dialect == "postgresql" else sql
        row = connection.exec_driver_sql(marked, tuple(values)).fetchone()
        return None if row is None else tuple(row)

    def _read(self, read: Read[Result]) -> Result:
        from sqlalchemy.exc import DBAPIError

        had_connection = getattr(self._local, "driver", None) is not None
        try:
            return self._query(read)
        except DBAPIError as error:
            if error.connection_invalidated and had_connection:  # it went away while nobody asked
                return self._read(read)
            raise self._refusal(error.orig or error) from error
        except ConfigError as error:
            raise self._refusal(error) from error

    def _query(self, read: Read[Result]) -> Result:
        from sqlalchemy.exc import DBAPIError

        driver = self._driver()
        self._database.begin_query(driver, self._max_query_s)
        with self._local.engine.connect() as connection:
            try:
                return read(connection)
            except DBAPIError as error:
                if error.connection_invalidated:
                    self._forget(driver)
                raise

    def _driver(self) -> Any:
        driver = getattr(self._local, "driver", None)
        if driver is None:
            driver = self._database.open_to_read(self._max_query_s)
            self._local.driver, self._local.engine = driver, engine_over(self._database, driver)
            self._opened.append(driver)
        return driver

    def _forget(self, driver: Any) -> None:
        self._local.driver = None
        self._opened.remove(driver)

    def _refusal(self, error: BaseException) -> RequestError:
        if self._database.was_too_slow(error):
            return RequestError(
                f"the query took longer than {self._max_query_s:.0f} s; ask for less",
                status=408,
                error_type="timeout",
            )
        _log.warning("store_unreadable", database=self._database.name, error=str(error))
        return unavailable("see the server's log")  # the reason names files or hosts

    def close(self) -> None:
        """Wait a while for what runs, then close; a connection that is in use is left alone."""
        if self._threads.close():
            for driver in self._opened:
                driver.close()


def engine_over(database: Database, driver: Any) -> Any:
    """An SQLAlchemy engine over one open connection of the driver, for one thread."""
    from sqlalchemy import StaticPool, create_engine

    dialect = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}[database.dialect]
    return create_engine(
        f"{dialect}://", creator=lambda: driver, poolclass=StaticPool, isolation_level="AUTOCOMMIT"
    )


def unavailable(reason: str) -> RequestError:
    return RequestError(
        f"the state database cannot be read now: {reason}", status=503, error_type="provider_overloaded"
    )
