"""Keeps a server's copy of the keys like the database, where asking it costs a round trip. One thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import structlog

from ionrouter.errors import ConfigError
from ionrouter.process import CLOSE_TIMEOUT_S
from ionrouter.store.database import Database, Link, StoreFault
from ionrouter.store.keys import KeyStore

_log = structlog.get_logger(__name__)

EVERY_S = 0.5  # how long a key that another server disabled may go on here


@dataclass(slots=True)
class KeyWatch:
    """While the database is away, the keys stay as they were."""

    database: Database
    keys: KeyStore
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.keys.is_watched = True
        self._thread = threading.Thread(target=self._run, name="store-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask for nothing more; a question that is not answered is left alone after a while."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        link: Link | None = None
        is_well = True
        while not self._stop.wait(EVERY_S):
            try:
                link = link or self.database.open()
                self.keys.refresh(link)
                is_well = True
            except (StoreFault, ConfigError) as error:
                if is_well:
                    _log.warning("keys_stale", error=str(error))  # once, not twice a second
                is_well = False
                link = None if link is None or link.is_broken else link
        if link is not None:
            link.close()
