"""A server that takes the place of another on its state folder: what that books while it drains counts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from ionrouter.store import follower
from ionrouter.store.follower import follow, read_sums
from ionrouter.store.generation import Generation, book
from ionrouter.store.instance import claim
from ionrouter.store.ledger import Ledger
from ionrouter.store.periods import day_of
from ionrouter.store.spending import SpendingBook
from ionrouter.store.writer import Writer
from tests.support.databases import Place


def ended(number: str, cost: float) -> Generation:
    return Generation(number, "finished", "k", "chat", "m", False, time.time(), cost=cost)


def opened(place: Place) -> Ledger:
    with_tables = place.database.open()
    ledger = Ledger(SpendingBook.load(with_tables), Writer(place.database))
    with_tables.close()
    ledger.start()
    return ledger


def books(ledger: Ledger, done: Generation) -> None:
    """As the end of a request does."""
    ledger._account(done)
    assert ledger.writer is not None
    ledger.writer.put_lazily((), (), done)


async def test_what_the_old_server_books_while_it_drains_counts_at_the_new_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "EVERY_S", 0.05)
    old, new = claim(tmp_path), claim(tmp_path)
    assert (old.living, new.living) == ([], [old.name])
    ledger = opened(place)
    assert ledger.writer is not None
    following = asyncio.create_task(follow(ledger.spending, ledger.writer, new, tmp_path))
    other = place.database.open()
    books(ledger, ended("mine", 0.25))
    other.transact(list(book([ended("drained", 0.5)])))
    await asyncio.sleep(0.3)
    assert ledger.spending.total() == 0.75 and not following.done()
    other.transact(list(book([ended("last", 1.0)])))
    old.close()
    await asyncio.wait_for(following, 10)
    assert ledger.spending.total() == 1.75
    books(ledger, ended("later", 2.0))
    assert ledger.spending.of("k").days == {day_of(time.time()): 3.75}
    await ledger.close()
    new.close()


async def test_nothing_is_counted_twice_or_lost_while_sums_are_read(place: Place) -> None:
    ledger, other = opened(place), place.database.open()
    assert ledger.writer is not None
    num = 0

    async def serve() -> None:
        nonlocal num
        while True:
            books(ledger, ended(f"mine-{num}", 1.0))
            num += 1
            await asyncio.sleep(0.001)

    serving = asyncio.create_task(serve())
    for number in range(30):
        other.transact(list(book([ended(f"other-{number}", 1.0)])))
        assert await read_sums(ledger.spending, ledger.writer)
        assert ledger.spending.total() == num + number + 1
    serving.cancel()
    await ledger.close()
    assert SpendingBook.load(other).total() == num + 30


async def test_a_database_that_cannot_be_written_says_nothing(place: Place) -> None:
    ledger = opened(place)
    assert ledger.writer is not None
    with place.locked():
        books(ledger, ended("mine", 1.0))
        assert not await read_sums(ledger.spending, ledger.writer)
    assert ledger.spending.total() == 1.0
    await ledger.close()
