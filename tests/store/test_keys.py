"""Keys: kept as digests, seen across processes, never written by a look-up."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ionrouter.errors import ConfigError, RequestError
from ionrouter.store.database import Link
from ionrouter.store.keys import (
    FRESH_S,
    KEY_PATTERN,
    MAX_CHANGES,
    ApiKey,
    KeyStore,
    ensure_management_key,
    hash_of,
)
from ionrouter.store.schema import HEAD
from ionrouter.store.sqlite_file import SqliteFile, open_database
from tests.support.databases import Place, PostgresPlace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ionrouter.db"


def test_a_key_is_shown_once_and_kept_as_a_digest(path: Path) -> None:
    store = KeyStore.open(SqliteFile(path))
    plain, key = store.create("laptop", "inference", 1.0)
    assert KEY_PATTERN.fullmatch(plain)
    assert key.hash == hash_of(plain)
    assert key.label == f"{plain[:12]}...{plain[-3:]}"
    store.close()
    assert plain[9:].encode() not in b"".join(p.read_bytes() for p in path.parent.iterdir())


def test_a_presented_key_is_found_and_a_wrong_one_is_not(place: Place) -> None:
    store = KeyStore.open(place.database)
    plain, key = store.create("a", "inference", 1.0)
    assert store.find(plain) == key
    assert store.find(plain[:-1] + ("0" if plain[-1] != "0" else "1")) is None
    assert store.find("") is None
    assert store.find("x" * 100_000) is None


def test_looking_up_a_wrong_key_writes_nothing(path: Path) -> None:
    store = KeyStore.open(SqliteFile(path))
    store.create("a", "inference", 1.0)
    wal = path.with_name(path.name + "-wal")
    before = (path.read_bytes(), wal.read_bytes())
    for attempt in range(100):
        assert store.find(f"sk-or-v1-{attempt:064x}") is None
    assert (path.read_bytes(), wal.read_bytes()) == before


def test_a_change_by_another_process_counts_at_the_next_look_up(place: Place) -> None:
    store = KeyStore.open(place.database)
    plain, key = store.create("a", "inference", 1.0)
    assert store.find(plain) is not None
    url = place.url if isinstance(place, PostgresPlace) else f"sqlite:///{place.database.name}"
    code = (
        "from pathlib import Path; from ionrouter.store.keys import FRESH_S, KeyStore; "
        "from ionrouter.store.place import database_of; "
        f"KeyStore.open(database_of({url!r}, Path())).set_disabled({key.hash!r}, True)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    found = store.find(plain)
    assert found is not None
    assert found.is_disabled


def test_keys_are_named_by_hash_prefix_or_name(place: Place) -> None:
    store = KeyStore.open(place.database)
    _, key = store.create("laptop", "inference", 1.0)
    assert store.resolve("laptop") == store.resolve(key.hash[:6]) == key
    with pytest.raises(RequestError, match="no key 'desk'"):
        store.resolve("desk")
    store.create("laptop", "management", 2.0)
    with pytest.raises(RequestError, match="names 2 keys"):
        store.resolve("laptop")


def test_disabling_and_deleting(place: Place) -> None:
    store = KeyStore.open(place.database)
    plain, key = store.create("a", "inference", 1.0)
    assert store.set_disabled("a", True).is_disabled
    assert not store.has_usable("inference", 2.0)
    assert not store.set_disabled("a", False).is_disabled
    assert store.has_usable("inference", 2.0)
    store.delete(key.hash)
    assert store.find(plain) is None
    assert store.list() == []


def test_nobody_comes_in_with_a_key_that_has_expired(place: Place) -> None:
    store = KeyStore.open(place.database)
    store.create("old", "inference", 1.0, expires_at=9.0)
    assert store.has_usable("inference", 8.0)
    assert not store.has_usable("inference", 9.0)
    with pytest.raises(RequestError, match="expires_at"):
        store.create("older", "inference", 9.0, expires_at=9.0)


def test_the_first_start_leaves_a_management_key_only_its_owner_can_read(path: Path) -> None:
    store = KeyStore.open(SqliteFile(path))
    file = path.with_name("management.key")
    assert ensure_management_key(store, file, 1.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = store.find(file.read_text().strip())
    assert found is not None
    assert found.kind == "management"
    assert not ensure_management_key(store, file, 2.0)
    assert len(store.list()) == 1


def test_a_management_key_of_a_lost_database_is_replaced(path: Path) -> None:
    file = path.with_name("management.key")
    store = KeyStore.open(SqliteFile(path))
    ensure_management_key(store, file, 1.0)
    store.close()
    for leftover in path.parent.glob("ionrouter.db*"):
        leftover.unlink()
    store = KeyStore.open(SqliteFile(path))
    assert ensure_management_key(store, file, 2.0)
    assert store.find(file.read_text().strip()) is not None


def test_keys_survive_a_restart(place: Place) -> None:
    store = KeyStore.open(place.database)
    plain, key = store.create("a", "inference", 1.0)
    store.close()
    assert KeyStore.open(place.database).find(plain) == key


def test_an_unreadable_file_is_a_clear_error(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, only text that is long enough to be read as a header" * 20)
    with pytest.raises(ConfigError, match=r"ionrouter\.db: cannot open the state database"):
        open_database(path)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    open_database(path).close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version={int(HEAD) + 1}")
    raw.close()
    with pytest.raises(ConfigError, match="newer version"):
        open_database(path)


def test_a_key_that_is_deleted_while_it_is_changed_is_not_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = KeyStore.open(place.database), KeyStore.open(place.database)
    _, key = store.create("a", "inference", 1.0)
    resolve = store.resolve

    def slowly(reference: str) -> ApiKey:
        found = resolve(reference)
        other.delete(reference)
        return found

    monkeypatch.setattr(
        KeyStore, "resolve", lambda asked, name: slowly(name) if asked is store else resolve(name)
    )
    with pytest.raises(RequestError, match="no key") as refused:
        store.update(key.hash, {"name": "b"}, 2.0)
    assert refused.value.status == 404


def test_a_look_that_took_long_does_not_bring_back_what_a_later_one_saw_change(place: Place) -> None:
    """Changes are looked at from threads of their own: a key that was disabled must not come alive again."""
    store, other = KeyStore.open(place.database), KeyStore.open(place.database)
    plain, key = other.create("a", "inference", 1.0)
    link, later = place.database.open(), place.database.open()

    class Slow:
        """A link whose rows of keys are read, and then take their time."""

        def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            found = link.rows(sql, values)
            if "FROM api_key" in sql:
                other.set_disabled("a", True)
                store.refresh(later)
                assert store.find(plain).is_disabled  # type: ignore[union-attr]
            return found

    store.refresh(cast("Link", Slow()))
    found = store.by_hash(key.hash)
    assert found is not None and found.is_disabled


def test_keys_of_a_database_that_was_put_back_from_a_copy_count(place: Place) -> None:
    store, other = KeyStore.open(place.database), KeyStore.open(place.database)
    old, key = other.create("old", "inference", 1.0)
    other.create("new", "inference", 2.0)
    other.set_disabled("old", True)
    assert [each.name for each in store.list()] == ["old", "new"]
    link = place.database.open()
    changes = ["DELETE FROM api_key WHERE name = 'new'", "UPDATE api_key SET disabled = 0"]
    link.transact([(change, ()) for change in (*changes, "UPDATE key_version SET version = 1")])
    store.refresh(link)
    assert [each.name for each in store.list()] == ["old"]
    found = store.find(old)
    assert found is not None and not found.is_disabled and found.hash == key.hash


def test_generations_that_are_written_do_not_make_keys_be_read_again(path: Path) -> None:
    store = KeyStore.open(SqliteFile(path))
    _, key = store.create("a", "inference", 1.0)
    before = store.by_hash(key.hash)
    other = open_database(path)
    other.execute("INSERT INTO key_usage VALUES ('k', 1, 0.5, 1, 2.0)")
    assert store.by_hash(key.hash) is before  # the same object: not read again
    _disable_all(other)
    assert store.by_hash(key.hash) != key
    other.close()


def test_a_change_reads_the_changed_key_and_no_other(place: Place) -> None:
    """Of 10,000 keys all were read again: 50 ms in which nothing else ran."""
    store, other = KeyStore.open(place.database), KeyStore.open(place.database)
    _, kept = store.create("kept", "inference", 1.0)
    before = store.by_hash(kept.hash)
    plain, made = store.create("a", "inference", 2.0)
    assert store.find(plain) == made
    assert store.update("a", {"limit": 2.0}, 3.0).limit == 2.0
    assert store.set_disabled("a", True).is_disabled
    store.delete("a")
    assert store.find(plain) is None and [key.name for key in store.list()] == ["kept"]
    assert store.by_hash(kept.hash) is before  # the same object: not read again
    other.set_disabled("kept", True)  # of what others change nothing is missed
    store.create("b", "inference", 4.0)
    found = store.by_hash(kept.hash)
    assert found is not None and found.is_disabled


def test_requests_share_one_look_for_a_moment_and_an_unknown_key_is_looked_for_at_once(path: Path) -> None:
    now = 100.0
    store, other = KeyStore.open(SqliteFile(path), lambda: now), KeyStore.open(SqliteFile(path))
    plain, key = other.create("a", "inference", 1.0)
    assert store.find(plain) == key
    newer, made = other.create("b", "inference", 1.0)
    assert store.find(newer) == made
    other.set_disabled("a", True)
    now += FRESH_S / 2
    assert store.find(plain) == key
    now += FRESH_S
    found = store.find(plain)
    assert found is not None and found.is_disabled


def _disable_all(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE api_key SET disabled = 1")
    connection.execute("UPDATE key_version SET version = version + 1")


def test_a_limit_is_kept_changed_and_taken_away(place: Place) -> None:
    store = KeyStore.open(place.database)
    plain, key = store.create(
        "a", "inference", 1.0, limit=5.0, limit_reset="monthly", expires_at=9.0, creator_user_id="u"
    )
    assert store.find(plain) == key
    assert (key.limit, key.limit_reset, key.has_expired(8.9), key.has_expired(9.0)) == (
        5.0, "monthly", False, True,
    )  # fmt: skip
    changed = store.update(key.hash, {"limit": None, "disabled": True}, 3.0)
    assert (changed.limit, changed.is_disabled, changed.updated_at) == (None, True, 3.0)
    assert (changed.limit_reset, changed.name) == ("monthly", "a")


def test_a_change_by_another_process_reads_the_changed_keys_and_no_other(place: Place) -> None:
    """Of 100,000 keys all were read again: a second in which nothing else ran."""
    other, store = KeyStore.open(place.database), KeyStore.open(place.database)
    kept = [other.create(f"k{number}", "inference", 1.0)[1] for number in range(5)]
    before = {key.name: key for key in store.list()}
    other.set_disabled(kept[0].hash, True)
    other.update(kept[0].hash, {"name": "renamed"}, 2.0)
    other.delete(kept[1].hash)
    _, made = other.create("new", "inference", 3.0)
    assert {key.name for key in store.list()} == {"renamed", "k2", "k3", "k4", "new"}
    first = store.by_hash(kept[0].hash)
    assert first is not None and first.is_disabled
    assert store.by_hash(made.hash) == made
    for key in kept[2:]:
        assert store.by_hash(key.hash) is before[key.name]  # the same object: not read again


def test_changes_that_nobody_noted_make_all_keys_be_read(place: Place) -> None:
    """More than are kept, or those of a database that was put back from a copy and went on."""
    other, store = KeyStore.open(place.database), KeyStore.open(place.database)
    _, key = other.create("a", "inference", 1.0)
    assert store.by_hash(key.hash) == key
    with_link = place.database.open()
    change = "UPDATE api_key SET name = 'b' WHERE hash = ?", (key.hash,)
    with_link.transact([change, ("UPDATE key_version SET version = version + 1", ())])
    with_link.close()
    renamed = store.by_hash(key.hash)
    assert renamed is not None and renamed.name == "b"
    for _ in range(MAX_CHANGES + 1):
        other.set_disabled(key.hash, True)
    assert len(place.ask("SELECT version FROM key_change")) == MAX_CHANGES
    disabled = store.by_hash(key.hash)
    assert disabled is not None and disabled.is_disabled
