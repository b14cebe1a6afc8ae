"""Reservations that several servers see: one step, given back at the end, honest about trouble."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ionrouter.errors import RequestError
from ionrouter.store.database import Database
from ionrouter.store.generation import Generation, add_usage, insert
from ionrouter.store.keys import ApiKey, KeyStore
from ionrouter.store.ledger import Ledger
from ionrouter.store.periods import DAY_S, day_of
from ionrouter.store.shared_limits import SharedLimits
from ionrouter.store.spending import NO_KEY, SpendingBook
from ionrouter.store.writer import Writer
from tests.support.databases import PostgresPlace
from tests.support.postgres import Postgres

NOW = 1_795_000_000.0


@pytest.fixture
def place(postgres: Postgres) -> PostgresPlace:
    return PostgresPlace(postgres, postgres.new_database())


@pytest.fixture
async def servers(place: PostgresPlace) -> AsyncIterator[list[SharedLimits]]:
    opened = [SharedLimits(place.database), SharedLimits(place.database)]
    yield opened
    for limits in opened:
        limits.close()


def a_key(place: PostgresPlace, limit: float | None = 1.0) -> ApiKey:
    return KeyStore.open(place.database).create("k", "inference", 1.0, limit=limit, limit_reset="daily")[1]


def running(name: str, key: ApiKey, amount: float = 0.25, at: float = NOW) -> Generation:
    return Generation(name, "started", key.hash, "chat", "m", False, at, reserved=amount, instance="x")


def end(database: Database, row: Generation, cost: float) -> None:
    done = replace(row, state="finished", cost=cost, reserved=0.0)
    database.open().transact([add_usage(done), insert(done)])


async def test_forty_at_once_from_two_servers_fill_the_limit_and_no_more(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    asked = [servers[n % 2].reserve(key, running(f"g{n}", key), NOW) for n in range(40)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [a for a in answers if a is not None]
    assert len(refused) == 36
    assert all(isinstance(a, RequestError) and a.status == 402 for a in refused)
    assert place.ask("SELECT count(*), sum(reserved) FROM generation") == [(4, 1.0)]


async def test_the_end_gives_a_reservation_back_and_books_the_cost(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    await servers[0].reserve(key, running("a", key, 1.0), NOW)
    with pytest.raises(RequestError, match=r"daily limit is \$1 and \$0 is left, with \$1 held"):
        await servers[1].reserve(key, running("b", key, 0.75), NOW)
    end(place.database, running("a", key), 0.25)
    await servers[1].reserve(key, running("b", key, 0.75), NOW)
    assert await servers[0].usage_since(day_of(NOW), [key.hash]) == [(key.hash, day_of(NOW), 0.25, NOW)]
    tomorrow = NOW + DAY_S
    with pytest.raises(RequestError):  # what was spent is of yesterday, what is held is not
        await servers[1].reserve(key, running("c", key, 0.5, tomorrow), tomorrow)
    await servers[1].reserve(key, running("c", key, 0.25, tomorrow), tomorrow)


async def test_what_was_spent_while_a_clock_was_ahead_is_of_its_own_period(
    place: PostgresPlace, servers: list[SharedLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, now = a_key(place), NOW + 400 * DAY_S
    monkeypatch.setattr("ionrouter.store.ledger.time", SimpleNamespace(time=lambda: now))
    ledger = Ledger(SpendingBook.load(place.database.open()), limits=servers[0])
    end(place.database, running("ahead", key, at=now), 0.75)
    await ledger.refresh(key.hash)
    now = NOW
    end(place.database, running("now", key), 0.25)
    await servers[1].reserve(key, running("a", key, 0.75), NOW)
    with pytest.raises(RequestError):
        await servers[1].reserve(key, running("b", key, 0.5, NOW + 400 * DAY_S), NOW + 400 * DAY_S)
    await ledger.refresh(key.hash)  # what others booked on days that this server's clock had passed over
    assert ledger.spending.of(key.hash).since("daily", NOW) == 0.25


async def test_more_is_set_aside_while_there_is_room_for_it(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    await servers[0].reserve(key, running("a", key, 0.25), NOW)
    await servers[1].reserve(key, running("b", key, 0.25), NOW)
    asked = [servers[0].reserve_more(key, "a", 0.125, NOW) for _ in range(6)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(answer is None for answer in answers) == 4
    assert place.ask("SELECT id, reserved FROM generation ORDER BY id") == [("a", 0.75), ("b", 0.25)]
    end(place.database, running("b", key), 0.0)
    await servers[0].reserve_more(key, "a", 0.25, NOW)
    end(place.database, running("a", key), 0.5)
    await servers[0].reserve_more(key, "a", 0.5, NOW)  # it has ended: nothing is held for it
    assert place.ask("SELECT sum(reserved) FROM generation") == [(0.0,)]


async def test_a_limit_counts_as_it_is_now_not_as_this_server_remembers(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    KeyStore.open(place.database).update(key.hash, {"limit": 0.1}, NOW)
    with pytest.raises(RequestError, match=r"limit is \$0.1 "):
        await servers[0].reserve(key, running("a", key), NOW)


async def test_a_server_that_was_not_asked_for_days_knows_what_others_booked_meanwhile(
    place: PostgresPlace, servers: list[SharedLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = NOW
    monkeypatch.setattr("ionrouter.store.ledger.time", SimpleNamespace(time=lambda: now))
    key = a_key(place)
    ledger = Ledger(SpendingBook.load(place.database.open()), limits=servers[0])
    for age in range(10):
        began = NOW + age * DAY_S
        end(place.database, running(f"g{age}", key, at=began), 0.25)
        if age == 4:
            now = began
            await ledger.refresh(key.hash)
            end(place.database, running("lost", key, at=began - 2 * DAY_S), 0.5)
    now = NOW + 9 * DAY_S
    await ledger.refresh(key.hash)
    assert ledger.spending.of(key.hash).since(None, now) == 10 * 0.25 + 0.5
    assert ledger.spending.total() == await ledger.spent() == 10 * 0.25 + 0.5


async def test_who_asks_for_some_keys_brings_no_others(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    store = KeyStore.open(place.database)
    keys = [store.create(name, "inference", 1.0)[1].hash for name in "abc"]
    ledger = Ledger(SpendingBook.load(place.database.open()), limits=servers[0])
    now = time.time()
    for number, digest in enumerate((*keys, None)):
        row = Generation(f"g{number}", "started", digest, "chat", "m", False, now)
        end(place.database, row, 0.25)
    await ledger.refresh(*keys[:2])
    known = [ledger.spending.of(digest).since(None, now) for digest in (*keys, None)]
    assert known == [0.25, 0.25, 0.0, 0.0]
    assert await servers[0].usage_since(0, keys[1:2]) == [(keys[1], day_of(now), 0.25, now)]
    assert await servers[0].usage_since(0, []) == ()
    await ledger.refresh(NO_KEY)
    assert ledger.spending.of(None).since(None, now) == 0.25
    assert await ledger.spent() == 1.0
    assert ledger.spending.total() == 0.75  # of what it was asked for
    place.ask("ALTER TABLE key_usage RENAME TO away")
    assert await ledger.spent() == 1.0  # as it was known last


async def test_a_request_that_ended_first_holds_nothing(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    """The client left while the database was asked; the end was written before the reservation."""
    key = a_key(place)
    end(place.database, running("a", key), 0.0)
    await servers[0].reserve(key, running("a", key), NOW)
    assert place.ask("SELECT state, reserved FROM generation") == [("finished", 0.0)]


async def test_requests_of_servers_that_never_came_back_are_found(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    await servers[0].reserve(key, running("old", key, at=NOW - DAY_S), NOW)
    await servers[0].reserve(key, running("new", key), NOW)
    assert [row.id for row in await servers[1].running_before(NOW - 1)] == ["old"]


async def test_a_server_whose_clock_is_ahead_ends_nothing_of_the_others(
    place: PostgresPlace, servers: list[SharedLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request that ran elsewhere was booked at its reservation; the database knows the time."""
    monkeypatch.setattr("ionrouter.store.sure_clock.EVEN_S", 0.0)
    key = a_key(place)
    await servers[0].reserve(key, running("now", key, at=time.time()), NOW)
    writer = Writer(place.database)
    ledger = Ledger(SpendingBook(), writer, limits=servers[1])
    ledger.clock.wall = lambda: time.time() + 1000 * DAY_S
    ledger.start()
    task = asyncio.create_task(ledger.keep_forgetting(400))
    await asyncio.sleep(0.3)
    task.cancel()
    assert ledger.sure_now is not None and abs(ledger.sure_now - time.time()) < 60
    await writer.close()
    assert place.ask("SELECT state FROM generation") == [("started",)]


