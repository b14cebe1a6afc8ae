"""A database as the parts of the store see it: opened for a thread, read, written whole or not at all.

Knows no driver: sqlite_file.py and postgres.py are the two that there are. SQL that passes here is what both
take, with `?` for values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from ionrouter.errors import IonrouterError

BUSY_TIMEOUT_S = 2.0
Statement = tuple[str, Sequence[Any]]


class StoreFault(IonrouterError):
    """The database cannot be read or written now: away, locked, out of room. Trying again may help."""


class RowFault(IonrouterError):
    """What was to be written is at fault, not the database. Trying again does not help."""


class Link(Protocol):
    """One open connection, for one thread at a time. Every method raises StoreFault."""

    @property
    def is_broken(self) -> bool:
        """Whether it must be opened anew."""
        ...

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one query."""
        ...

    def transact(self, statements: Sequence[Statement]) -> None:
        """Run all of them in one transaction, or none; raises RowFault."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction around what `rows` runs; undone if anything is raised."""
        ...

    def may_have_changed(self) -> bool:
        """Whether somebody else may have committed anything since this was last asked; costs no query."""
        ...

    def close(self) -> None: ...


class Database(Protocol):
    """Where the state is kept."""

    @property
    def name(self) -> str:
        """How it is called in messages; never with a password."""
        ...

    @property
    def dialect(self) -> Literal["sqlite", "postgresql"]: ...

    @property
    def is_shared(self) -> bool:
        """Whether several servers may keep their state in it."""
        ...

    def open(self, *, patience_s: float = BUSY_TIMEOUT_S, is_hurried: bool = False) -> Link:
        """Open it, its tables made or brought up to date; raises ConfigError naming file or setting.

        `patience_s`: how long a statement waits for somebody else's lock. `is_hurried`: commits need not
        wait for the disk, unless the operator wants it; for what every request writes.
        """
        ...

    def open_to_read(self, max_query_s: float) -> Any:
        """Open a connection of the driver that cannot write, for a thread of its own; raises ConfigError."""
        ...

    def begin_query(self, connection: Any, max_query_s: float) -> None:
        """Let what `open_to_read` gave end its next query after so long."""
        ...

    def was_too_slow(self, error: BaseException) -> bool:
        """Whether the driver's error says that a query was ended because of its time."""
        ...


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read (0600), whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(draft, path)
