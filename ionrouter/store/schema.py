"""Which revision of the tables this version knows, and how a database is brought to it. Knows no driver.

A new database is made from a snapshot of the tables, an old one by Alembic's revisions; Alembic and
SQLAlchemy are imported only where there is something to migrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HEAD = "0008"
LOCK = 0x10120070  # PostgreSQL's advisory lock: two servers starting at once migrate once


def schema_path(dialect: str) -> Path:
    return Path(__file__).with_name(f"schema_{dialect}.sql")


def first_statements(dialect: str) -> Sequence[str]:
    """What makes a new database: tables, indexes, and the two rows that say their versions."""
    return [part.strip() for part in schema_path(dialect).read_text().split(";\n") if part.strip()]


def is_newer(revision: str) -> bool:
    return int(revision) > int(HEAD)


def newer(revision: str) -> str:
    return f"made by a newer version (schema {int(revision)}, this one knows {int(HEAD)})"