async def test_a_locked_key_is_a_503_and_a_cut_connection_is_none(
    place: PostgresPlace, servers: list[SharedLimits]
) -> None:
    key = a_key(place)
    with place.locked(), pytest.raises(RequestError) as refused:
        await servers[0].reserve(key, running("a", key), time.time())
    assert refused.value.status == 503
    place.ask("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    for number in range(8):  # each thread's connection was cut
        await servers[0].reserve(key, running(f"b{number}", key, 0.01), NOW)


async def test_a_database_that_hangs_is_a_503_in_time(
    place: PostgresPlace, servers: list[SharedLimits], postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ionrouter.store.shared_limits.MAX_WAIT_S", 0.3)
    key = a_key(place)
    await servers[0].reserve(key, running("a", key), NOW)
    with postgres.hanging():
        for number in range(6):  # more than there are threads
            with pytest.raises(RequestError) as refused:
                await servers[0].reserve(key, running(f"b{number}", key), NOW)
            assert refused.value.status == 503


async def test_a_connection_to_a_server_that_only_reads_is_not_kept(
    place: PostgresPlace, servers: list[SharedLimits], postgres: Postgres
) -> None:
    """After a failover the address leads elsewhere; who keeps the connection to the old server is stuck."""
    key = a_key(place)
    try:
        place.ask("ALTER ROLE ion SET default_transaction_read_only = on")  # for what connects from now on
        with pytest.raises(RequestError) as refused:
            await servers[0].reserve(key, running("a", key), NOW)
        assert refused.value.status == 503
    finally:
        with postgres.connect("postgres") as other:
            other.execute("SET default_transaction_read_only = off")
            other.execute("ALTER ROLE ion RESET default_transaction_read_only")
    for number in range(4):
        await servers[0].reserve(key, running(f"b{number}", key, 0.01), NOW)
