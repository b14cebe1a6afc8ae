"""`ionrouter store` on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from ionrouter.commands.store import prepare
from ionrouter.settings import load_settings
from ionrouter.store.keys import KeyStore
from tests.support.databases import Place, PostgresPlace


def test_the_tables_are_made_and_what_they_hold_is_said(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = place.url if isinstance(place, PostgresPlace) else None
    settings = load_settings(state_dir=tmp_path / "state", store_url=url)
    assert prepare(settings) == 0
    assert "keys: 0" in capsys.readouterr().out
    KeyStore.open(place.database).create("a", "inference", 1.0)
    assert prepare(settings) == 0
    said = capsys.readouterr().out
    assert f"{place.database.name}: schema " in said
    assert "keys: 1" in said
