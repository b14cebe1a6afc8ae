"""A PostgreSQL server, shared by several of ours: how it is reached and brought up to date. Knows no row.

Imports psycopg, which is an extra: place.py imports this only where a URL asks for it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ionrouter.errors import ConfigError
from ionrouter.store.database import BUSY_TIMEOUT_S, RowFault, Statement, StoreFault
from ionrouter.store.schema import HEAD, LOCK, first_statements, is_newer, newer

SETTING = "IONROUTER_STORE_URL"
# Of libpq, unless the URL says otherwise: a server that is gone is noticed in seconds, not minutes.
DEFAULTS = {
    "application_name": "ionrouter", "connect_timeout": 3, "tcp_user_timeout": 5000,
    "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
}  # fmt: skip
MAX_STATEMENT_S = 10.0
SILENCE_S = 1.0  # beyond the time that a statement has: the server would have ended it, and it hangs
# Not to_regclass: within a transaction that remembers what did not exist when it was first asked.
HAS_TABLES = """
    SELECT 1 FROM pg_tables WHERE tablename = 'alembic_version' AND schemaname = ANY (current_schemas(false))
"""
_ELSEWHERE = ("42P01", "42501", "3F000")  # no such table, no right, no such schema: not the row's fault


class PostgresServer:
    """See database.Database. `survives_power_loss`: every commit waits for the server's disk."""

    dialect: Literal["postgresql"] = "postgresql"
    is_shared = True

    def __init__(self, url: str, survives_power_loss: bool = False) -> None:
        self.survives_power_loss = survives_power_loss
        self._is_ready = False
        try:
            self._parameters: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.Error as error:
            raise ConfigError(f"{SETTING}: not a URL of PostgreSQL: {_plain(error, url)}") from error
        self._password = str(self._parameters.get("password") or "")

    @property
    def name(self) -> str:
        place = self._parameters
        port = f":{place['port']}" if place.get("port") else ""
        return f"postgresql://{place.get('host', '')}{port}/{place.get('dbname', '')}"

    def open(self, *, patience_s: float = BUSY_TIMEOUT_S, is_hurried: bool = False) -> PostgresLink:
        connection = self._connect(lock_timeout=patience_s, statement_timeout=MAX_STATEMENT_S)
        if not self._is_ready:
            self._prepare(connection)
        if is_hurried and not self.survives_power_loss:
            with faults():
                connection.execute("SET synchronous_commit = off")
        return PostgresLink(connection)

    def open_to_read(self, max_query_s: float) -> psycopg.Connection[Any]:
        connection = self._connect(statement_timeout=max_query_s)
        connection.execute("SET default_transaction_read_only = on")
        return connection

    def begin_query(self, connection: Any, max_query_s: float) -> None:
        """Nothing to do: the server counts the time of every statement."""

    def was_too_slow(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.errors.QueryCanceled)

    def _connect(self, *, statement_timeout: float, **timeouts_s: float) -> Connection:
        timeouts_s["statement_timeout"] = statement_timeout
        try:
            connection = Connection.connect(make_conninfo(**self._parameters), autocommit=True)
            connection.max_silence_s = statement_timeout + SILENCE_S
            for name, seconds in timeouts_s.items():
                connection.execute(f"SET {name} = {int(seconds * 1000)}")
            connection.execute("SET default_transaction_isolation = 'read committed'")  # locks rely on it
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        return connection

    def _prepare(self, connection: Connection) -> None:
        """Make the tables, or bring them up to date; servers that start at once do it once."""
        max_silence_s, connection.max_silence_s = connection.max_silence_s, math.inf  # another may be at it
        try:
            if _revision(connection) != HEAD:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                    self._migrate(connection, _revision(connection))
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        connection.max_silence_s = max_silence_s
        self._is_ready = True

    def _migrate(self, connection: psycopg.Connection[Any], revision: str | None) -> None:
        if revision is None:
            for statement in first_statements("postgresql"):
                connection.execute(statement)
        elif is_newer(revision):
            raise ConfigError(f"{SETTING}: {self.name} was {newer(revision)}")
        elif revision != HEAD:
            self._upgrade()

    def _upgrade(self) -> None:
        """Over a connection of its own, in one transaction; the lock is held by whoever calls."""
        from sqlalchemy import NullPool, create_engine, exc

        from ionrouter.store.migrator import upgrade

        conninfo = make_conninfo(**self._parameters)
        engine = create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), poolclass=NullPool
        )
        try:
            with engine.begin() as connection:
                upgrade(connection)
        except exc.DBAPIError as error:
            raise ConfigError(f"{SETTING}: {self.name} cannot be upgraded: {error.orig}") from error

    def _unreachable(self, error: psycopg.Error) -> ConfigError:
        return ConfigError(f"{SETTING}: cannot open {self.name}: {_plain(error, self._password)}")


def _plain(error: Exception, secret: str) -> str:
    """On one line, without what must not be shown."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text.replace(secret, "***") if secret else text


def _revision(connection: psycopg.Connection[Any]) -> str | None:
    """The revision of the tables; None: there are none."""
    if connection.execute(HAS_TABLES).fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None


class Connection(psycopg.Connection[Any]):
    """One that is closed where the server says nothing for too long.

    A server that hangs (a disk that does not answer, a process that was stopped) counts no statement's time,
    and its system goes on to answer for it on the network.
    """

    max_silence_s = math.inf

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(_heard(gen, self.max_silence_s), *args, **kwargs)
        except _Silence as silence:
            self.close()
            raise psycopg.OperationalError(f"the server said nothing for {silence} s") from None


class _Silence(Exception):
    """The server said nothing for so many seconds."""


def _heard(gen: Generator[Any, Any, Any], max_silence_s: float) -> Generator[Any, Any, Any]:
    """What psycopg waits for, step by step; between two of them the server must have said something."""
    try:
        wanted = next(gen)
        heard_at = time.monotonic()
        while True:
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard_at = now
            elif now - heard_at > max_silence_s:
                raise _Silence(f"{max_silence_s:.0f}")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


class PostgresLink:
    """See database.Link. Everything of one transaction goes out at once: the round trip counts once."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @property
    def is_broken(self) -> bool:
        return self.connection.closed

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._faults():
            cursor = self.connection.execute(marked(sql), values)
            return cursor.fetchall() if cursor.description is not None else []

    def transact(self, statements: Sequence[Statement]) -> None:
        with self._faults(), self.connection.pipeline(), self.connection.transaction():
            for sql, values in statements:
                self.connection.execute(marked(sql), values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._faults(), self.connection.transaction():
            yield

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """As `faults`; a server that only reads is left: after a failover the address leads to another."""
        try:
            with faults():
                yield
        except StoreFault as fault:
            if isinstance(fault.__cause__, psycopg.errors.ReadOnlySqlTransaction):
                self.connection.close()
            raise

    def may_have_changed(self) -> bool:
        return True

    def close(self) -> None:
        self.connection.close()


@lru_cache(maxsize=256)
def marked(sql: str) -> bytes:
    """Put psycopg's marks where `?` stands."""
    return sql.replace("?", "%s").encode()


def _primary(error: Exception) -> str:
    """The message without its details, which show the row: words of clients belong in no log."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def faults() -> Iterator[None]:
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError, ValueError, OverflowError) as error:
        raise RowFault(_primary(error)) from error
    except psycopg.ProgrammingError as error:
        raise (StoreFault if error.sqlstate in _ELSEWHERE else RowFault)(_primary(error)) from error
    except psycopg.Error as error:
        raise StoreFault(str(error).strip() or type(error).__name__) from error
