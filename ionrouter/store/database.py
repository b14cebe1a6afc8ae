"""The embedded SQLite file: where it lies, how it is opened, which tables it has. Knows no row's meaning."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ionrouter.errors import ConfigError

BUSY_TIMEOUT_S = 2.0

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
    # Limits of keys, what keys used, generations. `key_version` moves with every change of api_key, so that
    # whoever keeps keys in memory does not read them again for every generation that is written. `''` in
    # key_usage stands for requests without a key.
    """
    ALTER TABLE api_key ADD COLUMN spend_limit REAL;
    ALTER TABLE api_key ADD COLUMN limit_reset TEXT CHECK (limit_reset IN ('daily', 'weekly', 'monthly'));
    ALTER TABLE api_key ADD COLUMN expires_at REAL;
    ALTER TABLE api_key ADD COLUMN include_byok_in_limit INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE api_key ADD COLUMN updated_at REAL;
    ALTER TABLE api_key ADD COLUMN creator_user_id TEXT;
    CREATE TABLE key_version (version INTEGER NOT NULL) STRICT;
    INSERT INTO key_version VALUES (0);
    CREATE TABLE key_usage (
        key_hash     TEXT NOT NULL,
        day          INTEGER NOT NULL,
        cost         REAL NOT NULL,
        num_requests INTEGER NOT NULL,
        last_used_at REAL NOT NULL,
        PRIMARY KEY (key_hash, day)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE generation (
        id                   TEXT PRIMARY KEY,
        state                TEXT NOT NULL,
        key_hash             TEXT,
        kind                 TEXT NOT NULL,
        requested_model      TEXT NOT NULL,
        is_stream            INTEGER NOT NULL,
        started_at           REAL NOT NULL,
        session_id           TEXT,
        user                 TEXT,
        user_agent           TEXT,
        referer              TEXT,
        title                TEXT,
        status               INTEGER,
        model                TEXT,
        endpoint             TEXT,
        provider             TEXT,
        duration_s           REAL,
        ttft_s               REAL,
        finish_reason        TEXT,
        native_finish_reason TEXT,
        service_tier         TEXT,
        upstream_id          TEXT,
        prompt_tokens        INTEGER NOT NULL,
        completion_tokens    INTEGER NOT NULL,
        cached_tokens        INTEGER NOT NULL,
        reasoning_tokens     INTEGER NOT NULL,
        is_usage_estimated   INTEGER NOT NULL,
        cost                 REAL NOT NULL,
        error                TEXT,
        attempts             TEXT NOT NULL
    ) STRICT;
    CREATE INDEX generation_started ON generation (started_at);
    CREATE INDEX generation_key ON generation (key_hash, started_at);
    CREATE INDEX generation_unfinished ON generation (state) WHERE state = 'started';
    CREATE TABLE generation_words (
        id         TEXT PRIMARY KEY,
        started_at REAL NOT NULL,
        input      TEXT NOT NULL,
        completion TEXT,
        reasoning  TEXT
    ) STRICT;
    CREATE INDEX generation_words_started ON generation_words (started_at);
    """,
)


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
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if survives_power_loss else 'NORMAL'}")
        _prepare(connection)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: cannot open the state database: {error}") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),):
        return  # opening an up-to-date file needs no lock, so one that is locked can be read
    connection.execute("BEGIN IMMEDIATE")  # two processes starting at once migrate once
    try:
        migrate(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date, inside the caller's transaction."""
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
