"""Reads off the event loop: bounded in time, harmless, and with an answer for every fault."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from ionrouter.errors import RequestError
from ionrouter.store.database import open_database
from ionrouter.store.reader import Reader

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "state" / "ionrouter.db"
    open_database(file).close()
    return file


async def test_a_query_without_end_is_ended(path: Path) -> None:
    reader = Reader(path, max_query_s=0.05)
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute(ENDLESS).fetchone())
    assert (refused.value.status, refused.value.error_type) == (408, "timeout")
    assert await reader.run(lambda db: db.execute("SELECT 7").fetchone()) == (7,)  # the thread is free again
    reader.close()


async def test_a_reader_cannot_write(path: Path) -> None:
    reader = Reader(path)
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute("DELETE FROM generation"))
    assert refused.value.status == 503
    reader.close()


async def test_a_locked_file_can_be_read(path: Path) -> None:
    reader = Reader(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await reader.run(lambda db: db.execute("SELECT count(*) FROM generation").fetchone()) == (0,)
    reader.close()


async def test_a_file_that_cannot_be_opened_is_a_503(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    reader = Reader(blocked / "ionrouter.db")
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute("SELECT 1"))
    assert refused.value.status == 503
    reader.close()
