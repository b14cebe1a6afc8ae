"""The ledger: a request while it runs, just after, and from the file; with and without a file."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from ionrouter.schema.events import ChoiceDelta, Chunk, RequestRecord
from ionrouter.schema.request import Client
from ionrouter.schema.usage import Cost, Usage
from ionrouter.store import ledger as ledgers
from ionrouter.store.generation import MAX_ROWS, Generation, abort, add_usage, book, from_bytes, insert
from ionrouter.store.journal import Journal, rows_left
from ionrouter.store.ledger import Ledger
from ionrouter.store.reader import Reader
from ionrouter.store.spending import SpendingBook
from ionrouter.store.sure_clock import SureClock
from ionrouter.store.writer import Writer
from tests.support.databases import Place
from tests.support.routes import request
from tests.support.server import eventually

RECORD = RequestRecord(
    id="gen-1-x",
    kind="chat",
    requested_model="m",
    stream=True,
    started_at=100.0,
    duration_s=2.0,
    status=200,
    served_model="m",
    served_endpoint="a",
    served_provider="A",
    usage=Usage(10, 5),
    cost=Cost(0.5, 0.25),
    key_id="k",
)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for behind a commit is there, however busy the machine."""
    monkeypatch.setattr(ledgers, "MAX_COMMIT_S", 60.0)


def opened(place: Place, *, keeps_words: bool = False, journal: Journal | None = None) -> Ledger:
    database = place.database
    database.open().close()
    writer = Writer(database, journal=journal)
    ledger = Ledger(SpendingBook(), writer, Reader(database, settled=writer.settled), keeps_words)
    ledger.start()
    return ledger


async def test_a_request_is_found_at_every_moment_of_its_life(place: Place) -> None:
    ledger = opened(place)
    ledger.begin(request(key_id="k"), 100.0)
    running = await ledger.find("gen-1-x")
    assert running is not None
    assert (running.state, running.key_hash, running.status) == ("started", "k", None)
    ledger.end(RECORD, Client(user_agent="x\udcff" + "y" * 600))
    await ledger.committed("gen-1-x")
    ended = await ledger.find("gen-1-x")
    assert ended is not None
    assert (ended.state, ended.cost, ended.user_agent) == ("finished", 0.75, "x?" + "y" * 510)
    ledger._recent.clear()  # as after 1024 others, or a restart
    assert await ledger.find("gen-1-x") == ended
    assert await ledger.find("gen-1-y") is None
    await ledger.close()


