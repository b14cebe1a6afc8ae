"""Both kinds of database under one name, with what a test does to them from outside the product."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from ionrouter.store.database import Database
from ionrouter.store.place import database_of
from tests.support.postgres import Postgres


class Place(Protocol):
    """`database` is the product's; everything else goes around it."""

    @property
    def database(self) -> Database: ...

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement over a connection of its own, `?` for values."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep everybody from writing."""
        ...


class SqlitePlace:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.database: Database = database_of(None, path)

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


class PostgresPlace:
    def __init__(self, server: Postgres, url: str) -> None:
        self.server, self.url = server, url
        self.database: Database = database_of(url, Path("/nonexistent"))

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        with psycopg.connect(self.url) as other:
            other.execute("LOCK TABLE key_usage, generation, api_key IN EXCLUSIVE MODE")
            yield
            other.rollback()
