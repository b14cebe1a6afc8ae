"""The embedded SQLite file: where it lies, how it is opened, how it is brought up to date. Knows no row."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ionrouter.errors import ConfigError
from ionrouter.store.database import BUSY_TIMEOUT_S, RowFault, Statement, StoreFault
from ionrouter.store.schema import HEAD, first_statements, newer

STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine: about a millisecond
# What is wrong with one row, not with the file. ValueError: text that is no Unicode.
ROW_FAULTS = (
    sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, OverflowError, ValueError,
)  # fmt: skip
# NULL for what it is. Without this the module asks None, and then itself, how to adapt it: an AttributeError
# that is raised and dropped for each empty column.
sqlite3.register_adapter(type(None), lambda none: none)


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file for one server. `survives_power_loss`: a commit waits for the disk, not for the process only."""

    path: Path
    survives_power_loss: bool = False
    dialect: Literal["sqlite"] = "sqlite"
    is_shared: bool = False

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self, *, patience_s: float = BUSY_TIMEOUT_S, is_hurried: bool = False) -> SqliteLink:
        return SqliteLink(
            open_database(self.path, busy_timeout_s=patience_s, survives_power_loss=self.survives_power_loss)
        )

    def open_to_read(self, max_query_s: float) -> sqlite3.Connection:
        connection = open_database(self.path, is_shared=True)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def begin_query(self, connection: sqlite3.Connection, max_query_s: float) -> None:
        deadline = time.monotonic() + max_query_s
        connection.set_progress_handler(lambda: int(time.monotonic() > deadline), STEPS_BETWEEN_LOOKS)

    def was_too_slow(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and str(error) == "interrupted"


class SqliteLink:
    """See database.Link."""

    is_broken = False  # the next statement opens what has to be opened

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._data_version = -1

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with _faults():
            return self.connection.execute(sql, values).fetchall()

    def transact(self, statements: Sequence[Statement]) -> None:
        execute = self.connection.execute
        try:  # as `transaction`, which costs a fifth of a short one
            execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                execute(sql, values)
            execute("COMMIT")
        except BaseException as error:
            with _faults():
                if self.connection.in_transaction:
                    execute("ROLLBACK")
                raise error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _faults():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def may_have_changed(self) -> bool:
        # data_version moves when another connection commits anything: microseconds, from shared memory.
        ((version,),) = self.rows("PRAGMA data_version")
        before, self._data_version = self._data_version, version
        return bool(version != before)

    def close(self) -> None:
        self.connection.close()


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except ROW_FAULTS as error:
        raise RowFault(str(error)) from error
    except sqlite3.Error as error:
        raise StoreFault(str(error)) from error


def open_database(
    path: Path,
    *,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    is_shared: bool = False,
    survives_power_loss: bool = False,
) -> sqlite3.Connection:
    """Open or make the file in WAL mode, bring its tables up to date; raises ConfigError naming the file.

    The folder and the file are the owner's alone: 0700 and 0600. `is_shared`: another thread may close it.
    A commit always survives the process; `survives_power_loss` makes it wait for the disk too.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        connection = sqlite3.connect(
            path, isolation_level=None, timeout=busy_timeout_s, check_same_thread=not is_shared
        )
        _use_wal(connection, busy_timeout_s)
        connection.execute(f"PRAGMA synchronous={'FULL' if survives_power_loss else 'NORMAL'}")
        prepare(connection)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: cannot open the state database: {error}") from error
    return connection


def _use_wal(connection: sqlite3.Connection, patience_s: float) -> None:
    """Switch to WAL, which fails at once, whatever the timeout, while another process does the same."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables, or bring them up to date; two processes starting at once do it once.

    `user_version` counts the revisions as Alembic's own table does: one look, which needs no lock, so that
    a file that is locked can be read.
    """
    if (version := _version(connection)) == int(HEAD):
        return
    if version > int(HEAD):
        raise sqlite3.DatabaseError(newer(str(version)))
    _alone(connection, _make if version == 0 else _upgrade)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _alone(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) < int(HEAD):  # else another process was first
            change(connection)
            connection.execute(f"PRAGMA user_version={int(HEAD)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _make(connection: sqlite3.Connection) -> None:
    for statement in first_statements("sqlite"):
        connection.execute(statement)


def _upgrade(connection: sqlite3.Connection) -> None:
    from sqlalchemy import StaticPool, create_engine, exc

    from ionrouter.store.migrator import upgrade

    is_counted = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    adopt = None if is_counted else f"{_version(connection):04}"
    engine = create_engine("sqlite://", creator=lambda: _Uncommitted(connection), poolclass=StaticPool)
    try:
        with engine.connect() as borrowed:
            upgrade(borrowed, adopt)
    except exc.DBAPIError as error:
        raise sqlite3.DatabaseError(f"cannot be upgraded: {error.orig}") from error


class _Uncommitted:
    """A connection that its borrower can neither commit nor close: whoever lent it does."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass

    def close(self) -> None:
        pass
