"""The embedded SQLite file: where it lies, how it is opened, which tables it has. Knows no row's meaning."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ionrouter.errors import ConfigError

BUSY_TIMEOUT_MS = 2000

# One entry a schema version; `user_version` counts how many a file has seen. Only ever append.
MIGRATIONS = (
    """
    CREATE TABLE api_key (
        hash       TEXT PRIMARY KEY,
        name       TEXT NOT NULL,
        label      TEXT NOT NULL,
        kind       TEXT NOT NULL CHECK (kind IN ('inference', 'management')),
        disabled   INTEGER NOT NULL DEFAULT 0,
        created_at REAL NOT NULL
    ) STRICT;
    """,
)


def open_database(path: Path) -> sqlite3.Connection:
    """Open or make the file in WAL mode, bring its tables up to date; raises ConfigError naming the file.

    The folder and the file are the owner's alone: 0700 and 0600.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
        _prepare(connection)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: cannot open the state database: {error}") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("BEGIN IMMEDIATE")  # two processes starting at once migrate once
    try:
        _migrate(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise sqlite3.DatabaseError(
            f"made by a newer version (schema {version}, this one knows {len(MIGRATIONS)})"
        )
    for script in MIGRATIONS[version:]:
        for statement in filter(None, (part.strip() for part in script.split(";"))):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read (0600), whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(draft, path)
