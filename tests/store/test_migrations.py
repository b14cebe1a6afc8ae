"""Databases of every earlier kind are brought to the newest tables and lose nothing; new ones equal them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, inspect

from ionrouter.errors import ConfigError
from ionrouter.stats.book import StatsBook
from ionrouter.stats.query import Question, answer
from ionrouter.stats_keeper import StatsKeeper
from ionrouter.store import stats_rows
from ionrouter.store.database import Database
from ionrouter.store.generation import SELECT, SELECT_RUNNING, from_row
from ionrouter.store.keys import KeyStore, hash_of
from ionrouter.store.migrator import newest_revision, upgrade
from ionrouter.store.schema import HEAD, schema_path
from ionrouter.store.snapshot import DIALECTS, snapshot
from ionrouter.store.spending import SpendingBook
from ionrouter.store.sqlite_file import SqliteFile
from ionrouter.store.writer import Writer
from tests.support.databases import Place, PostgresPlace
from tests.support.postgres import Postgres

OLD = Path(__file__).with_name("old_schemas")
DIGEST = hash_of("sk-or-v1-" + "0" * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "ionrouter.db"


def old_file(path: Path, version: int) -> None:
    """A file as version 1 or 2 of the tables left it, before Alembic counted."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    for number in range(1, version + 1):
        connection.executescript((OLD / f"sqlite_{number}.sql").read_text())
    connection.execute(f"PRAGMA user_version={version}")
    connection.execute(
        "INSERT INTO api_key (hash, name, label, kind, disabled, created_at) VALUES (?, 'old', 'label', "
        "'inference', 0, 1.0)",
        (DIGEST,),
    )
    connection.close()


def test_a_state_folder_of_the_second_version_is_upgraded_in_place(path: Path) -> None:
    old_file(path, 2)
    with sqlite3.connect(path) as old:
        old.execute("UPDATE api_key SET spend_limit = 5.0, limit_reset = 'monthly'")
        old.execute("INSERT INTO key_usage VALUES (?, 20000, 0.5, 3, 1728000001.5)", (DIGEST,))
        for name, state in (("gen-done", "finished"), ("gen-lost", "started")):
            values = (name, state, DIGEST, "chat", "m", 1, 1728000000.25, 7, 2, 1, 0, 0, 0.125, "[]")
            old.execute(
                "INSERT INTO generation (id, state, key_hash, kind, requested_model, is_stream, started_at, "
                "prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, is_usage_estimated, "
                f"cost, attempts) VALUES ({', '.join('?' * len(values))})",
                values,
            )
        old.execute("INSERT INTO generation_words VALUES ('gen-done', 1.0, '{}', 'said', NULL)")
    old.close()
    link = SqliteFile(path).open()
    key = KeyStore(link).by_hash(DIGEST)
    assert key is not None
    assert (key.name, key.limit, key.limit_reset) == ("old", 5.0, "monthly")
    assert SpendingBook.load(link).of(DIGEST).days == {20000: 0.5}
    (row,) = link.rows(SELECT, ("gen-done",))
    done = from_row(row)
    assert (done.cost, done.prompt_tokens, done.started_at) == (0.125, 7, 1728000000.25)
    assert (done.reserved, done.instance) == (0.0, None)
    assert [from_row(row).id for row in link.rows(SELECT_RUNNING)] == ["gen-lost"]
    assert link.rows("SELECT completion FROM generation_words") == [("said",)]
    assert link.rows("PRAGMA integrity_check") == [("ok",)]
    link.close()


def test_a_file_of_the_first_version_keeps_its_keys(path: Path) -> None:
    old_file(path, 1)
    key = KeyStore.open(SqliteFile(path)).by_hash(DIGEST)
    assert key is not None
    assert (key.name, key.limit, key.includes_byok, key.expires_at) == ("old", None, False, None)


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgraded_file_has_the_tables_of_a_new_one(path: Path, tmp_path: Path, version: int) -> None:
    old_file(path, version)
    SqliteFile(path).open().close()
    SqliteFile(tmp_path / "new" / "ionrouter.db").open().close()
    assert tables(sqlite_url(path)) == tables(sqlite_url(tmp_path / "new" / "ionrouter.db"))


# Five attempts of 0.1 to 0.5 s to the first token, as revision 0004 kept them.
OLD_BUCKET = bytes.fromhex(
    "0178016364cacf6665622b29492b892fe66562ddcfc2a8cc28c2c8cfc8cdc895525a945892999f0796d8c40a97304a11"
    "e1626400811ff600a4b00bfb"
)