async def test_with_a_journal_nobody_waits_and_readers_find_what_ended(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ledger = opened(place, journal=Journal(path))
    ledger.begin(request(key_id="k"), 100.0)
    ledger.end(RECORD, Client(user_agent="x\udcff"))
    assert not ledger._commits, "its row is safe already"
    (row,) = rows_left(path)
    assert from_bytes(row) == await ledger.find("gen-1-x")
    ledger._recent.clear()
    found = await ledger.find("gen-1-x")  # waits for the commit
    assert found == from_bytes(row)
    assert rows_left(path) == []
    assert place.ask("SELECT num_requests, cost FROM key_usage") == [(1, 0.75)]
    await ledger.close()


async def test_what_ends_after_the_ledger_is_refused_as_before(place: Place, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    ledger = opened(place, journal=journal)
    ledger.begin(request(key_id="k"), 100.0)
    await ledger.close()
    ledger.end(RECORD, Client())
    journal.release(1)  # a commit that took longer than anybody waited
    assert not ledger._commits and rows_left(tmp_path / "journal") == []


async def test_many_that_end_together_wait_for_no_commit(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ledger = opened(place, journal=Journal(path))
    for number in range(40):
        ledger.begin(request(key_id="k", id=f"gen-{number}"), 100.0)
    for number in range(40):
        ledger.end(replace(RECORD, id=f"gen-{number}"), Client())
    assert not ledger._commits and len(rows_left(path)) == 40
    await ledger.close()
    assert place.ask("SELECT num_requests FROM key_usage") == [(40,)]
    assert rows_left(path) == []


@pytest.mark.parametrize("why", ["words", "no text", "no room"])
async def test_what_the_journal_cannot_keep_waits_for_its_commit(
    place: Place, tmp_path: Path, why: str
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, segment_bytes=100 if why == "no room" else 10_000)
    ledger = opened(place, keeps_words=why == "words", journal=journal)
    ledger.begin(request(key_id="k"), 100.0)
    ledger.end(replace(RECORD, error="\udcff") if why == "no text" else RECORD, Client())
    assert rows_left(path) == [] and list(ledger._commits) == ["gen-1-x"]
    await ledger.committed("gen-1-x")
    assert place.ask("SELECT num_requests FROM key_usage") == [(1,)]
    await ledger.close()


async def test_rows_that_were_committed_before_a_kill_are_booked_once(place: Place, tmp_path: Path) -> None:
    """The commit worked, and the process died before the journal was told."""
    path = tmp_path / "journal"
    ledger = opened(place, journal=Journal(path))
    ledger.begin(request(key_id="k"), 100.0)
    ledger.end(RECORD, Client())
    (row,) = rows_left(path)
    await ledger.close()
    with closing(place.database.open()) as link:
        for _ in range(2):
            link.transact(book([from_bytes(row)]))
    assert place.ask("SELECT num_requests, cost FROM key_usage") == [(1, 0.75)]


async def test_memory_is_bounded_and_the_file_is_not(place: Place) -> None:
    ledger = opened(place)
    for number in range(ledgers.MAX_RECENT + 10):
        ledger.end(replace(RECORD, id=f"gen-{number}"), Client())
    assert len(ledger._recent) == ledgers.MAX_RECENT
    await ledger.committed(f"gen-{ledgers.MAX_RECENT + 9}")
    assert await ledger.find("gen-0") is not None
    assert ledger.spending.total() == 0.75 * (ledgers.MAX_RECENT + 10)
    await ledger.close()


async def test_without_a_file_memory_answers() -> None:
    ledger = Ledger(SpendingBook())
    ledger.start()
    ledger.begin(request(), 100.0)
    ledger.end(RECORD, Client())
    await ledger.committed("gen-1-x")
    found = await ledger.find("gen-1-x")
    assert found is not None
    assert found.state == "finished"
    assert not ledger.is_writable
    assert await ledger.words("gen-1-x") is None
    await ledger.close()


async def test_words_of_every_choice_are_kept_where_wanted(place: Place) -> None:
    ledger = opened(place, keeps_words=True)
    ledger.begin(request(), 100.0)
    for index, text in ((0, "one"), (1, "uno"), (0, " two"), (1, " dos")):
        ledger.hear("gen-1-x", Chunk((ChoiceDelta(index, {"content": text}),)))
    ledger.hear("gen-1-x", Chunk((ChoiceDelta(0, {"reasoning": "because"}),)))
    ledger.end(RECORD, Client())
    await ledger.committed("gen-1-x")
    words = await ledger.words("gen-1-x")
    assert words is not None
    assert words.input == {"messages": [{"role": "user", "content": "hi"}]}
    assert (words.completion, words.reasoning) == ("one two\nuno dos", "because")
    await ledger.close()


async def test_a_letter_that_is_none_costs_neither_the_words_nor_the_row(place: Place) -> None:
    """Half a surrogate pair, which upstreams do send; and a NUL, which PostgreSQL does not keep."""
    ledger = opened(place, keeps_words=True)
    ledger.begin(request(), 100.0)
    ledger.hear("gen-1-x", Chunk((ChoiceDelta(0, {"content": "a\ud83d", "reasoning": "b\0"}),)))
    ledger.end(RECORD, Client())
    await ledger.committed("gen-1-x")
    words = await ledger.words("gen-1-x")
    assert words is not None
    assert (words.completion, words.reasoning) == ("a?", "b\ufffd")
    assert place.ask("SELECT num_requests FROM key_usage") == [(1,)]
    await ledger.close()


async def test_what_is_old_is_forgotten(place: Place) -> None:
    ledger = opened(place)
    ledger.end(RECORD, Client())
    await ledger.committed("gen-1-x")
    assert ledger.writer is not None
    done = ledger.writer.put([(statement, (101.0,)) for statement in ledgers.generation.FORGET])
    assert done is not None
    await done
    assert place.ask("SELECT count(*) FROM generation") == [(0,)]
    assert ledger.spending.total() == 0.75  # sums stay
    await ledger.close()


async def test_more_than_goes_at_once_is_forgotten_at_once_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that adds more in a minute than goes at once would never end growing."""
    monkeypatch.setattr("ionrouter.store.sure_clock.EVEN_S", 0.0)
    monkeypatch.setattr(ledgers, "FORGET_EVERY_S", 1e6)
    monkeypatch.setattr(ledgers, "FORGET_AGAIN_S", 0.05)
    now = time.time()
    old = [
        Generation(f"g{number}", "finished", None, "chat", "m", False, now - 3 * 86_400)
        for number in range(12_000)
    ]
    new = Generation("new", "finished", None, "chat", "m", False, now)
    place.database.open().transact([statement for statement in book([*old, new])])
    ledger = opened(place)
    task = asyncio.create_task(ledger.keep_forgetting(1))
    left = partial(place.ask, "SELECT count(*) FROM generation")
    await asyncio.to_thread(eventually, left, lambda rows: rows == [(1,)])
    task.cancel()
    await ledger.close()


async def test_a_clock_that_is_ahead_forgets_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that woke with a wrong date had lost all its generations before it was put right."""
    monkeypatch.setattr(ledgers, "FORGET_EVERY_S", 0.02)
    monkeypatch.setattr(ledgers, "FORGET_AGAIN_S", 0.01)
    ahead = [0.0]
    ledger = opened(place)
    ledger.clock = SureClock(lambda: time.time() + ahead[0], lambda: time.monotonic() + passed[0])
    passed = [0.0]
    ledger.end(replace(RECORD, started_at=time.time()), Client())
    await ledger.committed("gen-1-x")
    task = asyncio.create_task(ledger.keep_forgetting(400))
    for jump in (0.0, 1000 * 86_400.0, 0.0):
        ahead[0] = jump
        await asyncio.sleep(0.1)
        assert ledger.sure_now is None
    passed[0] = 1e6  # it goes on as it should, and then what is old goes
    ahead[0] = passed[0]
    await asyncio.sleep(0.1)
    assert ledger.sure_now is not None
    assert place.ask("SELECT count(*) FROM generation") == [(1,)]
    task.cancel()
    await ledger.close()


async def test_a_commit_that_is_repeated_books_once(place: Place) -> None:
    """The database committed and the network swallowed the answer: the writer tries again."""
    link = place.database.open()
    begun = Generation("g", "started", "k", "chat", "m", False, 100.0)
    done = replace(begun, state="finished", cost=0.5)
    link.transact([insert(begun)])
    for _ in range(2):
        link.transact([add_usage(done), insert(done)])
    assert place.ask("SELECT cost, num_requests FROM key_usage") == [(0.5, 1)]
    _, again = abort(begun)  # and what has ended is not aborted either
    link.transact(again)
    assert place.ask("SELECT state, cost FROM generation") == [("finished", 0.5)]
    assert place.ask("SELECT cost, num_requests FROM key_usage") == [(0.5, 1)]
    link.close()


async def test_text_that_no_database_keeps_is_replaced(place: Place) -> None:
    link = place.database.open()
    link.transact([insert(Generation("g", "finished", None, "chat", "a\0b\ud800", False, 1.0))])
    assert place.ask("SELECT requested_model FROM generation") == [("a\ufffdb?",)]
    link.close()


async def test_a_slow_disk_delays_no_answer_for_longer_than_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "MAX_COMMIT_S", 0.05)
    monkeypatch.setattr(Writer, "_run", lambda _self: None)  # writes nothing, ever
    stuck = opened(place)
    for number in (1, 2):
        stuck.end(replace(RECORD, id=f"gen-{number}-x"), Client())
    async with asyncio.timeout(5.0):
        await stuck.committed("gen-1-x")
    await asyncio.sleep(0.1)
    assert not stuck._commits, "one that nobody waits for is forgotten too"
    stuck.end(replace(RECORD, id="gen-3-x"), Client())
    assert not stuck._commits, "who waits for a database that hangs waits in vain: one was enough"
    assert stuck.writer is not None
    stuck.writer._settle([], 1, 0)  # it has written something
    stuck.end(replace(RECORD, id="gen-4-x"), Client())
    assert list(stuck._commits) == ["gen-4-x"]
    async with asyncio.timeout(5.0):
        await stuck.committed("gen-4-x")  # the timer comes again
    await stuck.close()


@pytest.mark.parametrize("num_rows", [1, 2, MAX_ROWS, 2 * MAX_ROWS + 3])
def test_rows_that_are_booked_together_are_booked_as_one_by_one(place: Place, num_rows: int) -> None:
    """Of several keys and days, some booked before, one of them begun before."""
    ended = [
        Generation(
            f"g{number}", "finished", ("a", None, "b")[number % 3], "chat", "m\0\ud800", number % 2 == 0,
            number % 5 * 50_000.0 + number, user="\xfc" if number % 4 else None, cost=number / 8,
            is_usage_estimated=number % 3 == 0,
        )
        for number in range(num_rows)
    ]  # fmt: skip
    rows, sums = "SELECT * FROM generation ORDER BY id", "SELECT * FROM key_usage ORDER BY key_hash, day"
    found = []
    with closing(place.database.open()) as link:
        for batches in ([[row] for row in ended], [ended], [ended[::2], ended]):
            for table in ("generation", "key_usage"):
                place.ask(f"DELETE FROM {table}")
            link.transact([insert(replace(ended[0], state="started", cost=0.0))])
            for batch in batches:
                link.transact(book(batch))
            found.append((place.ask(rows), place.ask(sums)))
    assert found[0] == found[1] == found[2]
    assert sum(row[3] for row in found[0][1]) == num_rows


async def test_only_what_runs_for_long_has_a_row_that_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "BEGUN_S", 0.01)
    ledger = opened(place)
    for request_id in ("gen-1-x", "gen-2-x"):
        ledger.begin(request(key_id="k", id=request_id), 100.0)
    ledger.end(RECORD, Client())
    await ledger.committed("gen-1-x")
    while not place.ask("SELECT 1 FROM generation WHERE id = 'gen-2-x'"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    states = "SELECT id, state FROM generation ORDER BY id"
    assert place.ask(states) == [("gen-1-x", "finished"), ("gen-2-x", "started")]
    await asyncio.sleep(0.05)
    assert ledger._next_look is None, "nobody looks while nothing begins"
    ledger.end(replace(RECORD, id="gen-2-x"), Client())
    ledger.begin(request(key_id="k", id="gen-3-x"), 100.0)
    await ledger.close()
    assert [state for _, state in place.ask(states)] == ["finished", "finished", "started"]


async def test_what_holds_money_has_its_row_at_once(place: Place) -> None:
    ledger = opened(place)
    ledger.spending.of("k").reserved["gen-1-x"] = 0.5
    ledger.begin(request(key_id="k"), 100.0)
    assert ledger._running["gen-1-x"].write is not None and ledger._next_look is None
    await ledger.close()
    assert place.ask("SELECT state, reserved FROM generation") == [("started", 0.5)]
