"""The one thread that writes: a bounded queue, all that waits in one transaction. Knows no row's meaning.

A database that cannot be written (full disk, somebody else's lock, no network) stops nobody: what waits is
kept and tried again, whoever awaits it is let go, and beyond `max_waiting` writes are refused and counted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import structlog

from ionrouter.store.checkpointer import Checkpointer
from ionrouter.store.database import Database, Link, RowFault, Statement, StoreFault
from ionrouter.store.journal import Journal
from ionrouter.store.sqlite_file import SqliteFile, SqliteLink

_log = structlog.get_logger(__name__)

MAX_WAITING = 10_000  # writes; about 20 MB
LAZY_S = 0.05  # how long a write that nobody awaits may lie, so that it shares another's commit
RETRY_S = 0.5
MAX_SETTLE_S = 1.0
LOCK_PATIENCE_S = 0.25  # somebody else's transaction: a backup, a person with a shell
SHARED_PATIENCE_S = 1.0  # other servers' commits, too
CLOSE_TIMEOUT_S = 5.0
LAST_TRY_S = 4.0  # of them, after which no commit is begun any more
MAX_LOG_PAGES = 8000  # 32 MB: then the checkpointer has fallen behind, and the writer does its work
Fault = Callable[[str, int], None]  # what went wrong (see metrics.py), how many
Book = Callable[[Sequence[Any]], Sequence[Statement]]  # from rows to statements that write all of them


@dataclass(slots=True)
class Write:
    """Statements that belong together, or a row that shares its statements with other writes' rows.

    `done` is released when they are safe, or when waiting is no use.
    """

    statements: Sequence[Statement]
    row: Any = None
    turn: tuple[Any, ...] = ()  # names the row that other servers' writes may want too
    done: asyncio.Future[None] | None = None
    entry: int = 0  # its number in the journal; 0: it is in none
    question: Statement | None = None  # what `done` is to bring: rows as they are after all writes before it

    def withdraw(self) -> None:
        """Leave it out if it is not written yet: what follows says all of it."""
        self.statements = ()


_turn = attrgetter("turn")


@dataclass(slots=True)
class Writer:
    """`put` and `close` from the event loop's thread; everything else happens in the writer's own."""

    database: Database
    fault: Fault = lambda _what, _count: None
    max_waiting: int = MAX_WAITING
    journal: Journal | None = None  # of what need not wait for its commit to be safe
    is_well: bool = True  # whether the last commit worked
    is_late: bool = False  # whether somebody has waited for a commit in vain, and none has come since
    num_waiting: int = 0
    _waiting: deque[Write] = field(default_factory=deque)
    _quiet: threading.Lock = field(default_factory=threading.Lock)  # held while there is nothing to do
    _is_closing: bool = False
    _gives_up_at: float = 0.0  # of the monotonic clock, once it is closing
    _is_waking: bool = False  # it is said already, and happens in a moment
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _nudge: asyncio.TimerHandle | None = None
    _book: Book = lambda _rows: ()

    def start(self, book: Book = lambda _rows: ()) -> None:
        """Begin to write; needs a running loop. `book` is called in the writer's thread."""
        self._book = book
        self._loop = asyncio.get_running_loop()
        self._quiet.acquire(blocking=False)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(
        self, statements: Sequence[Statement], turn: tuple[Any, ...] = (), row: Any = None
    ) -> asyncio.Future[None] | None:
        """Queue a write for the next commit; returns what to await, or None where waiting is no use."""
        write = self._queue(statements, turn, row)
        if write is None or not self.is_well or self._loop is None:
            return None
        if self.is_late:  # one who waits is enough
            self._wake_in_a_moment(self._loop)
            return None
        write.done = self._loop.create_future()
        if not self._is_waking:
            self._is_waking = True
            # At the end of this turn: one wake for all that end in it, when the interpreter is soon free.
            self._loop.call_soon(self._wake_now)
        return write.done

    def put_lazily(
        self, statements: Sequence[Statement], turn: tuple[Any, ...] = (), row: Any = None, entry: int = 0
    ) -> Write | None:
        """Queue a write that nobody waits for; it shares another's commit, or has its own in a moment.

        `entry`: its number in the journal.
        """
        write = self._queue(statements, turn, row)
        if write is not None:
            write.entry = entry
        if write is not None and self._loop is not None:
            self._wake_in_a_moment(self._loop)
        return write

    def _wake_in_a_moment(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._nudge is None:
            self._nudge = loop.call_later(LAZY_S, self._wake_lazily)

    async def settled(self) -> None:
        """Wait until what was put before is committed, or waiting is no use."""
        if self.num_waiting and (done := self.put(())) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(done, MAX_SETTLE_S)

    def ask(self, sql: str, values: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Read between two commits: all that was put before is in it, and nothing that is put later.

        Brings the rows, or None where the database does not say; None at once where waiting is no use.
        """
        write = self._queue((), (), None)
        if write is None or not self.is_well or self._loop is None:
            return None
        write.question, write.done = (sql, values), self._loop.create_future()
        self._ring()
        return write.done

    def hurry(self) -> None:
        """Let what was put lazily be written now; nobody waits for it."""
        self._ring()

    def _ring(self) -> None:
        """Wake the thread. A bare lock: an Event is a lock a wait, and a dozen calls on both sides."""
        if self._quiet.locked():
            self._quiet.release()

    def _queue(self, statements: Sequence[Statement], turn: tuple[Any, ...], row: Any) -> Write | None:
        if self.num_waiting >= self.max_waiting or self._is_closing or self._loop is None:
            self.fault("refused", 1)
            return None
        write = Write(statements, row, turn)
        self.num_waiting += 1
        self._waiting.append(write)
        return write

    def _wake_now(self) -> None:
        self._is_waking = False
        self._ring()

    def _wake_lazily(self) -> None:
        self._nudge = None
        self._ring()

    @property
    def accepts(self) -> bool:
        """Whether what is put now will be written in a moment."""
        return self.is_well and self.num_waiting < self.max_waiting and not self._is_closing

    async def close(self) -> None:
        """Write what waits, then end; tries for five seconds, then gives up."""
        self._gives_up_at = time.monotonic() + LAST_TRY_S
        self._is_closing = True
        if self._nudge is not None:
            self._nudge.cancel()
        self._ring()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
            if self._thread.is_alive() or self.num_waiting:
                _log.warning("store_left_unwritten", count=self.num_waiting)

    # In the writer's thread.

    def _run(self) -> None:
        link: Link | None = None
        checkpointer = self._checkpointer()
        while True:
            self._quiet.acquire(timeout=-1 if self.is_well else RETRY_S)
            is_last = self._is_closing
            batch = self._batch()
            try:
                link = link or self._open()
                self._commit(link, batch)
                if checkpointer is not None:
                    checkpointer.note(len(batch))
            except Exception as error:  # whatever it is: without this thread nothing is kept any more
                self._fail(error, batch)
                if link is not None and link.is_broken:
                    link = None
            if is_last and (self.is_well or not self._waiting or time.monotonic() > self._gives_up_at):
                break
        if checkpointer is not None:
            checkpointer.close()
        if link is not None:
            link.close()

    def _batch(self) -> list[Write]:
        """All that waits, up to the first question: what it asks for is answered before what follows it."""
        batch = list(self._waiting)
        end = next((at for at, write in enumerate(batch, 1) if write.question is not None), len(batch))
        if end < len(batch):
            self._ring()  # at once again
        return batch[:end]

    def _checkpointer(self) -> Checkpointer | None:
        if not isinstance(self.database, SqliteFile):
            return None
        checkpointer = Checkpointer(self.database.path, lambda: self._tell("checkpoint_failed", 1))
        checkpointer.start()
        return checkpointer

    def _open(self) -> Link:
        patience_s = SHARED_PATIENCE_S if self.database.is_shared else LOCK_PATIENCE_S
        link = self.database.open(patience_s=patience_s, is_hurried=True)
        if isinstance(link, SqliteLink):
            link.rows(f"PRAGMA wal_autocheckpoint={MAX_LOG_PAGES}")
            link.rows("PRAGMA temp_store=MEMORY")  # pages as they were before a statement of many rows
        return link

    def _commit(self, link: Link, batch: list[Write]) -> None:
        if not batch:
            return
        try:
            link.transact(self._statements(batch))
        except RowFault:
            for write in batch:  # one of them is at fault: find it, keep the others
                self._commit_alone(link, write)
        if batch[-1].question is not None:
            self._answer(link, batch[-1])
        for _ in batch:
            self._waiting.popleft()
        self._release(batch, len(batch))
        if not self.is_well:
            self.is_well = True
            _log.info("store_recovered", path=self.database.name)

    def _statements(self, batch: Sequence[Write]) -> list[Statement]:
        """What a batch writes, with one statement for many rows where they follow each other.

        In turn, so that servers which write the same rows never wait for each other in a circle. What has no
        turn goes first: the row of a request that begins stays before that of its end.
        """
        statements: list[Statement] = []
        rows: list[Any] = []
        for write in sorted(batch, key=_turn):
            if write.row is not None:
                rows.append(write.row)
            elif write.statements:
                statements += (*self._booked(rows), *write.statements)
                rows = []
        return [*statements, *self._booked(rows)]

    def _booked(self, rows: Sequence[Any]) -> Sequence[Statement]:
        try:
            return self._book(rows)
        except Exception as error:  # of one row, which must cost the others nothing
            raise RowFault(repr(error)) from error

    def _answer(self, link: Link, write: Write) -> None:
        done, write.done = write.done, None
        if done is None or write.question is None:
            return  # it was let go when a commit failed
        try:
            rows: Any = link.rows(*write.question)
        except StoreFault:
            rows = None
        self._call(lambda: None if done.done() else done.set_result(rows))

    def _commit_alone(self, link: Link, write: Write) -> None:
        try:
            link.transact(self._statements([write]))
        except RowFault as error:
            _log.error("store_row_refused", error=str(error))
            self._tell("dropped", 1)

    def _fail(self, error: Exception, batch: list[Write]) -> None:
        if self.is_well:
            _log.error("store_failed", path=self.database.name, error=str(error))  # once, not once a request
        self.is_well = False
        self._tell("write_failed", 1)
        self._release(batch, 0)

    def _release(self, batch: list[Write], num_written: int) -> None:
        """Let the loop's thread know: one call for the whole batch."""
        futures = [write.done for write in batch if write.done is not None]
        for write in batch:
            write.done = None
        entry = max((write.entry for write in batch[:num_written]), default=0)
        self._call(self._settle, futures, num_written, entry)

    def _settle(self, futures: list[asyncio.Future[None]], num_written: int, entry: int) -> None:
        self.num_waiting -= num_written
        self.is_late &= not num_written
        if self.journal is not None and entry:
            self.journal.release(entry)
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
