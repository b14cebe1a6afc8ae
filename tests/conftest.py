"""What tests of several folders share: one PostgreSQL server a test process, started by the first to ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.support.databases import Place, PostgresPlace, SqlitePlace
from tests.support.postgres import MISSING, Postgres, programs, running_postgres


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Log tracebacks as text: rich ones, with every variable, take a second each."""
    *rest, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*rest, plain])


@pytest.fixture(autouse=True)
def same_log() -> Iterator[None]:
    """Leave the log as it was: a command run in this process sets it up for its own captured output."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = programs()
    if folder is None:
        pytest.skip(MISSING)
    with running_postgres(folder) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty database of each kind, its tables not made yet."""
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "state" / "ionrouter.db")
    server: Postgres = request.getfixturevalue("postgres")
    return PostgresPlace(server, server.new_database())
