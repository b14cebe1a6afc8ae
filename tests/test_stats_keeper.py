"""Statistics through the real database: kept each minute, back at a start, forgotten in time."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.usage import Cost, Usage
from ionrouter.stats.book import Name, Names, StatsBook
from ionrouter.stats.keys import KeyBook
from ionrouter.stats.query import Question, answer
from ionrouter.stats_keeper import StatsKeeper
from ionrouter.store.writer import Writer
from tests.support.databases import Place

NOW = 1_700_000_000.0


def attempt(endpoint: str = "a", at: float = NOW, **changes: Any) -> AttemptRecord:
    fields: dict[str, Any] = {
        "endpoint_id": endpoint,
        "model_id": f"model-{endpoint}",
        "provider_name": "P",
        "started_at": at - 2,
        "stream": True,
        "duration_s": 1.0,
        "ttft_s": 0.25,
        "usage": Usage(10, 20, 4, 0, 2),
        "cost": Cost(0.1, 0.2),
    }
    return AttemptRecord(**{**fields, **changes})


def request(key: str, at: float = NOW) -> RequestRecord:
    return RequestRecord("r", "chat", "m", True, at, 1.0, 200, (), key_id=key, ttft_s=0.5)


async def written(place: Place, book: StatsBook, now: float) -> None:
    """Keep a book that others' buckets are no part of, as its server does once it has read back."""
    writer = Writer(place.database)
    writer.start()
    keeper = StatsKeeper(StatsBook(), writer, "one", clock=lambda: now)
    await keeper.restore()
    keeper._book = book
    await keeper.flush()
    await writer.close()


async def kept(place: Place, book: StatsBook, now: float = NOW, instance: str = "one") -> int:
    writer = Writer(place.database)
    writer.start()
    keeper = StatsKeeper(book, writer, instance, clock=lambda: now)
    await keeper.restore()
    num_rows = await keeper.flush()
    await writer.close()
    return num_rows


async def restored(place: Place, now: float = NOW, instance: str = "one") -> StatsBook:
    book, writer = StatsBook(), Writer(place.database)
    await StatsKeeper(book, writer, instance, clock=lambda: now).restore()
    return book


def rows(book: StatsBook, **more: Any) -> list[dict[str, Any]]:
    return answer(book, Question(NOW - 3600, NOW + 1, **more))


async def test_everything_is_back_and_goes_on_where_it_was(place: Place) -> None:
    book = StatsBook()
    for i in range(20):
        book.record(attempt("ab"[i % 2], stream=i % 3 > 0, usage=Usage(10_000 * (i % 2), 20)))
    book.observe(request("k"))
    assert await kept(place, book) > 0
    again = await restored(place)
    for groups in (("endpoint", "stream", "class"), ("model",), ("key",)):
        assert rows(again, group_by=groups) == rows(book, group_by=groups)
    again.record(attempt("a"))
    assert rows(again)[0]["requests"] == 11


async def test_what_changed_its_names_within_a_bucket_is_counted_once(place: Place) -> None:
    """A provider's display name, or the model a shadow copies: rows of an hour are there under both."""
    names = ("P", "Q"), ("P", "R"), ("M", "Q"), ("M", "Q"), ("P", "Q")
    for number, (model, provider) in enumerate(names):
        now = NOW + 60 * number
        book, writer = StatsBook(), Writer(place.database)
        writer.start()
        keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
        await keeper.restore()
        for stream in (True, False):
            book.record(attempt(at=now, model_id=model, provider_name=provider, stream=stream))
        await keeper.flush()
        await writer.close()
    again = await restored(place, NOW + 300)
    by_name = answer(again, Question(NOW - 86_400, NOW + 300, group_by=("model", "provider")))
    assert [(row["model"], row["provider"], row["requests"]) for row in by_name] == [("P", "Q", 10)]
    assert by_name[0]["ttft_ms"]["n"] == 10 and by_name[0]["prompt_tokens"] == 100


