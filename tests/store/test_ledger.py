"""The ledger: a request while it runs, just after, and from the file; with and without a file."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ionrouter.schema.events import ChoiceDelta, Chunk, RequestRecord
from ionrouter.schema.request import Client
from ionrouter.schema.usage import Cost, Usage
from ionrouter.store import ledger as ledgers
from ionrouter.store.generation import Generation, abort, add_usage, insert
from ionrouter.store.ledger import Ledger
from ionrouter.store.reader import Reader
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Writer
from tests.support.databases import Place
from tests.support.routes import request

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


def opened(place: Place, *, keeps_words: bool = False) -> Ledger:
    database = place.database
    database.open().close()
    ledger = Ledger(SpendingBook(), Writer(database), Reader(database), keeps_words)
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
    async with asyncio.timeout(5.0):
        await stuck.committed("gen-3-x")  # the timer comes again
    await stuck.close()
