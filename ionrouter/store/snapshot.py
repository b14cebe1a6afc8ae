"""The tables as SQL files, one a database: what a new database is made from, without SQLAlchemy.

`python -m ionrouter.store.snapshot` writes them from tables.py.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from ionrouter.store.schema import HEAD, schema_path
from ionrouter.store.tables import metadata

DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}


def snapshot(name: str) -> str:
    """Write out the tables of the newest revision, statements divided by `;` at the end of a line."""
    dialect = DIALECTS[name]()
    statements = ["CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"]
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements += [str(CreateIndex(index).compile(dialect=dialect)) for index in indexes]
    statements += [f"INSERT INTO alembic_version VALUES ('{HEAD}')", "INSERT INTO key_version VALUES (0)"]
    lines = [line.rstrip().replace("\t", "    ") for s in statements for line in f"{s};".splitlines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in DIALECTS:
        Path(schema_path(name)).write_text(snapshot(name))


if __name__ == "__main__":
    main()
