"""`ionrouter store`: brings the state database up to date and says what is in it."""

from __future__ import annotations

import time
from contextlib import closing

from ionrouter.settings import Settings
from ionrouter.store.database import Link
from ionrouter.store.place import database_for
from ionrouter.store.schema import HEAD
from ionrouter.store.spending import SpendingBook, usd


def prepare(settings: Settings) -> int:
    """Make or upgrade the tables, as a start does, and print one line a fact; raises ConfigError."""
    database = database_for(settings)
    begun = time.monotonic()
    with closing(database.open()) as link:
        print(f"{database.name}: schema {int(HEAD)}, ready after {time.monotonic() - begun:.2f} s")
        for name, value in _facts(link).items():
            print(f"{name}: {value}")
    return 0


def _facts(link: Link) -> dict[str, str]:
    (keys,) = link.rows("SELECT count(*) FROM api_key")
    (rows,) = link.rows("SELECT count(*) FROM generation")
    (running,) = link.rows(
        "SELECT count(*), coalesce(sum(reserved), 0) FROM generation WHERE state = 'started'"
    )
    return {
        "keys": str(keys[0]),
        "generations": f"{rows[0]}, {running[0]} of them running or lost, with {usd(running[1])} held",
        "spent": usd(SpendingBook.load(link).total()),
    }