async def test_of_more_than_are_held_those_used_last_come_back(place: Place) -> None:
    days = [NOW - 86_400 * age for age in (3, 2, 1)]
    for day, at in enumerate(days):
        book = StatsBook(max_series=3, _keys=KeyBook(max_keys=3))
        for number in range(3):
            for _ in range(1 + number):
                book.record(attempt(f"e{day}{number}", at))
                book.observe(request(f"k{day}{number}", at))
        await written(place, book, at)
    again = StatsBook(max_series=4, _keys=KeyBook(max_keys=4))
    await StatsKeeper(again, Writer(place.database), "one", clock=lambda: NOW).restore()
    wanted = ["12", "20", "21", "22"]  # all of the last day, the busiest of the one before
    month = Question(NOW - 30 * 86_400, NOW)
    assert [row["endpoint"] for row in answer(again, month)] == [f"e{name}" for name in wanted]
    by_key = answer(again, replace(month, group_by=("key",)))
    assert [row["key"] for row in by_key] == [f"k{name}" for name in wanted]
    again.record(attempt("new"))  # whose place is that of the longest idle
    assert [row["endpoint"] for row in answer(again, month)] == ["e20", "e21", "e22", "new"]


async def test_names_told_since_a_start_stay(place: Place) -> None:
    book = StatsBook()
    book.record(attempt())
    await kept(place, book)
    late = StatsBook()
    late.record(attempt(provider_name="Q"))
    await StatsKeeper(late, Writer(place.database), "one", clock=lambda: NOW).restore()
    assert [row["provider"] for row in rows(late, group_by=("provider",))] == ["Q"]
    assert rows(late)[0]["requests"] == 2


async def test_only_what_changed_is_written_again(place: Place) -> None:
    book, writer = StatsBook(), Writer(place.database)
    writer.start()
    keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
    await keeper.restore()
    for endpoint in "abc":
        book.record(attempt(endpoint))
    first = await keeper.flush()
    assert await keeper.flush() == 0
    book.record(attempt("b"))
    assert await keeper.flush() < first
    await writer.close()
    assert [row["requests"] for row in rows(await restored(place))] == [1, 2, 1]


async def test_nothing_is_written_before_what_is_kept_is_back(place: Place) -> None:
    first = StatsBook()
    for _ in range(3):
        first.record(attempt())
    await kept(place, first)
    book, writer = StatsBook(), Writer(place.database)
    writer.start()
    keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
    book.record(attempt())
    assert await keeper.flush() == 0
    await keeper.restore()
    assert await keeper.flush() > 0
    await writer.close()
    assert rows(await restored(place))[0]["requests"] == 4


