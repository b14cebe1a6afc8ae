"""Reads off the event loop: bounded in time, harmless, and with an answer for every fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from ionrouter.errors import RequestError
from ionrouter.store.reader import Reader
from ionrouter.store.sqlite_file import SqliteFile
from tests.support.databases import Place

ENDLESS = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n")


@pytest.fixture(autouse=True)
def _made(place: Place) -> None:
    place.database.open().close()


async def test_a_query_without_end_is_ended(place: Place) -> None:
    reader = Reader(place.database, max_query_s=0.05)
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute(ENDLESS).fetchone())
    assert (refused.value.status, refused.value.error_type) == (408, "timeout")
    assert await reader.run(lambda db: db.execute(text("SELECT 7")).scalar()) == 7  # the thread is free again
    reader.close()


async def test_a_reader_cannot_write(place: Place) -> None:
    reader = Reader(place.database)
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute(text("DELETE FROM generation")))
    assert refused.value.status == 503
    reader.close()


async def test_a_locked_file_can_be_read(place: Place) -> None:
    reader = Reader(place.database)
    with place.locked():
        assert await reader.one("SELECT count(*) FROM generation", ()) == (0,)
    reader.close()


async def test_a_file_that_cannot_be_opened_is_a_503(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    reader = Reader(SqliteFile(blocked / "ionrouter.db"))
    with pytest.raises(RequestError) as refused:
        await reader.run(lambda db: db.execute(text("SELECT 1")))
    assert refused.value.status == 503
    reader.close()
