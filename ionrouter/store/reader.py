"""Reads that may scan, in a thread of their own, so that the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ionrouter.errors import ConfigError, RequestError
from ionrouter.store.database import open_database

Result = TypeVar("Result")
NUM_THREADS = 2  # a long report does not hold up a look-up
MAX_QUERY_S = 30.0
STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine: about a millisecond


class Reader:
    """Runs functions of a connection; connections are opened at first use and cannot write."""

    def __init__(self, path: Path, *, max_query_s: float = MAX_QUERY_S) -> None:
        self._path, self._max_query_s = path, max_query_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, "store-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def run(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `read` in a reader's thread; raises RequestError 408 when it takes too long, 503 on a fault."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)

    def _read(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            connection = self._connection()
            deadline = time.monotonic() + self._max_query_s
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), STEPS_BETWEEN_LOOKS)
            return read(connection)
        except sqlite3.OperationalError as error:
            if str(error) == "interrupted":
                raise RequestError(
                    f"the query took longer than {self._max_query_s:.0f} s; ask for less",
                    status=408,
                    error_type="timeout",
                ) from None
            raise unavailable(str(error)) from error
        except (sqlite3.DatabaseError, ConfigError) as error:
            raise unavailable(str(error)) from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = open_database(self._path, is_shared=True)
            connection.execute("PRAGMA query_only=ON")
            self._local.connection = connection
            self._connections.append(connection)
        return connection

    def close(self) -> None:
        """Wait for what runs, then close."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections:
            connection.close()


def unavailable(reason: str) -> RequestError:
    return RequestError(
        f"the state database cannot be read now: {reason}", status=503, error_type="provider_overloaded"
    )
