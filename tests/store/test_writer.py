"""The writer's thread: one commit for all that waits, bad rows alone, trouble survived, nothing lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ionrouter.store.database import Statement
from ionrouter.store.sqlite_file import SqliteFile
from ionrouter.store.writer import Writer
from tests.support.databases import Place

ADD = "INSERT INTO key_usage VALUES (?, 1, 0.5, 1, 2.0)"


@pytest.fixture(autouse=True)
def _made(place: Place) -> None:
    place.database.open().close()


class Faults(Counter[str]):
    def __call__(self, what: str, count: int) -> None:
        self[what] += count


def names(place: Place) -> list[str]:
    return [name for (name,) in place.ask("SELECT key_hash FROM key_usage ORDER BY key_hash")]


async def test_what_was_awaited_is_in_the_file(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    done = writer.put([(ADD, ("a",))])
    assert done is not None
    await done
    assert names(place) == ["a"]
    await writer.close()


async def test_lazy_writes_go_with_the_next_awaited_one(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    writer.put_lazily([(ADD, ("a",))])
    done = writer.put([(ADD, ("b",))])
    assert done is not None
    await done
    assert names(place) == ["a", "b"]
    await writer.close()


async def test_a_lazy_write_alone_is_written_too(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    writer.put_lazily([(ADD, ("a",))])
    while not names(place):  # noqa: ASYNC110 - another thread writes
        await asyncio.sleep(0.01)
    await writer.close()


async def test_a_bad_row_is_dropped_and_its_neighbours_are_kept(place: Place) -> None:
    faults = Faults()
    writer = Writer(place.database, faults)
    writer.start()
    futures = [
        writer.put([(ADD, (name,))])
        for name in ("a", None, "\ud800", "b")  # NOT NULL; no Unicode
    ]
    await asyncio.gather(*[f for f in futures if f is not None])
    assert names(place) == ["a", "b"]
    assert faults == {"dropped": 2}
    assert writer.is_well
    await writer.close()


async def test_statements_of_one_write_are_kept_together_or_not_at_all(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    done = writer.put([(ADD, ("a",)), (ADD, (None,))])
    assert done is not None
    await done
    assert names(place) == []
    await writer.close()


async def test_a_lock_lets_waiters_go_and_loses_nothing(place: Place) -> None:
    faults = Faults()
    writer = Writer(place.database, faults)
    writer.start()
    with place.locked():
        done = writer.put([(ADD, ("a",))])
        assert done is not None
        await done  # let go, though nothing is written
        assert not writer.is_well
        assert not writer.accepts
        assert writer.put([(ADD, ("b",))]) is None  # nobody waits for a sick file
    while not writer.is_well:  # noqa: ASYNC110 - another thread writes
        await asyncio.sleep(0.01)
    await writer.close()
    assert names(place) == ["a", "b"]
    assert faults["write_failed"] >= 1


async def test_a_full_queue_refuses_and_counts(place: Place) -> None:
    faults = Faults()
    writer = Writer(place.database, faults, max_waiting=2)
    writer.start()
    with place.locked():
        for name in "abcd":
            writer.put_lazily([(ADD, (name,))])
        assert not writer.accepts
        assert faults["refused"] == 2
    await writer.close()
    assert names(place) == ["a", "b"]


async def test_closing_writes_what_waits(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    for number in range(200):
        writer.put_lazily([(ADD, (f"{number:03}",))])
    await writer.close()
    assert len(names(place)) == 200


async def test_closing_waits_for_a_lock_that_goes(place: Place) -> None:
    """A backup, or a database that starts again: what was answered is not lost for a moment's sake."""
    writer = Writer(place.database)
    writer.start()
    with place.locked():
        writer.put_lazily([(ADD, ("a",))])
        writer.hurry()
        while writer.is_well:  # noqa: ASYNC110 - another thread writes
            await asyncio.sleep(0.01)
        closing_ = asyncio.create_task(writer.close())
        await asyncio.sleep(0.3)
        assert not closing_.done()
    await closing_
    assert names(place) == ["a"]


