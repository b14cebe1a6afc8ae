"""The one thread that writes: a bounded queue, all that waits in one transaction. Knows no row's meaning.

A file that cannot be written (full disk, somebody else's lock) stops nobody: what waits is kept and tried
again, whoever awaits it is let go, and beyond `max_waiting` writes are refused and counted.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from ionrouter.errors import ConfigError
from ionrouter.store.checkpointer import Checkpointer
from ionrouter.store.database import open_database

_log = structlog.get_logger(__name__)

MAX_WAITING = 10_000  # writes; about 20 MB
LAZY_S = 0.05  # how long a write that nobody awaits may lie, so that it shares another's commit
RETRY_S = 0.5
LOCK_PATIENCE_S = 0.25  # somebody else's transaction: a backup, a person with a shell
CLOSE_TIMEOUT_S = 5.0
MAX_LOG_PAGES = 8000  # 32 MB: then the checkpointer has fallen behind, and the writer does its work
# What is wrong with one row, not with the file. ValueError: text that is no Unicode.
ROW_FAULTS = (
    sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, OverflowError, ValueError,
)  # fmt: skip

Statement = tuple[str, Sequence[Any]]
Fault = Callable[[str, int], None]  # what went wrong (see metrics.py), how many


@dataclass(slots=True)
class Write:
    """Statements that belong together. `done` is released when they are safe, or when waiting is no use."""

    statements: Sequence[Statement]
    done: asyncio.Future[None] | None = None

    def withdraw(self) -> None:
        """Leave it out if it is not written yet: what follows says all of it."""
        self.statements = ()


@dataclass(slots=True)
class Writer:
    """`put` and `close` from the event loop's thread; everything else happens in the writer's own."""

    path: Path
    fault: Fault = lambda _what, _count: None
    max_waiting: int = MAX_WAITING
    survives_power_loss: bool = False
    is_well: bool = True  # whether the last commit worked
    num_waiting: int = 0
    _waiting: deque[Write] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_closing: bool = False
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _nudge: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to write; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, statements: Sequence[Statement]) -> asyncio.Future[None] | None:
        """Queue a write for the next commit; returns what to await, or None where waiting is no use."""
        write = self._queue(statements)
        if write is None or not self.is_well or self._loop is None:
            return None
        write.done = self._loop.create_future()
        self._wake.set()
        return write.done

    def put_lazily(self, statements: Sequence[Statement]) -> Write | None:
        """Queue a write that nobody waits for; it shares another's commit, or has its own in a moment."""
        write = self._queue(statements)
        if write is not None and self._nudge is None and self._loop is not None:
            self._nudge = self._loop.call_later(LAZY_S, self._wake_lazily)
        return write

    def _queue(self, statements: Sequence[Statement]) -> Write | None:
        if self.num_waiting >= self.max_waiting or self._is_closing or self._loop is None:
            self.fault("refused", 1)
            return None
        write = Write(statements)
        self.num_waiting += 1
        self._waiting.append(write)
        return write

    def _wake_lazily(self) -> None:
        self._nudge = None
        self._wake.set()

    @property
    def accepts(self) -> bool:
        """Whether what is put now will be written in a moment."""
        return self.is_well and self.num_waiting < self.max_waiting and not self._is_closing

    async def close(self) -> None:
        """Write what waits, then end; gives up after five seconds."""
        self._is_closing = True
        if self._nudge is not None:
            self._nudge.cancel()
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
            if self._thread.is_alive() or self.num_waiting:
                _log.warning("store_left_unwritten", count=self.num_waiting)

    # In the writer's thread.

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        checkpointer = Checkpointer(self.path, lambda: self._tell("checkpoint_failed", 1))
        checkpointer.start()
        while True:
            self._wake.wait(None if self.is_well else RETRY_S)
            self._wake.clear()
            is_last = self._is_closing
            batch = list(self._waiting)
            try:
                connection = connection or self._open()
                self._commit(connection, batch)
                checkpointer.note(len(batch))
            except (sqlite3.Error, ConfigError) as error:
                self._fail(error, batch)
            if is_last:
                break
        checkpointer.close()
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = open_database(
            self.path, busy_timeout_s=LOCK_PATIENCE_S, survives_power_loss=self.survives_power_loss
        )
        connection.execute(f"PRAGMA wal_autocheckpoint={MAX_LOG_PAGES}")
        return connection

    def _commit(self, connection: sqlite3.Connection, batch: list[Write]) -> None:
        if not batch:
            return
        try:
            self._transact(connection, batch)
        except ROW_FAULTS:
            for write in batch:  # one of them is at fault: find it, keep the others
                self._commit_alone(connection, write)
        for _ in batch:
            self._waiting.popleft()
        self._release(batch, len(batch))
        if not self.is_well:
            self.is_well = True
            _log.info("store_recovered", path=str(self.path))

    def _commit_alone(self, connection: sqlite3.Connection, write: Write) -> None:
        try:
            self._transact(connection, [write])
        except ROW_FAULTS as error:
            _log.error("store_row_refused", error=str(error))
            self._tell("dropped", 1)

    def _transact(self, connection: sqlite3.Connection, batch: list[Write]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for write in batch:
                for statement, values in write.statements:
                    connection.execute(statement, values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _fail(self, error: Exception, batch: list[Write]) -> None:
        if self.is_well:
            _log.error("store_failed", path=str(self.path), error=str(error))  # once, not once a request
        self.is_well = False
        self._tell("write_failed", 1)
        self._release(batch, 0)

    def _release(self, batch: list[Write], num_written: int) -> None:
        """Let the loop's thread know: one call for the whole batch."""
        futures = [write.done for write in batch if write.done is not None]
        for write in batch:
            write.done = None
        self._call(self._settle, futures, num_written)

    def _settle(self, futures: list[asyncio.Future[None]], num_written: int) -> None:
        self.num_waiting -= num_written
        for future in futures:
            if not future.done():
                future.set_result(None)

    def _tell(self, what: str, count: int) -> None:
        self._call(self.fault, what, count)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._loop is None or self._loop.is_closed():
            function(*arguments)
            return
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # closed a moment ago
            function(*arguments)