async def test_a_server_that_stops_before_it_has_read_back_keeps_both(place: Place) -> None:
    """However early it stops: before, while, after the kept statistics are read and put back."""
    first = StatsBook()
    for endpoint in range(500):
        first.record(attempt(f"e{endpoint}"))
    await kept(place, first)
    for num_turns in (0, 1, 2, 3, 5):
        book, writer = StatsBook(), Writer(place.database)
        writer.start()
        keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
        running = asyncio.create_task(keeper.run())
        while num_turns and keeper._unrestored is None:  # noqa: ASYNC110 - set in the turn that counts
            await asyncio.sleep(0)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        book.record(attempt("e7"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await keeper.close()
        await writer.close()
    counted = {row["endpoint"]: row["requests"] for row in rows(await restored(place))}
    assert counted == {f"e{endpoint}": 1 for endpoint in range(500)} | {"e7": 6}


async def test_what_was_read_late_is_added_to_minutes_that_are_over(place: Place) -> None:
    first = StatsBook()
    first.record(attempt())
    await kept(place, first)
    book, writer = StatsBook(), Writer(place.database)
    for minute in range(4):
        book.record(attempt(at=NOW + 60 * minute))
    await StatsKeeper(book, writer, "one", clock=lambda: NOW).restore()
    (row,) = answer(book, Question(NOW - 3600, NOW + 200))
    assert row["requests"] == 5


async def test_a_stop_that_cannot_read_back_says_what_it_loses(place: Place) -> None:
    book = StatsBook()
    book.record(attempt())
    await kept(place, book)
    with closing(place.database.open()) as link:
        link.transact([("ALTER TABLE stats_bucket RENAME TO elsewhere", ())])
    writer = Writer(place.database)
    writer.start()
    with capture_logs() as logs:
        await StatsKeeper(book, writer, "one", clock=lambda: NOW).close()
    await writer.close()
    assert [event["event"] for event in logs] == ["statistics_away", "statistics_left_unwritten"]


async def test_servers_of_one_database_keep_their_own(place: Place) -> None:
    for instance, count in (("one", 1), ("two", 2)):
        book = StatsBook()
        for _ in range(count):
            book.record(attempt())
        await kept(place, book, instance=instance)
    assert rows(await restored(place, instance="one"))[0]["requests"] == 1
    assert rows(await restored(place, instance="two"))[0]["requests"] == 2


async def test_what_is_too_old_is_forgotten_in_the_database_too(place: Place) -> None:
    book = StatsBook()
    book.record(attempt())
    await kept(place, book)
    later = NOW + 40 * 86_400
    newer = StatsBook()
    newer.record(attempt(at=later))
    await kept(place, newer, now=later)
    with closing(place.database.open()) as link:
        found = dict(link.rows("SELECT width_s, COUNT(*) FROM stats_bucket GROUP BY width_s"))
    assert found == {60: 1, 3600: 1, 86_400: 2}


async def test_nothing_is_forgotten_by_a_clock_that_is_not_sure(place: Place) -> None:
    """A server whose clock was ahead had deleted what every server had kept."""
    book, writer = StatsBook(), Writer(place.database)
    writer.start()
    book.record(attempt())
    sure: list[float] = []
    later = NOW + 1000 * 86_400
    keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW, sure_now=lambda: sure[0] if sure else None)
    await keeper.restore()
    await keeper.flush()
    book.record(attempt(at=later))
    await keeper.flush()
    await writer.settled()
    widths = partial(place.ask, "SELECT count(*) FROM stats_bucket WHERE width_s = 60")
    assert widths() == [(2,)]
    sure.append(later)
    book.record(attempt(at=later))
    await keeper.flush()
    await writer.close()
    assert widths() == [(1,)]


async def test_a_row_that_cannot_be_read_costs_no_other(place: Place) -> None:
    book = StatsBook()
    book.record(attempt())
    await kept(place, book)
    with closing(place.database.open()) as link:
        link.transact([("UPDATE stats_bucket SET data = ? WHERE width_s = ?", (b"broken", 60))])
    again = await restored(place)
    assert answer(again, Question(NOW - 86_400, NOW + 1, resolution="hour"))[0]["requests"] == 1


async def test_keeping_many_series_lets_others_run_between(place: Place) -> None:
    book, writer = StatsBook(), Writer(place.database)
    writer.start()
    for endpoint in range(50):
        for i in range(20):
            book.record(attempt(f"e{endpoint}", ttft_s=0.01 * (i + 1)))
    keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
    await keeper.restore()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    num_rows = await keeper.flush()
    counting.cancel()
    await writer.close()
    assert num_rows >= 150
    assert turns >= num_rows // 10


async def test_what_was_kept_under_an_id_alone_goes_to_the_endpoint_of_that_id(place: Place) -> None:
    """Rows from before statistics had a subject, one of an hour that goes on after the change."""
    old = StatsBook()
    for name in ("a", "a", "b"):
        old.record(attempt(name))
    await kept(place, old)
    with closing(place.database.open()) as link:
        for number, name in link.rows("SELECT id, name FROM stats_series"):
            row = json.loads(name)
            del row["subject"]
            link.transact([("UPDATE stats_series SET name = ? WHERE id = ?", (json.dumps(row), number))])
    names = Names([Name("up-a:m", "a", "P")])
    for _ in range(2):
        book, writer = StatsBook(names=names), Writer(place.database)
        writer.start()
        keeper = StatsKeeper(book, writer, "one", clock=lambda: NOW)
        await keeper.restore()
        book.record(attempt("a", subject="up-a:m"))
        await keeper.flush()
        await writer.close()
    assert book.window("up-a:m", 300, NOW).num_attempts == 4
    assert [(row["endpoint"], row["requests"]) for row in rows(book)] == [("a", 4), ("b", 1)]
