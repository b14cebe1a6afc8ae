"""A database that takes questions and never answers: closing gives up on it after a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ionrouter.errors import ConfigError, RequestError
from ionrouter.store import key_watch
from ionrouter.store.database import Database, StoreFault
from ionrouter.store.key_watch import KeyWatch
from ionrouter.store.keys import KeyStore
from ionrouter.store.reader import Reader
from ionrouter.store.shared_limits import SharedLimits
from ionrouter.store.sqlite_file import SqliteFile


class Hanging:
    """Opens nothing until its gate does, and then fails."""

    dialect, name = "sqlite", "hanging"

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def open(self, **_: Any) -> Any:
        self.asked.set()
        self.gate.wait()
        raise ConfigError("gone")

    def open_to_read(self, _max_query_s: float) -> Any:
        return self.open()

    def was_too_slow(self, _error: BaseException) -> bool:
        return False


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    database = Hanging()
    yield database
    database.gate.set()


Make = Callable[[Database], Any]


@pytest.mark.parametrize("make", [Reader, SharedLimits])
async def test_questions_without_an_answer_are_left(hanging: Hanging, make: Make) -> None:
    part = make(cast(Database, hanging))
    part._threads._close_timeout_s = 0.01
    asking = part.one("SELECT 1", ()) if make is Reader else part.spent()
    question = asyncio.create_task(asking)
    while not hanging.asked.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    part.close()
    assert not question.done()
    hanging.gate.set()
    with pytest.raises((RequestError, StoreFault)):
        await question


def test_a_look_at_the_keys_without_an_answer_is_left(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_watch, "EVERY_S", 0.001)
    monkeypatch.setattr(key_watch, "CLOSE_TIMEOUT_S", 0.01)
    keys = KeyStore.open(SqliteFile(tmp_path / "ionrouter.db"))
    watch = KeyWatch(cast(Database, hanging), keys)
    watch.start()
    hanging.asked.wait()
    watch.close()
    assert watch._thread is not None and watch._thread.is_alive()
    hanging.gate.set()
    watch._thread.join()
    keys.close()
