"""Moves commits from SQLite's log into its file in a thread of its own: a sync that no answer waits for.

The writer's own checkpoint stays behind it, for a log that grows faster than it is emptied.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ionrouter.errors import ConfigError
from ionrouter.store.sqlite_file import open_database

EVERY_WRITES = 150  # five pages of 4 KB each, before SQLite's own threshold of 1000 pages


@dataclass(slots=True)
class Checkpointer:
    """`note` from the writer's thread; `fault` is called in the checkpointer's own."""

    path: Path
    fault: Callable[[], None]
    _num_writes: int = 0
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_closing: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="store-checkpointer", daemon=True)
        self._thread.start()

    def note(self, num_writes: int) -> None:
        """Count what was committed; now and then there is enough of it."""
        self._num_writes += num_writes
        if self._num_writes >= EVERY_WRITES:
            self._num_writes = 0
            self._wake.set()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._is_closing:
                break
            try:
                connection = connection or open_database(self.path)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # waits for nobody
            except (sqlite3.Error, ConfigError):
                self.fault()
        if connection is not None:
            connection.close()