async def test_closing_gives_up_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ionrouter.store.writer.LAST_TRY_S", 0.1)
    writer = Writer(place.database)
    writer.start()
    with place.locked(), capture_logs() as logs:
        writer.put_lazily([(ADD, ("a",))])
        await writer.close()
    assert writer.num_waiting == 1
    assert [event["count"] for event in logs if event["event"] == "store_left_unwritten"] == [1]


async def test_a_future_that_was_cancelled_hurts_nobody(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    first = writer.put([(ADD, ("a",))])
    second = writer.put([(ADD, ("b",))])
    assert first is not None
    assert second is not None
    first.cancel()
    await second
    assert names(place) == ["a", "b"]
    await writer.close()


async def test_a_withdrawn_write_is_left_out(place: Place) -> None:
    writer = Writer(place.database)
    writer.start()
    lazy = writer.put_lazily([(ADD, ("a",))])
    assert lazy is not None
    lazy.withdraw()
    done = writer.put([(ADD, ("b",))])
    assert done is not None
    await done
    assert names(place) == ["b"]
    await writer.close()


async def test_servers_that_write_the_same_rows_do_not_stop_each_other(place: Place) -> None:
    """Each batch touches all rows, every time in another order; on one file they only take turns."""
    add = (
        "INSERT INTO key_usage VALUES (?, 1, 1, 1, 2.0) ON CONFLICT (key_hash, day) DO UPDATE SET "
        "cost = key_usage.cost + 1"
    )
    faults, rng = Faults(), random.Random(7)
    writers = [Writer(place.database, faults) for _ in range(2 if place.database.is_shared else 1)]
    for writer in writers:
        writer.start()
    keys = [f"{number:02}" for number in range(20)]
    for _ in range(40):
        waiting = []
        for writer in writers:
            rng.shuffle(keys)
            waiting += [writer.put([(add, (key,))], (key,)) for key in keys]
        await asyncio.gather(*[w for w in waiting if w is not None])
    for writer in writers:
        await writer.close()
    assert faults == {}
    assert set(place.ask("SELECT cost FROM key_usage")) == {(40.0 * len(writers),)}


async def test_rows_share_statements_and_a_bad_one_hurts_no_other(place: Place) -> None:
    faults, calls = Faults(), []

    def book(rows: Sequence[str | None]) -> list[Statement]:
        calls.append(rows)
        return [(ADD, (row,)) for row in rows]

    writer = Writer(place.database, faults)
    writer.start(book)
    for row in "cab":
        writer.put_lazily((), (row,), row)
    done = writer.put([(ADD, ("0",))])
    assert done is not None
    await done
    assert [rows for rows in calls if rows] == [["a", "b", "c"]], "in turn"
    done = [writer.put((), (row or "",), row) for row in ("d", "\ud800", "e")][-1]
    assert done is not None
    await done
    assert names(place) == ["0", "a", "b", "c", "d", "e"]
    assert faults == {"dropped": 1}
    await writer.close()


def test_what_undoes_one_statement_is_kept_in_memory(tmp_path: Path) -> None:
    """A statement of many rows would copy every page it changes to a file, to undo it alone if it fails."""
    with closing(Writer(SqliteFile(tmp_path / "state.db"))._open()) as link:
        assert link.rows("PRAGMA temp_store") == [(2,)]


async def test_a_row_of_which_no_statement_can_be_made_costs_the_others_nothing(place: Place) -> None:
    def book(rows: Sequence[str]) -> list[Statement]:
        return [(ADD, (row.upper(),)) for row in rows]

    faults = Faults()
    writer = Writer(place.database, faults)
    writer.start(book)
    awaited = [writer.put((), ("turn",), row) for row in ("a", 7, "b")]
    for done in awaited:
        assert done is not None
        await done
    assert names(place) == ["A", "B"] and faults == {"dropped": 1}
    last = writer.put((), ("turn",), "c")  # the thread lives
    assert last is not None
    await last
    assert names(place) == ["A", "B", "C"]
    await writer.close()
