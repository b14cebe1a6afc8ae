"""A PostgreSQL server that hangs: time is counted here where it counts none."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from ionrouter.store import postgres as postgres_module
from ionrouter.store.database import StoreFault
from tests.support.databases import PostgresPlace
from tests.support.postgres import Postgres

ASK = ("SELECT version FROM key_version", ())


@pytest.fixture
def place(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> PostgresPlace:
    found = PostgresPlace(postgres, postgres.new_database())
    found.database.open().close()  # makes the tables
    monkeypatch.setattr(postgres_module, "MAX_STATEMENT_S", 0.4)
    monkeypatch.setattr(postgres_module, "SILENCE_S", 0.4)
    return found


def test_a_server_that_hangs_holds_no_thread(place: PostgresPlace, postgres: Postgres) -> None:
    with closing(place.database.open()) as one, closing(place.database.open()) as other:
        reader = place.database.open_to_read(0.4)
        with postgres.hanging():
            began = time.monotonic()
            with pytest.raises(StoreFault, match="the server said nothing for 1 s"):
                one.rows(*ASK)
            with pytest.raises(StoreFault, match="the server said nothing for 1 s"):
                other.transact([ASK, ASK])
            with pytest.raises(postgres_module.psycopg.OperationalError, match="said nothing"):
                reader.execute(ASK[0])
            assert time.monotonic() - began < 20
        assert one.is_broken
        assert other.is_broken
        assert reader.closed
    with closing(place.database.open()) as again:
        assert again.rows(*ASK) == [(0,)]


def test_a_server_that_works_for_long_is_heard_by_its_own_limit(place: PostgresPlace) -> None:
    with closing(place.database.open()) as link:
        with pytest.raises(StoreFault, match="statement timeout"):
            link.rows("SELECT pg_sleep(30)")
        assert not link.is_broken


def test_who_waits_for_another_that_makes_the_tables_waits_as_long_as_that_takes(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "MAX_STATEMENT_S", 0.2)
    monkeypatch.setattr(postgres_module, "SILENCE_S", 0.2)
    place = PostgresPlace(postgres, postgres.new_database())
    with closing(postgres.connect(place.url.rpartition("/")[2])) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (postgres_module.LOCK,))
        ready = threading.Timer(1.5, other.close)
        ready.start()
        place.database.open().close()
        ready.join()
    assert place.ask("SELECT version FROM key_version") == [(0,)]