async def test_statistics_and_generations_of_the_fourth_revision_stay_readable(path: Path) -> None:
    with create_engine(sqlite_url(path)).begin() as connection:
        upgrade(connection, to="0004")
    now = 1_700_000_000.0
    series = {
        "endpoint_id": "a", "stream": True, "purpose": "main", "request_class": "short",
        "model": "m", "provider": "P",
    }  # fmt: skip
    with sqlite3.connect(path) as old:
        old.execute("PRAGMA user_version=4")
        number, (name_it, values) = stats_rows.named("one", series)
        old.execute(name_it, tuple(values))
        old.execute(*stats_rows.upsert(number, 3600, int(now // 3600), OLD_BUCKET))
        columns = ("id", "state", "kind", "requested_model", "is_stream", "started_at", "prompt_tokens")
        columns += ("completion_tokens", "cached_tokens", "reasoning_tokens", "is_usage_estimated", "cost")
        done = ("gen-old", "finished", "chat", "m", 1, now, 1, 2, 0, 0, 0, 0.5, "[]")
        marks = ", ".join("?" * len(done))
        old.execute(f"INSERT INTO generation ({', '.join(columns)}, attempts) VALUES ({marks})", done)
    old.close()
    database = SqliteFile(path)
    with closing(database.open()) as link:
        (row,) = link.rows(SELECT, ("gen-old",))
    found = from_row(row)
    assert (found.queue_s, found.num_tool_calls, found.num_bad_tool_calls) == (None, 0, 0)
    assert found.source_id is None
    book = StatsBook()
    assert await StatsKeeper(book, Writer(database), "one", clock=lambda: now).restore() == 1
    (told,) = answer(book, Question(now - 5 * 86_400, now))
    assert (told["requests"], told["ttft_ms"]["n"], told["queue_ms"]["n"]) == (5, 5, 0)
    assert told["ttft_ms"]["p50"] == pytest.approx(300, rel=0.01)


def test_revisions_from_nothing_give_the_tables_of_a_new_database(postgres: Postgres) -> None:
    migrated, made = PostgresPlace(postgres, postgres.new_database()), postgres.new_database()
    with create_engine(alchemy(migrated.url)).begin() as connection:
        upgrade(connection, to="0002")
    migrated.ask("INSERT INTO key_usage VALUES ('k', 1, 0.5, 1, 2.0)")
    migrated.database.open().close()  # the rest, as at a start
    assert migrated.ask("SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert migrated.ask("SELECT cost FROM key_usage") == [(0.5,)]
    PostgresPlace(postgres, made).database.open().close()
    assert tables(alchemy(migrated.url)) == tables(alchemy(made))


def test_the_snapshots_and_the_newest_revision_are_those_of_the_tables() -> None:
    assert newest_revision() == HEAD
    for name in DIALECTS:
        assert schema_path(name).read_text() == snapshot(name), "run python -m ionrouter.store.snapshot"


def test_servers_that_start_at_once_make_the_tables_once(place: Place) -> None:
    opened: list[Any] = []

    def start(database: Database) -> None:
        opened.append(database.open().rows("SELECT version FROM key_version"))

    threads = [threading.Thread(target=start, args=(place.database,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [[(0,)]] * 6


def test_a_newer_database_is_refused(place: Place, postgres: Postgres) -> None:
    place.database.open().close()
    newer = int(HEAD) + 1
    if not isinstance(place, PostgresPlace):
        place.ask(f"PRAGMA user_version={newer}")
        database = place.database
    else:
        place.ask(f"UPDATE alembic_version SET version_num = '{newer:04}'")
        database = PostgresPlace(postgres, place.url).database
    with pytest.raises(ConfigError, match=f"made by a newer version .schema {newer}, this one knows"):
        database.open()


def test_an_up_to_date_database_is_opened_without_sqlalchemy(place: Place) -> None:
    place.database.open().close()
    url = place.url if isinstance(place, PostgresPlace) else f"sqlite:///{place.database.name}"
    code = (
        "import sys; from pathlib import Path; from ionrouter.store.place import database_of; "
        f"database_of({url!r}, Path()).open(); print('sqlalchemy' in sys.modules, 'alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr


def alchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def tables(url: str) -> dict[str, Any]:
    """Columns, keys, checks and indexes of every table."""
    with create_engine(url).connect() as connection:
        return {name: _table(connection, name) for name in inspect(connection).get_table_names()}


def _table(connection: Connection, name: str) -> dict[str, Any]:
    look = inspect(connection)
    columns = [(c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in look.get_columns(name)]
    indexes = {
        index["name"]: (
            index["column_names"],
            {k: str(v) for k, v in index.get("dialect_options", {}).items()},
        )
        for index in look.get_indexes(name)
    }
    checks = sorted(check["sqltext"] for check in look.get_check_constraints(name))
    return {
        "columns": columns,
        "key": look.get_pk_constraint(name)["constrained_columns"],
        "indexes": indexes,
        "checks": checks,
    }
