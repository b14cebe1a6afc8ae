"""Which database a setting names, and what is said when it names none that can be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ionrouter.errors import ConfigError
from ionrouter.settings import load_settings
from ionrouter.store.place import database_for, database_of
from ionrouter.store.sqlite_file import SqliteFile

FILE = Path("/state/ionrouter.db")


def test_without_a_url_it_is_a_file_in_the_state_folder(tmp_path: Path) -> None:
    settings = load_settings(state_dir=tmp_path, store_sync="full")
    assert database_for(settings) == SqliteFile(tmp_path / "ionrouter.db", survives_power_loss=True)
    assert database_of("sqlite:////elsewhere/x.db", FILE) == SqliteFile(Path("/elsewhere/x.db"))


def test_a_url_names_a_server_without_its_password() -> None:
    database = database_of("postgres://me:secret@db.example:6432/ion?sslmode=require", FILE)
    assert (database.name, database.is_shared) == ("postgresql://db.example:6432/ion", True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:secret@x/y", r"IONROUTER_STORE_URL: should begin with postgresql://"),
        ("sqlite://x", r"IONROUTER_STORE_URL: should begin with postgresql://"),
        ("postgresql://u:secret@h/x?no=such", r"IONROUTER_STORE_URL: not a URL of PostgreSQL: .*no"),
        (
            "postgresql://u:secret@127.0.0.1:1/x",
            r"IONROUTER_STORE_URL: cannot open postgresql://127.0.0.1:1/x: ",
        ),
    ],
)
def test_what_cannot_be_opened_is_an_error_that_names_the_setting(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        database_of(url, FILE).open()
    assert "secret" not in str(refused.value)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "ionrouter.store.postgres", raising=False)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install -e '.\[postgres\]'"):
        database_of("postgresql://h/x", FILE)
